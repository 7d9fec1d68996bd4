"""Whether the node's event loop still turns, seen from the heartbeat's thread (PROTOCOLS section 3).

Renewals run beside the loop, so that a busy one costs no right to serve. A loop that is blocked for good would keep its
leases by them, answer nobody, and be nobody's to evict. It is told of, to whoever ends the process.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from collections.abc import Callable

from domicile.placement.admission import Clock

LOOK_SECS = 1.0
LOOKS_MIN = 5
FRAMES = 3


class LoopWatch:
    """Of the loop it is built on. `blocked` is told once, from the watching thread, when it has not turned for `secs`;
    0: never.
    """

    def __init__(self, secs: float, clock: Clock, blocked: Callable[[str], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._secs = secs
        self._every = min(LOOK_SECS, secs / LOOKS_MIN)
        self._clock = clock
        self._blocked = blocked
        self._turned = True

    async def run(self) -> None:
        """On the watching thread's loop, until cancelled, or the loop is closed."""
        still = 0.0
        while self._secs and not self._loop.is_closed():
            if self._turned:
                self._turned, still = False, 0.0
                self._loop.call_soon_threadsafe(self._turn)
            before = self._clock.monotonic()
            await self._clock.sleep(self._every)
            # What this thread has not seen either, the process was stopped for, or waited for the interpreter lock.
            still += min(self._clock.monotonic() - before, 2 * self._every)
            if not self._turned and still >= self._secs:
                self._blocked(f"the event loop has not turned for {still:.1f} s; it is in {self._where()}")
                return

    def _turn(self) -> None:
        self._turned = True

    def _where(self) -> str:
        """What the loop's thread is in, innermost last."""
        frame = sys._current_frames().get(self._thread)
        if frame is None:
            return "no Python code"
        stack = traceback.extract_stack(frame)[-FRAMES:]
        return ", ".join(f"{entry.filename}:{entry.lineno} {entry.name}" for entry in stack)
