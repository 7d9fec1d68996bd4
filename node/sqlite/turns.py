"""A turn: the stretch of one call in which its method, user code, runs inside the transaction.

What ends a turn is decided here: an answer, an error of its own, or the runtime. The thread that runs it may be hit
by an injected exception at any moment of the turn, and at no other.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import TypeVar

from domicile.errors import CallTimeout, DomicileError, SqlError
from domicile.node.errors import NodeError
from domicile.node.method_errors import method_failed
from domicile.node.sqlite.database import Database
from domicile.node.sqlite.sql import CallInterrupted, SqlApi

T = TypeVar("T")


class NeedsAlone(BaseException):
    """A call that shares a transaction wants to reach outside: it is undone and runs again alone."""


class Turns:
    """Runs user code, one turn after the other.

    `turn` numbers the one that runs (0: none). `sharing` is True while it shares its transaction with other calls,
    `needs_alone` once it asked not to. `outside` counts calls to other objects that may have run: no rollback of this
    object takes those back.
    """

    def __init__(self, database: Database, sql: SqlApi) -> None:
        self._database = database
        self._sql = sql
        self._lock = threading.Lock()
        self._count = 0
        self._timed_out = False
        self.turn = 0
        self.sharing = self.needs_alone = False
        self.outside = self._outside_before = 0

    def expire(self, turn: int, inject: Callable[[], object] | None = None) -> bool:
        """Stop `turn`, which is out of time: interrupt its SQL, and `inject` (an exception, a cancellation).

        From any thread. Does nothing and gives False once that turn has ended, so it can be repeated and never hits
        the COMMIT or a later call.
        """
        with self._lock:
            if turn == 0 or self.turn != turn:
                return False
            self._database.expired = True
            self._database.interrupt()
            if inject is not None:
                inject()
            return True

    def require_alone(self) -> None:
        """Called by what reaches outside the object. Raises NeedsAlone when the running call shares its transaction:
        the call is undone and runs again alone, also if its method swallows this."""
        if self.sharing:
            self.needs_alone = True
            raise NeedsAlone

    @property
    def reached_outside(self) -> bool:
        """Whether the last turn called another object, and that may have run."""
        return self.outside != self._outside_before

    def call(self, run: Callable[[], T], *, read_only: bool) -> tuple[T | None, DomicileError | None]:
        """Run user code in this thread, and give its result or how it failed. Raises NodeError only."""
        caught: BaseException | None = None
        answer: T | None = None
        try:
            answer = self._run_turn(run, read_only)
        except BaseException as error:  # noqa: BLE001  user code may raise anything, and must not end the node
            caught = error
            self._end_turn_for_sure()
        return self._judged(answer, caught)

    def _run_turn(self, run: Callable[[], T], read_only: bool) -> T:
        # A frame of its own: an exception injected from outside can skip the handlers of the frame it hits, and is
        # always caught by those of its caller.
        self._begin_turn()
        self._sql.activate(read_only=read_only)
        answer = run()
        self._end_turn()
        return answer

    async def call_async(
        self, run: Callable[[], Awaitable[T]], *, read_only: bool
    ) -> tuple[T | None, DomicileError | None]:
        """As `call`, for an `async def`. Raises CancelledError when its task is cancelled by others than `expire`."""
        caught: BaseException | None = None
        answer: T | None = None
        self._begin_turn()
        self._sql.activate(read_only=read_only, turn=self.turn)
        try:
            answer = await run()
        except BaseException as error:  # noqa: BLE001  as in call
            caught = error
        self._end_turn()
        if isinstance(caught, asyncio.CancelledError):
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                if not self._timed_out:
                    self._sql.deactivate(cleanly=False)
                    raise caught
                task.uncancel()
        return self._judged(answer, caught)

    def _judged(self, answer: T | None, caught: BaseException | None) -> tuple[T | None, DomicileError | None]:
        """What the call's end means. The reasons that undo it come before what its method made of them."""
        whole = self._sql.deactivate(cleanly=caught is None and not self._timed_out)
        if isinstance(caught, NodeError):
            raise caught
        if self._timed_out or isinstance(caught, CallInterrupted):
            return None, CallTimeout()
        if self._sql.lost is not None:
            return None, self._sql.lost
        if isinstance(caught, DomicileError):
            return None, caught
        if caught is not None:
            return None, method_failed(caught)
        if not whole:
            return None, SqlError("the call ended inside `self.sql.tx()`; leave the block before you return")
        return answer, None

    # Turns. No call and no loop inside these `with` blocks: that is where an injected exception could strike and
    # leave the lock held.

    def _begin_turn(self) -> None:
        with self._lock:
            self._count += 1
            self.turn = self._count
            self._database.expired = False
            self._timed_out = False
            self._outside_before = self.outside

    def _end_turn(self) -> None:
        with self._lock:
            self.turn = 0
            self._timed_out = self._database.expired
            self._database.expired = False

    def _end_turn_for_sure(self) -> None:
        while self.turn:
            try:
                self._end_turn()
            except CallInterrupted:
                continue
