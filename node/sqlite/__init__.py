"""SQLite as a residency uses it: connections and their rules, the bytes of base and WAL, transactions, own tables."""
