"""How SQLite is set up: once for the process, and for each connection of a residency."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import apsw

from domicile.node.errors import Corrupt
from domicile.node.sqlite.birth import PAGE_SIZE

CACHE_KIB = 1024
STATEMENTS_CACHED = 64
VALUE_BYTES_MAX = 16 << 20  # a text, a blob or a row
SQL_BYTES_MAX = 1 << 20
STATEMENT_JOURNAL_KIB = 1024  # what one savepoint may hold in memory before it goes to a temporary file
PROGRESS_STEPS = 2000  # below 1,000 the check itself shows in long statements

# synchronous=OFF: what makes an answer durable are other machines, never this file; after a power cut it counts only
# if its bytes prove themselves (takeover/own_copy.py; docs/decisions/0012).
# locking_mode comes before anything that reads: the first read decides whether a -shm file is made.
_PRAGMAS = (
    "PRAGMA locking_mode=EXCLUSIVE; PRAGMA synchronous=OFF; PRAGMA foreign_keys=ON; PRAGMA temp_store=FILE;"
    f" PRAGMA cache_size=-{CACHE_KIB}; PRAGMA mmap_size=0; PRAGMA max_page_count={{pages}}; PRAGMA page_size;"
    " PRAGMA journal_mode"
)


def configure_sqlite(temp_dir: str) -> None:
    """Set SQLite up for this process, once, before any connection exists.

    Sorts and savepoints that outgrow memory spill into nameless files in `temp_dir`, which go with the statement.
    No lookaside memory: with a thousand open objects it is 35 MB that is hardly used.
    """
    apsw.shutdown()
    os.environ["SQLITE_TMPDIR"] = temp_dir
    apsw.config(apsw.SQLITE_CONFIG_LOOKASIDE, 0, 0)
    apsw.config(apsw.SQLITE_CONFIG_STMTJRNL_SPILL, STATEMENT_JOURNAL_KIB << 10)
    apsw.initialize()


def configure(connection: apsw.Connection, pages_max: int) -> None:
    """Set what no SQLite file remembers. Raises Corrupt when this is no file in WAL mode with our page size."""
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    restrict(connection)
    answers = connection.execute(_PRAGMAS.format(pages=pages_max)).fetchall()
    if answers[-2:] != [(PAGE_SIZE,), ("wal",)]:
        raise Corrupt(f"page size and journal mode are {answers[-2:]}, not {PAGE_SIZE} and wal")


def restrict(connection: apsw.Connection) -> None:
    """What no SQL of an object gets round, on whatever file; nothing here reads it."""
    connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
    connection.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
    connection.config(apsw.SQLITE_DBCONFIG_DQS_DML, 0)
    connection.config(apsw.SQLITE_DBCONFIG_DQS_DDL, 0)
    connection.limit(apsw.SQLITE_LIMIT_ATTACHED, 0)
    connection.limit(apsw.SQLITE_LIMIT_LENGTH, VALUE_BYTES_MAX)
    connection.limit(apsw.SQLITE_LIMIT_SQL_LENGTH, SQL_BYTES_MAX)
    connection.limit(apsw.SQLITE_LIMIT_WORKER_THREADS, 0)


@contextmanager
def rebuilding(connection: apsw.Connection, *, exactly: bool) -> Iterator[None]:
    """Rows that were there once come in as they were: no trigger runs a second time.

    `exactly`: no foreign key acts either, and what virtual tables keep is written like any other table.
    """
    changed = {apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER: 0}
    if exactly:
        changed |= {apsw.SQLITE_DBCONFIG_ENABLE_FKEY: 0, apsw.SQLITE_DBCONFIG_DEFENSIVE: 0}
    for setting, value in changed.items():
        connection.config(setting, value)
    try:
        yield
    finally:
        for setting in changed:
            connection.config(setting, 1)
