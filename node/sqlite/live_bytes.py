"""The bytes of an open database, read and folded through SQLite's own handles.

Never by opening the file: closing any other descriptor of the base drops the locks SQLite holds on it.
"""

from __future__ import annotations

import apsw

from domicile.node.errors import Corrupt, NodeError
from domicile.node.sqlite.birth import PAGE_SIZE

_BASE, _LOG = 0, 1


class StorageFailed(NodeError):
    """The object's file cannot be read or written here: the disk, not the bytes."""


def read_log(connection: apsw.Connection, start: int, end: int) -> bytes:
    """Bytes [start, end) of the WAL. Raises Corrupt, StorageFailed."""
    return _read(connection, _LOG, start, end - start)


def base_size(connection: apsw.Connection) -> int:
    """Bytes of the base file, as its header counts them. Raises Corrupt, StorageFailed."""
    return int.from_bytes(_read(connection, _BASE, 28, 4), "big") * PAGE_SIZE


def read_base(connection: apsw.Connection, offset: int, length: int) -> bytes:
    """Up to `length` bytes of the base from `offset`; fewer at its end. Raises Corrupt, StorageFailed."""
    return _read(connection, _BASE, offset, max(0, min(length, base_size(connection) - offset)))


def log_frames(connection: apsw.Connection) -> int:
    """How many frames of the WAL SQLite holds for committed. The connection has read something before."""
    frames, _ = connection.wal_checkpoint("main", apsw.SQLITE_CHECKPOINT_NOOP)
    return frames


def fold(connection: apsw.Connection) -> bool:
    """TRUNCATE: the whole log into the base, nothing synced. False, and nothing lost, when the database is busy."""
    try:
        left = connection.wal_checkpoint("main", apsw.SQLITE_CHECKPOINT_TRUNCATE)
    except (apsw.BusyError, apsw.LockedError):
        return False
    emptied = not connection.read("main", _LOG, 0, 1)[0]
    return left == (0, 0) and emptied


def _read(connection: apsw.Connection, which: int, offset: int, length: int) -> bytes:
    if length <= 0:
        return b""
    try:
        whole, data = connection.read("main", which, offset, length)
    except apsw.Error as error:
        raise StorageFailed(f"reading at {offset}: {error}") from error
    if not whole:
        raise Corrupt(f"the {('base', 'log')[which]} ends before byte {offset + length}")
    return data
