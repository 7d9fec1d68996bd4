"""`self.sql`: the object's own database, as its methods see it.

Every statement is run to its end before it returns, so nothing of it is open when a call ends. What SQLite throws away
on its own account (`OR ROLLBACK`, a full disk) is never papered over: the call is *lost*, each further statement
repeats the first error, and the transaction of the call fails with it (PROTOCOLS section 6).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextvars import ContextVar
from threading import get_ident
from types import TracebackType
from typing import Any

import apsw

from domicile.context import Row, Statement
from domicile.errors import DatabaseFull, DomicileError, NotServing, SqlError, SqlRefused
from domicile.node.sqlite.database import Database, Params
from domicile.node.sqlite.sql_errors import FOREIGN, is_fatal, translate

_NOBODY, _COROUTINE = 0, -1
_MANY = 1 << 30

_turn: ContextVar[int] = ContextVar("domicile_turn", default=0)


class CallInterrupted(BaseException):
    """The runtime stops the running call: it is out of time. Not an Exception, so that methods do not catch it."""


class SqlApi:
    """The SQL of one object, usable only inside a running call of it.

    `wrote`: a statement that is not read-only ran. `lost`: the error with which the call as a whole has failed.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._thread = _NOBODY
        self._turn = 0
        self._depth = 0
        self._task: asyncio.Task[Any] | None = None
        self._left = _MANY
        self._read_only = False
        self.wrote = False
        self.lost: DomicileError | None = None
        self._cursor = self._fresh_cursor()

    # What methods use.

    def exec(self, sql: str, *params: Any) -> int:
        """Run one or more statements and give the number of rows the last of them changed. Rows are thrown away."""
        if self._thread != get_ident():
            self._admit()
        before = self._database.total_changes()
        self._left = _MANY
        try:
            self._cursor.execute(sql, _bound(params)).fetchall()
        except FOREIGN as error:
            raise self._failed(error) from error
        return self._database.changes() if self._database.total_changes() != before else 0

    def query(self, sql: str, *params: Any) -> list[Row]:
        """Run one statement and give all its rows."""
        if self._thread != get_ident():
            self._admit()
        self._left = 1
        cursor = self._cursor
        try:
            cursor.execute(sql, _bound(params))
            first = cursor.fetchone()
            if first is None:
                return []
            names = [column[0] for column in cursor.description]
            rest = cursor.fetchall()
        except FOREIGN as error:
            raise self._failed(error) from error
        rows = [_row(names, first)]
        rows += [dict(zip(names, row, strict=False)) for row in rest]
        return rows

    def one(self, sql: str, *params: Any) -> Row | None:
        """Run one statement and give its first row, or None. Further rows are not read."""
        if self._thread != get_ident():
            self._admit()
        self._left = 1
        cursor = self._cursor
        try:
            cursor.execute(sql, _bound(params))
            first = cursor.fetchone()
            if first is None:
                return None
            names = [column[0] for column in cursor.description]
            if cursor.fetchone() is not None:
                self._stop_reading()
        except FOREIGN as error:
            raise self._failed(error) from error
        return _row(names, first)

    def batch(self, statements: Sequence[Statement]) -> list[list[Row]]:
        """Run (sql, params) one after the other, all or none, and give the rows of each."""
        with self.tx():
            return [
                self.query(sql, params) if isinstance(params, dict) else self.query(sql, *params)
                for sql, params in statements
            ]

    def tx(self) -> Tx:
        """A part of the call that is undone by itself when its block raises: `with self.sql.tx(): …`. They nest."""
        return Tx(self)

    # What the runtime's own surfaces (kv, alarms) use inside a call.

    def read(self, sql: str, params: Params = ()) -> list[tuple[Any, ...]]:
        """Run internal SQL on behalf of the method, under the same rules as its own."""
        if self._thread != get_ident():
            self._admit()
        if self._database.expired:
            raise CallInterrupted
        try:
            return self._database.read(sql, params)
        except DomicileError as error:
            if self._database.expired or self._database.doomed:
                raise CallInterrupted from error
            if isinstance(error, (DatabaseFull, NotServing)) or not self._database.in_transaction:
                self._lose(error)
            raise

    def write(self, sql: str, params: Params = ()) -> list[tuple[Any, ...]]:
        """As `read`, for what changes rows. Raises SqlRefused in a read-only method."""
        if self._read_only and self._thread != _NOBODY:
            raise _read_only_refusal()
        self.wrote = True
        return self.read(sql, params)

    # What the transaction uses around a call.

    def activate(self, *, read_only: bool, turn: int = 0) -> None:
        """A call begins in this thread; with a `turn`, in whatever task of this context (an `async def`)."""
        self._thread = _COROUTINE if turn else get_ident()
        self._turn = turn
        if turn:
            _turn.set(turn)
        self._read_only = read_only
        self.wrote = False
        self.lost = None

    def deactivate(self, *, cleanly: bool) -> bool:
        """The call's method has ended; nothing of it stays open. False when it left a `tx()` open."""
        self._thread = _NOBODY
        if not cleanly and not self._database.doomed:  # an exception may have struck between two steps of ours
            self._drop_cursor()
        closed = self._depth == 0
        self._depth, self._task = 0, None
        return closed

    def _lose(self, error: DomicileError) -> None:
        self.lost = error
        self._thread = _NOBODY

    def _admit(self) -> None:
        """The slow path of the check that a call runs here."""
        if self.lost is not None:
            raise self.lost
        if self._thread != _COROUTINE:
            raise SqlError("SQL, kv and alarms work only inside a running call of the object, in its thread")
        if _turn.get() != self._turn:
            raise SqlError("this task belongs to an earlier call of the object, which has ended")
        if self._task is not None and self._task is not asyncio.current_task():
            raise SqlError("another task of this call is inside `self.sql.tx()`; await it first")

    def _fresh_cursor(self) -> apsw.Cursor:
        cursor = self._database.cursor()
        cursor.exec_trace = self._trace
        return cursor

    def _trace(self, cursor: apsw.Cursor, _sql: str, _bindings: object) -> bool:
        """Runs before each single statement, prepared ones and those in the middle of a text included."""
        if self._database.expired:
            raise CallInterrupted
        self._left -= 1
        if self._left < 0:
            raise SqlError("one statement at a time here; exec() and batch() take several")
        if not cursor.is_readonly:
            if self._read_only:
                raise _read_only_refusal()
            self.wrote = True
        return True

    def _stop_reading(self) -> None:
        cursor = self._cursor
        try:
            cursor.close()
        except apsw.IncompleteExecutionError as error:
            raise SqlError("one statement at a time here; exec() and batch() take several") from error
        finally:
            self._drop_cursor()

    def _drop_cursor(self) -> None:
        self._cursor.close(True)
        self._cursor = self._fresh_cursor()

    def _failed(self, error: Exception) -> BaseException:
        refusal = self._database.rights.take()
        if self._database.expired or self._database.doomed:
            return CallInterrupted()
        self._drop_cursor()
        told = SqlRefused(refusal) if refusal else translate(error)
        self._database.note(error)
        if is_fatal(error) or not self._database.in_transaction:
            self._lose(told)
        return told


class Tx:
    """One level of `self.sql.tx()`."""

    def __init__(self, sql: SqlApi) -> None:
        self._sql = sql
        self._depth = 0
        self._outer: asyncio.Task[Any] | None = None

    def __enter__(self) -> None:
        sql = self._sql
        if sql._thread != get_ident():
            sql._admit()
        if sql._thread == _COROUTINE:
            self._outer, sql._task = sql._task, asyncio.current_task()
        sql._database.savepoint(sql._depth + 1)
        sql._depth += 1
        self._depth = sql._depth

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        sql = self._sql
        if sql._thread != get_ident() and sql._thread != _COROUTINE:
            return  # the call is lost or over, and with it everything in here
        if sql._depth != self._depth:
            raise SqlError("`self.sql.tx()` blocks must end in the reverse order of their beginning")
        if sql._database.expired or sql._database.doomed:
            pass  # the whole call is about to be rolled back
        elif kind is None:
            sql._database.release(self._depth)
        else:
            sql._database.undo(self._depth)
        sql._depth -= 1
        sql._task = self._outer


def _bound(params: tuple[Any, ...]) -> Any:
    """The values as apsw takes them. NaN is refused: SQLite would store NULL in its place."""
    if not params:
        return params
    first = params[0]
    bound: Any = params
    values: Iterable[Any] = params
    if isinstance(first, dict) and len(params) == 1:
        bound, values = first, first.values()
    for value in values:
        if value.__class__ is float and value != value:
            raise SqlError("NaN cannot be stored: SQLite would make it NULL")
    return bound


def _row(names: list[str], values: tuple[Any, ...]) -> Row:
    row = dict(zip(names, values, strict=False))
    if len(row) != len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise SqlError(f"several columns are named {', '.join(twice)}; give them names of their own with AS")
    return row


def _read_only_refusal() -> SqlRefused:
    return SqlRefused("this method is declared @domicile.read and may not write; declare it as an ordinary method")
