"""Objects that count, for tests that ask how often something was done."""

from __future__ import annotations

import domicile
from domicile import Object


class Counter(Object):
    def init(self):
        self.sql.exec("CREATE TABLE c (n INTEGER NOT NULL)")
        self.sql.exec("INSERT INTO c VALUES (0)")

    def increment(self) -> int:
        return self.sql.one("UPDATE c SET n = n + 1 RETURNING n")["n"]

    @domicile.read
    def read(self) -> int:
        return self.sql.one("SELECT n FROM c")["n"]


class Ledger(Object):
    """Counts, by its alarm too, and can be made as large as one likes."""

    def init(self):
        self.sql.exec("CREATE TABLE l (n INTEGER NOT NULL)")
        self.sql.exec("INSERT INTO l VALUES (0)")
        self.sql.exec("CREATE TABLE pads (pad BLOB)")

    def add(self) -> int:
        return self.sql.one("UPDATE l SET n = n + 1 RETURNING n")["n"]

    def fill(self, size: int) -> None:
        self.sql.exec("INSERT INTO pads VALUES (randomblob(?))", size)

    def ring(self, ms: int) -> None:
        self.set_alarm(f"{ms}ms")

    def on_alarm(self) -> None:
        self.add()

    @domicile.read
    def look(self) -> int:
        return self.sql.one("SELECT n FROM l")["n"]
