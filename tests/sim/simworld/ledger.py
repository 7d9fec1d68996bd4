"""The object that the world's clients use: its answers show all it holds, so that a history can be judged."""

from __future__ import annotations

from typing import Any

from domicile.object import Object

FILLER_BYTES = 600


class Ledger(Object):
    """Items in order, and a counter in a table of its own; a filler makes the log grow, so that it rotates."""

    def init(self) -> None:
        self.sql.exec("CREATE TABLE items(n INTEGER PRIMARY KEY, item TEXT NOT NULL, filler BLOB)")
        self.sql.exec("CREATE TABLE counter(value INTEGER NOT NULL)")
        self.sql.exec("INSERT INTO counter VALUES (0)")

    def append(self, item: str) -> dict[str, Any]:
        self.sql.exec("INSERT INTO items(item, filler) VALUES (?, zeroblob(?))", item, FILLER_BYTES)
        return self._all()

    def increment(self, item: str) -> dict[str, Any]:
        self.sql.exec("INSERT INTO items(item, filler) VALUES (?, zeroblob(?))", item, FILLER_BYTES)
        self.sql.exec("UPDATE counter SET value = value + 1")
        (counter,) = self.sql.query("SELECT value FROM counter")
        return {**self._all(), "value": counter["value"]}

    def read(self) -> dict[str, Any]:
        return self._all()

    def _all(self) -> dict[str, Any]:
        return {"items": [row["item"] for row in self.sql.query("SELECT item FROM items ORDER BY n")]}
