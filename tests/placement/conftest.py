"""A placement store in memory, a clock that only tests move, and the rows most tests begin with."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import pytest

from domicile.placement.embedded import EmbeddedStore
from domicile.placement.keys import Keys
from domicile.placement.store import (
    Committed,
    Condition,
    Conflict,
    Grant,
    Mutation,
    StoreUnavailable,
)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class FakeClock:
    """Stands still until `advance`; whoever sleeps wakes in order of time."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._count = 0

    def monotonic(self) -> float:
        return self.now

    def wall_ms(self) -> int:
        return 1_700_000_000_000 + int(self.now * 1000)

    async def sleep(self, secs: float) -> None:
        self._count += 1
        woken = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self.now + max(secs, 0.0), self._count, woken))
        await woken

    async def advance(self, secs: float) -> None:
        """Time passes in the order of what is due; between two sleepers everything that can run does."""
        end = self.now + secs
        await settle()
        while self._sleepers and self._sleepers[0][0] <= end:
            due, _, woken = heapq.heappop(self._sleepers)
            self.now = max(self.now, due)
            if not woken.done():
                woken.set_result(None)
            await settle()
        self.now = end
        await settle()

    def suspend(self, secs: float) -> None:
        """The machine sleeps: its boot clock runs on, timers do not."""
        self.now += secs
        self._sleepers = [(due + secs, order, woken) for due, order, woken in self._sleepers]

    def jump(self, secs: float) -> None:
        """Time passes with nobody running: the process was stopped."""
        self.now += secs


async def settle() -> None:
    """Until whatever can run without time passing has run."""
    for _ in range(30):
        await asyncio.sleep(0)


class FaultyStore(EmbeddedStore):
    """Writes can fail before or after they happen, as answers are lost."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        super().__init__(":memory:", monotonic, inline=True)
        self.down = False
        self.lose_answers = 0
        self.before_write: Callable[[], Awaitable[object]] | None = None
        self.writes = 0

    async def write(
        self, conditions: Sequence[Condition], mutations: Sequence[Mutation], grant: Grant | None = None
    ) -> Committed | Conflict:
        self.writes += 1
        if self.before_write is not None:
            hook, self.before_write = self.before_write, None
            await hook()
        if self.down:
            raise StoreUnavailable("cut off", maybe=True)
        outcome = await super().write(conditions, mutations, grant)
        if self.lose_answers:
            self.lose_answers -= 1
            raise StoreUnavailable("the answer was lost", maybe=True)
        return outcome


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def store(clock: FakeClock) -> AsyncIterator[FaultyStore]:
    store = FaultyStore(clock.monotonic)
    yield store
    await store.close()


@pytest.fixture
def keys() -> Keys:
    return Keys("c", "r")
