"""One bounded queue and one runner per residency: the single writer (PROTOCOLS section 6).

Calls run in arrival order. `MAILBOX` of them (128) wait inside; a caller beyond waits outside in the same order and is
dropped by nothing but its own deadline. Calls that are waiting anyway are handed to the runner together, so that they
may share one transaction. Between two rounds whoever asked for the object alone (rotation, release, delete, a chunk
read) has it alone, and the pump has its turn.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Generic, Protocol, TypeVar

from domicile.errors import DomicileError, Overloaded
from domicile.node.errors import Ended

ROUND_CALLS_MAX = 32
WAITING_MAX = 10_000


class Entry(Protocol):
    """A waiting call as the mailbox sees it."""

    deadline: float
    shares: bool

    def refuse(self, error: DomicileError | Ended) -> None:
        """Answer the caller without running."""
        ...


E = TypeVar("E", bound=Entry)


class Mailbox(Generic[E]):
    """`run` executes one round, `pump` is given a turn after each; both are the residency's."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        bound: int,
        run: Callable[[list[E]], Awaitable[None]],
        pump: Callable[[], Awaitable[None]],
    ) -> None:
        self._loop = loop
        self._bound = bound
        self._run = run
        self._pump = pump
        self._waiting: deque[E] = deque()
        self._alone: deque[asyncio.Future[asyncio.Future[None]]] = deque()
        self._wake: asyncio.Future[None] | None = None
        self._pump_due = False
        self._closed: DomicileError | Ended | None = None
        self.idle = True
        self._over = False
        self.on_broken: Callable[[BaseException], None] | None = None
        self._task = loop.create_task(self._drain())
        self._task.add_done_callback(self._ended)

    @property
    def depth(self) -> int:
        """Calls waiting inside, never above the bound."""
        return min(len(self._waiting), self._bound)

    @property
    def waiting(self) -> int:
        """Calls waiting inside and outside."""
        return len(self._waiting)

    def put(self, entry: E) -> None:
        """Queue a call. Refused at once when the mailbox is closed or ten thousand wait."""
        if self._closed is not None:
            entry.refuse(self._closed)
        elif len(self._waiting) >= WAITING_MAX:
            entry.refuse(Overloaded(f"{WAITING_MAX} calls are already waiting for this object"))
        else:
            self._waiting.append(entry)
            self._nudge()

    def pump_soon(self) -> None:
        """Give the pump a turn although no call came."""
        self._pump_due = True
        self._nudge()

    def expire(self, now: float) -> None:
        """Refuse waiting calls whose deadline has passed."""
        if any(entry.deadline <= now for entry in self._waiting):
            late = [entry for entry in self._waiting if entry.deadline <= now]
            self._waiting = deque(entry for entry in self._waiting if entry.deadline > now)
            for entry in late:
                entry.refuse(Overloaded("the call's deadline passed while it waited for its turn"))

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """The object to oneself: no call runs inside. Later calls wait. Raises Ended when the residency is over."""
        if self._over:
            raise Ended("the residency ended")
        turn: asyncio.Future[asyncio.Future[None]] = self._loop.create_future()
        self._alone.append(turn)
        self._nudge()
        try:
            handed = await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # the turn came in the same moment
                _give_back(turn.result())
            raise
        try:
            yield
        finally:
            _give_back(handed)

    def close(self, error: DomicileError | Ended) -> None:
        """Refuse what waits and what comes with `error`; what runs finishes."""
        self._closed = error
        waiting, self._waiting = self._waiting, deque()
        for entry in waiting:
            entry.refuse(error)
        self._nudge()

    def stop(self) -> None:
        """The residency is over: the runner ends, and nobody gets the object any more."""
        self._over = True
        self._task.cancel()
        while self._alone:
            turn = self._alone.popleft()
            if not turn.done():
                turn.set_exception(Ended("the residency ended"))

    def _ended(self, task: asyncio.Task[None]) -> None:
        """The runner ends by `stop` alone; whatever else ends it (the pump failed) would leave callers waiting."""
        if not task.cancelled() and (error := task.exception()) is not None and self.on_broken is not None:
            self.on_broken(error)

    def _nudge(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def _drain(self) -> None:
        while True:
            if self._alone:
                await self._step_aside(self._alone.popleft())
            if self._waiting:
                self.idle = False
                await self._run(self._take())
                self._pump_due = True
            if self._pump_due:
                self._pump_due = self.idle = False
                await self._pump()
            if not (self._waiting or self._alone or self._pump_due):
                self.idle = True
                self._wake = self._loop.create_future()
                await self._wake
                self._wake = None
            else:
                await asyncio.sleep(0)

    async def _step_aside(self, turn: asyncio.Future[asyncio.Future[None]]) -> None:
        if turn.cancelled():
            return
        handed = self._loop.create_future()
        turn.set_result(handed)
        self.idle = False
        await handed

    def _take(self) -> list[E]:
        first = self._waiting.popleft()
        round_ = [first]
        if first.shares:
            while self._waiting and self._waiting[0].shares and len(round_) < ROUND_CALLS_MAX:
                round_.append(self._waiting.popleft())
        return round_


def _give_back(handed: asyncio.Future[None]) -> None:
    """The turn is over; the runner that handed it out may have been cancelled meanwhile, and its future with it."""
    if not handed.done():
        handed.set_result(None)
