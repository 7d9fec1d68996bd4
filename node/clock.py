"""Time, passed in. The simulation has a clock of its own; nothing else in the node reads one."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """Two readings and one wait."""

    def monotonic(self) -> float:
        """Seconds; runs on through suspension of the machine (CLOCK_BOOTTIME)."""
        ...

    def wall_ms(self) -> int:
        """Milliseconds since 1970, UTC."""
        ...

    async def sleep(self, secs: float) -> None: ...


class SystemClock:
    """The machine's clocks."""

    def monotonic(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    async def sleep(self, secs: float) -> None:
        await asyncio.sleep(secs)
