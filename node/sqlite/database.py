"""The connection of one residency to its object's file, and the only one that writes or checkpoints it.

It knows SQLite and nothing of calls, flights or replicas. What SQLite must never do by itself is taken from it here:
it does not checkpoint, does not commit unless `commit` asks for it, and shows user SQL nothing of the runtime's.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import apsw

from domicile.node.errors import Corrupt, Ended
from domicile.node.sqlite import live_bytes as sqlite_bytes
from domicile.node.sqlite.authorizer import Authorizer
from domicile.node.sqlite.birth import PAGE_SIZE
from domicile.node.sqlite.live_bytes import StorageFailed as StorageFailed
from domicile.node.sqlite.setup import PROGRESS_STEPS, STATEMENTS_CACHED, configure, rebuilding
from domicile.node.sqlite.sql_errors import is_broken, translate, unopened

Value = str | int | float | bytes | None
Params = Sequence[Value] | dict[str, Value]

WAL_HEADER, FRAME = 32, 24 + PAGE_SIZE
RESERVE_PAGES = 256  # beyond the cap, for the runtime's own rows: a full object must still answer a delete


class Database:
    """One open object.

    `length` is the count of committed bytes in the WAL: 0, or 32 + n · 4120. Used by one thread at a time;
    `interrupt`, `doom` and `close` from any.
    """

    def __init__(self, connection: apsw.Connection, mark: str, pages_max: int) -> None:
        """Use `open`."""
        self._connection = connection
        self._inner = connection.cursor()
        self._mark = f"/*{mark}*/"
        self._begin, self._commit, self._rollback = (
            self._mark + verb for verb in ("BEGIN IMMEDIATE", "COMMIT", "ROLLBACK")
        )
        self._pages_max = pages_max
        self._door = threading.Lock()  # held while COMMIT or close is inside SQLite
        self._committing = self._doomed = self._closed = False
        self.length = 0
        self.rights = Authorizer()
        self.expired = False
        self.sick: str | None = None

    @classmethod
    def open(cls, path: str, *, vfs: str | None, bytes_max: int, laid: int, mark: str) -> Database:
        """Open a file that exists and whose WAL the caller has cut to exactly `laid` bytes.

        `mark` is text of this process that no user can guess: it sets internal statements apart. Raises Corrupt when
        SQLite recovers another length than `laid` (PROTOCOLS section 5, takeover step 5) or this is no file of ours,
        StorageFailed when it cannot be opened, what keeps a page of it away (BlobMissing, BlobUnavailable).
        """
        if not mark.isalnum():
            raise ValueError("the mark must be letters and digits")
        connection: apsw.Connection | None = None
        try:
            flags = apsw.SQLITE_OPEN_READWRITE
            connection = apsw.Connection(path, flags=flags, vfs=vfs, statementcachesize=STATEMENTS_CACHED)
            configure(connection, bytes_max // PAGE_SIZE)
            database = cls(connection, mark, bytes_max // PAGE_SIZE)
            database._take_over()
            database._verify(path, laid)
        except apsw.Error as error:
            _discard(connection)
            raise unopened(path, error) from error
        except Corrupt:
            _discard(connection)
            raise
        return database

    def _take_over(self) -> None:
        connection = self._connection
        # Autocheckpoint and the WAL hook share one slot: the hook has to come last.
        connection.wal_autocheckpoint(0)
        connection.set_wal_hook(self._on_commit)
        connection.set_commit_hook(self._may_not_commit)
        connection.set_progress_handler(self._is_expired, PROGRESS_STEPS)
        connection.authorizer = self.rights

    def _verify(self, path: str, laid: int) -> None:
        frames = sqlite_bytes.log_frames(self._connection)
        self.length = WAL_HEADER + frames * FRAME if frames else 0
        if self.length != laid:
            raise Corrupt(f"{path}: SQLite recovered {self.length} bytes of the log, not {laid}")

    # Hooks. They run inside SQLite: an attribute, no more, and never an exception.

    def _on_commit(self, _connection: apsw.Connection, _name: str, frames: int) -> int:
        self.length = WAL_HEADER + frames * FRAME
        return 0

    def _may_not_commit(self) -> bool:
        return not self._committing

    def _is_expired(self) -> bool:
        return self.expired

    # The transaction.

    def begin(self) -> None:
        """BEGIN IMMEDIATE. Raises Ended when doomed."""
        if self._doomed:
            raise Ended("the object's connection was taken away")
        self._verb(self._begin)

    def commit(self) -> None:
        """COMMIT; may leave the transaction open when it fails. Raises Ended, SqlError (deferred keys), NotServing."""
        with self._door:
            if self._doomed:
                raise Ended("the object's connection was taken away before the commit")
            self._committing = True
            try:
                self._verb(self._commit)
            finally:
                self._committing = False

    def rollback(self) -> None:
        """ROLLBACK, if SQLite has not done so already."""
        if self.in_transaction:
            self._verb(self._rollback)

    def savepoint(self, depth: int) -> None:
        self._verb(f"{self._mark}SAVEPOINT d{depth}")

    def release(self, depth: int) -> None:
        """Keep what was done since the savepoint."""
        self._verb(f"{self._mark}RELEASE d{depth}")

    def undo(self, depth: int) -> None:
        """Back to the savepoint, which goes as well: ROLLBACK TO alone would leave it open for ever."""
        self._verb(f"{self._mark}ROLLBACK TO d{depth}")
        self._verb(f"{self._mark}RELEASE d{depth}")

    @property
    def in_transaction(self) -> bool:
        return not self._closed and self._connection.in_transaction

    @property
    def doomed(self) -> bool:
        """No commit can begin through this connection any more."""
        return self._doomed

    def _verb(self, text: str) -> None:
        self.rights.internal = True
        try:
            self._inner.execute(text)
        except apsw.Error as error:
            raise self._translated(error) from error
        finally:
            self.rights.internal = False

    def rebuilding(self, *, exactly: bool) -> AbstractContextManager[None]:
        """Outside of transactions, between calls: see `sqlite_setup.rebuilding`."""
        return rebuilding(self._connection, exactly=exactly)

    # Statements.

    def read(self, sql: str, params: Params = ()) -> list[tuple[Any, ...]]:
        """Run internal SQL and give its rows. Raises SqlError, NotServing."""
        return self.internal(sql, params)

    def write(self, sql: str, params: Params = ()) -> list[tuple[Any, ...]]:
        """The same for the runtime's own rows, which may go a little past the size cap. Raises DatabaseFull too."""
        return self.internal(sql, params, reserve=True)

    def internal(self, sql: str, params: Params, *, reserve: bool = False) -> list[tuple[Any, ...]]:
        """Run internal SQL; `reserve` as in `write`."""
        try:
            return self._internal(sql, params)
        except apsw.FullError as error:
            if not (reserve and self.in_transaction):
                raise self._translated(error) from error
        except apsw.Error as error:
            raise self._translated(error) from error
        try:
            self._internal(f"PRAGMA max_page_count={self._pages_max + RESERVE_PAGES}")
            return self._internal(sql, params)
        except apsw.Error as error:
            raise self._translated(error) from error
        finally:
            self._internal(f"PRAGMA max_page_count={self._pages_max}")

    def _internal(self, sql: str, params: Params = ()) -> list[tuple[Any, ...]]:
        self.rights.internal = True
        try:
            return self._inner.execute(self._mark + sql, params).fetchall()
        finally:
            self.rights.internal = False

    def cursor(self) -> apsw.Cursor:
        """A cursor for user SQL; whoever takes it leaves nothing open between calls."""
        return self._connection.cursor()

    def changes(self) -> int:
        """Rows changed by the last INSERT, UPDATE or DELETE."""
        return self._connection.changes()

    def total_changes(self) -> int:
        return self._connection.total_changes()

    def _translated(self, error: Exception) -> Exception:
        self.note(error)
        return translate(error)

    def note(self, error: BaseException) -> None:
        """Remember an error of the disk or the file in `sick`: the residency should not go on."""
        if is_broken(error):
            self.sick = self.sick or str(error)

    # The bytes.

    def read_log(self, start: int, end: int) -> bytes:
        """Bytes [start, end) of the WAL, `end` at most `length`. Raises Corrupt, StorageFailed."""
        return sqlite_bytes.read_log(self._connection, start, end)

    def base_size(self) -> int:
        """Bytes of the base file, as its header counts them. Raises Corrupt, StorageFailed."""
        return sqlite_bytes.base_size(self._connection)

    def read_base(self, offset: int, length: int) -> bytes:
        """Up to `length` bytes of the base file from `offset`; fewer at its end. Raises Corrupt, StorageFailed."""
        return sqlite_bytes.read_base(self._connection, offset, length)

    def checkpoint(self) -> bool:
        """Fold the log into the base and empty it (TRUNCATE, unsynced). False, and nothing lost, when it is busy.

        The mailbox is stopped and everything shipped: the next commit starts a new log. Raises StorageFailed.
        """
        try:
            folded = sqlite_bytes.fold(self._connection)
        except apsw.Error as error:
            self.note(error)
            raise StorageFailed(f"checkpoint: {error}") from error
        if folded:
            self.length = 0
        return folded

    # Ending it, and the rest that other threads may do.

    def interrupt(self) -> None:
        """Stop the statement that runs, from any thread. Never a COMMIT, and nothing when none runs."""
        if self._door.acquire(blocking=False):
            try:
                if not self._closed:
                    self._connection.interrupt()
            finally:
                self._door.release()

    def doom(self) -> bool:
        """No commit begins through this connection any more, in whatever thread.

        False when one is being written at this moment: whether it lasted, `length` says once `close` has succeeded.
        """
        self._doomed = True
        free = self._door.acquire(blocking=False)
        if free:
            self._door.release()
        return free

    def close(self) -> bool:
        """Doom, interrupt and close; an open transaction is rolled back, base and WAL stay as they are.

        False while another thread is inside SQLite: it can commit no more; try again once it has returned.
        """
        self.doom()
        self.interrupt()
        if not self._door.acquire(blocking=False):
            return False
        try:
            self._connection.close(True)
            self._closed = True
        except apsw.ThreadingViolationError:
            return False
        finally:
            self._door.release()
        return True

    def release_memory(self) -> None:
        """Give unused page-cache memory back, for an object that goes quiet."""
        self._connection.release_memory()

    @property
    def is_full(self) -> bool:
        """No free page is left below the size cap."""
        (count,), (free,) = (self.read(f"PRAGMA {name}")[0] for name in ("page_count", "freelist_count"))
        return bool(count >= self._pages_max and not free)


def _discard(connection: apsw.Connection | None) -> None:
    if connection is not None:
        connection.close(True)
