"""A lost branch as a person reads it: what, how much, which rows (PROTOCOLS section 10, "RecoverIncident"). Pure.

Two sizes: a summary that fits into a workflow's history whatever the branch is, and the whole difference, for the blob
store.
"""

from __future__ import annotations

from typing import Any

import msgspec

from domicile.node.sqlite.row_diff import Change, Diff, TableDiff, cell

SHOWN_TABLES, SHOWN_ROWS, SHOWN_COLUMNS, SHOWN_CHARS = 40, 5, 20, 60
FULL_CHARS = 10_000
FULL_ROWS = 10_000
OWN_TABLES = {
    "_domicile_kv": "self.kv",
    "_domicile_alarms": "alarms",
    "_domicile_idempotency": "idempotency records",
    "_domicile_meta": "the runtime's notes",
    "_domicile_migrations": "migrations",
}


def rows_of(diff: Diff) -> int:
    """How many rows differ."""
    return sum(len(table.changes) for table in diff.tables)


def summary(diff: Diff) -> list[dict[str, Any]]:
    """Per table {table, added, updated, deleted, key, columns, rows}, the largest first; bounded."""
    tables = sorted(diff.tables, key=lambda table: len(table.changes), reverse=True)
    return [_table(table, SHOWN_ROWS, SHOWN_CHARS) for table in tables[:SHOWN_TABLES]]


def altered(diff: Diff) -> list[str]:
    """What was created, changed or dropped, by name or statement; bounded."""
    return [f"{line[:200]}" for line in (*diff.altered, *diff.created)][:SHOWN_TABLES]


def full(diff: Diff) -> bytes:
    """JSON of all of it, each table's rows up to ten thousand."""
    tables = [_table(table, FULL_ROWS, FULL_CHARS) for table in diff.tables]
    return msgspec.json.encode({"tables": tables, "altered": diff.altered, "created": diff.created})


def _table(table: TableDiff, rows: int, chars: int) -> dict[str, Any]:
    wide = len(table.columns) if chars == FULL_CHARS else SHOWN_COLUMNS
    return {
        "table": OWN_TABLES.get(table.table.name, table.table.name),
        "added": table.count("added"),
        "updated": table.count("updated"),
        "deleted": table.count("deleted"),
        "key": list(table.table.key),
        "columns": list(table.columns[:wide]),
        "rows": [_row(change, wide, chars) for change in table.changes[:rows]],
    }


def _row(change: Change, wide: int, chars: int) -> dict[str, Any]:
    """{kind, was, is}: `was` in what is served, `is` in the branch."""
    return {
        "kind": change.kind,
        "was": [cell(value, chars) for value in change.old[:wide]] if change.old is not None else None,
        "is": [cell(value, chars) for value in change.new[:wide]] if change.new is not None else None,
    }
