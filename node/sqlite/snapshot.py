"""Reads of an object at exactly one length of its log, on whatever node has base and log (PROTOCOLS section 8).

A snapshot is a `Database` that cannot write: methods declared `@domicile.read` and queries from outside see through it
what the object's own connection would show them, under the same rules. It takes no lock and checkpoints nothing, so it
may stand beside the owner's own connection.
"""

from __future__ import annotations

from typing import Any

import apsw

from domicile.context import Row
from domicile.node.disk import Disk, OpenFile
from domicile.node.errors import Corrupt
from domicile.node.sqlite.database import Database, StorageFailed
from domicile.node.sqlite.overlay import Bytes, Overlay, OverlayVfs
from domicile.node.sqlite.setup import PROGRESS_STEPS, STATEMENTS_CACHED, restrict
from domicile.node.sqlite.sql import SqlApi

CACHE_KIB = 256
_PRAGMAS = f"PRAGMA temp_store=FILE; PRAGMA cache_size=-{CACHE_KIB}; PRAGMA mmap_size=0; PRAGMA query_only=1"

Part = str | bytes | OpenFile
"""A path, opened here and closed with the snapshot; bytes; or an open file, which is closed with it all the same."""


class Snapshot(Database):
    """One object's database at `length`. Used by one thread at a time; `interrupt` from any. Close it soon."""

    def __init__(self, connection: apsw.Connection, mark: str, overlay: Overlay) -> None:
        """Use `Snapshots.open`."""
        super().__init__(connection, mark, 0)
        self._overlay = overlay
        self._begin = self._mark + "BEGIN"
        connection.set_progress_handler(self._is_expired, PROGRESS_STEPS)
        connection.authorizer = self.rights
        self.length = overlay.length

    def advance(self, length: int) -> None:
        """Show a longer prefix of the same log, between two reads. Raises Corrupt when no commit ends there."""
        assert not self._connection.txn_state(), "a statement is open"
        self._overlay.advance(length)
        self.length = length

    def query(self, sql: str, *params: Any) -> list[Row]:
        """One statement's rows. Raises SqlError, SqlRefused (it writes, or what the authorizer refuses)."""
        api = SqlApi(self)
        self.begin()
        try:
            api.activate(read_only=True)
            return api.query(sql, *params)
        finally:
            api.deactivate(cleanly=False)
            self.rollback()


class Snapshots:
    """Opens snapshots. One for a process will do; `mark` as in `Database.open`."""

    def __init__(self, disk: Disk, mark: str) -> None:
        self._disk = disk
        self._mark = mark
        self._vfs = OverlayVfs(disk.vfs or "")

    def open(self, base: Part, log: Part, length: int) -> Snapshot:
        """The database that `base` and the log's first `length` bytes make. Costs a quarter of a millisecond.

        Beside the object's own connection the base is never a path: closing it would drop SQLite's locks.
        Raises Corrupt when no commit ends at `length` or this is no database, StorageFailed when a file is not there.
        """
        opened: list[OpenFile] = []
        connection: apsw.Connection | None = None
        try:
            opened += [self._part(base)]
            opened += [self._part(log) if length else Bytes(b"")]
            overlay = Overlay(opened[0], opened[1], _size(opened[0]))
            overlay.advance(length)
            flags = apsw.SQLITE_OPEN_READONLY
            name = self._vfs.add(overlay)
            connection = apsw.Connection(name, flags=flags, vfs=self._vfs.name, statementcachesize=STATEMENTS_CACHED)
            opened.clear()  # the connection closes them
            restrict(connection)
            connection.execute(_PRAGMAS).fetchall()
            return Snapshot(connection, self._mark, overlay)
        except (apsw.NotADBError, apsw.CorruptError) as error:
            _discard(connection)
            raise Corrupt(f"a snapshot at {length}: {error}") from error
        except (apsw.Error, OSError) as error:
            _discard(connection)
            raise StorageFailed(f"a snapshot at {length}: {error}") from error
        finally:
            for file in opened:
                file.close()

    def _part(self, part: Part) -> OpenFile:
        if isinstance(part, str):
            return self._disk.open_file(part)
        return Bytes(part) if isinstance(part, bytes) else part


def _discard(connection: apsw.Connection | None) -> None:
    if connection is not None:
        connection.close(True)


def _size(base: OpenFile) -> int:
    """Bytes of the base, as its header counts them."""
    header = base.read(0, 100)
    if len(header) < 100:
        raise Corrupt("the base has no header")
    page_size = int.from_bytes(header[16:18], "big")
    return int.from_bytes(header[28:32], "big") * page_size
