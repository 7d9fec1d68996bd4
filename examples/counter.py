"""The smallest object: a number that only grows, kept on several machines.

domicile dev examples/counter.py

curl -X POST localhost:8080/v1/demo/objects/Counter/a/increment -d '[]'     # 1
curl -X POST localhost:8080/v1/demo/objects/Counter/a/increment -d '[]'     # 2
curl -X POST localhost:8080/v1/demo/objects/Counter/a/increment -d '{"by": 40}'
curl -X POST localhost:8080/v1/demo/objects/Counter/a/read
"""

import domicile


class Counter(domicile.Object):
    """One row. Every name is a counter of its own: `a`, `b`, `visits of /index.html`."""

    def init(self) -> None:
        self.sql.exec("CREATE TABLE counter (n INTEGER NOT NULL)")
        self.sql.exec("INSERT INTO counter VALUES (0)")

    def increment(self, by: int = 1) -> int:
        self.sql.exec("UPDATE counter SET n = n + ?", by)
        return self.read()

    @domicile.read
    def read(self) -> int:
        row = self.sql.one("SELECT n FROM counter")
        return row["n"] if row else 0
