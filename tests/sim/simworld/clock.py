"""The clock of one machine of the world: a Clock over virtual time, with an error of its own and suspension."""

from __future__ import annotations

import asyncio

from simworld.loop import SimLoop

WALL_START_MS = 1_800_000_000_000


class SimClock:
    """`monotonic` runs on through suspension, as CLOCK_BOOTTIME does; `skew_ms` moves the wall clock only."""

    def __init__(self, loop: SimLoop, *, skew_ms: int = 0, offset_secs: float = 1000.0) -> None:
        self._loop = loop
        self.skew_ms = skew_ms
        self.offset_secs = offset_secs

    def monotonic(self) -> float:
        return self._loop.time() + self.offset_secs

    def wall_ms(self) -> int:
        return WALL_START_MS + round(self.monotonic() * 1000) + self.skew_ms

    async def sleep(self, secs: float) -> None:
        await asyncio.sleep(secs)

    def jump(self, secs: float) -> None:
        """The machine was suspended for `secs`: its readings went on, its timers did not."""
        self.offset_secs += secs
