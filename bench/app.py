"""The classes under load: a counter, and a counter that carries some weight."""

import os
from typing import Any

import domicile
from domicile import Object

PIECE_KIB = 1000  # with its overhead a row of this size is just under 1 MiB of database


class Counter(Object):
    """One row that grows: the smallest thing worth making durable."""

    def init(self) -> None:
        self.sql.exec("CREATE TABLE c (n INTEGER NOT NULL)")
        self.sql.exec("INSERT INTO c VALUES (0)")

    def increment(self) -> int:
        return _count(self.sql.one("UPDATE c SET n = n + 1 RETURNING n"))

    def read(self) -> int:
        return _count(self.sql.one("SELECT n FROM c"))

    @domicile.read
    def peek(self) -> int:
        """The same where the caller is: a snapshot, on any node that has a copy the owner vouches for."""
        return _count(self.sql.one("SELECT n FROM c"))


class Ballast(Object):
    """The same counter in a database filled to a size, for the cases that wake and restore."""

    def init(self) -> None:
        self.sql.exec("CREATE TABLE c (n INTEGER NOT NULL)")
        self.sql.exec("INSERT INTO c VALUES (0)")
        self.sql.exec("CREATE TABLE ballast (piece BLOB NOT NULL)")

    def fill(self, kib: int) -> int:
        """Add `kib` of random bytes (nothing that compresses or repeats) in rows of at most 1 MiB."""
        for at in range(0, kib, PIECE_KIB):
            self.sql.exec("INSERT INTO ballast VALUES (?)", os.urandom(1024 * min(PIECE_KIB, kib - at)))
        return kib

    def increment(self) -> int:
        return _count(self.sql.one("UPDATE c SET n = n + 1 RETURNING n"))

    def read(self) -> int:
        return _count(self.sql.one("SELECT n FROM c"))


def _count(row: dict[str, Any] | None) -> int:
    assert row is not None  # `init` put it there
    count: int = row["n"]
    return count
