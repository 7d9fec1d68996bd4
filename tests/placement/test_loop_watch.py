"""A loop that stands still is noticed from another thread, on a clock that only the test moves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from domicile.placement.loop_watch import LoopWatch

pytestmark = pytest.mark.anyio

SECS = 15.0


class Watched:
    """A loop that turns when it is told to, and what was told of it."""

    def __init__(self, clock: Any, secs: float) -> None:
        self.clock = clock
        self.secs = secs
        self.told: list[str] = []
        self.loop = asyncio.new_event_loop()
        self.watch: LoopWatch

    async def turn(self) -> None:
        await asyncio.to_thread(self.loop.run_until_complete, asyncio.sleep(0))

    async def build(self) -> None:
        self.watch = LoopWatch(self.secs, self.clock, self.told.append)


@asynccontextmanager
async def watched(clock: Any, secs: float = SECS) -> AsyncIterator[Watched]:
    """Built in a thread of its own, watched from the test's."""
    made = Watched(clock, secs)
    await asyncio.to_thread(made.loop.run_until_complete, made.build())
    task = asyncio.ensure_future(made.watch.run())
    await clock.advance(0)
    try:
        yield made
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        made.loop.close()


async def test_a_loop_that_turns_is_left_alone(clock: Any) -> None:
    """However long it lasts, and however late each turn is, short of the setting."""
    async with watched(clock) as one:
        for _ in range(10):
            await one.turn()
            await clock.advance(SECS - 2)
        assert one.told == []


async def test_a_loop_that_stands_still_is_told_of_once(clock: Any) -> None:
    """Field case 45: renewals from a healthy thread do not vouch for a loop that answers nobody."""
    async with watched(clock) as one:
        await one.turn()
        await clock.advance(SECS - 1)
        assert one.told == []
        await clock.advance(3)
        (told,) = one.told
        assert "has not turned for 15.0 s" in told
        await clock.advance(10 * SECS)
        assert len(one.told) == 1


async def test_a_process_that_was_stopped_is_not_a_loop_that_stands_still(clock: Any) -> None:
    """What the watching thread was asleep for, it cannot blame on the loop: a machine that is woken goes on."""
    async with watched(clock) as one:
        for _ in range(5):
            await one.turn()
            clock.jump(100 * SECS)
            await clock.advance(2)
        assert one.told == []


async def test_none_is_told_of_where_the_setting_says_never(clock: Any) -> None:
    """0 leaves a blocked loop as it is."""
    async with watched(clock, 0.0) as one:
        await clock.advance(100 * SECS)
        assert one.told == []
