"""Trying again what may be tried again: exponential backoff with full jitter, bounded by time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from domicile.node.clock import Clock
from domicile.node.errors import BlobUnavailable

T = TypeVar("T")


class Again(Exception):
    """Raised by an attempt that did nothing and may be repeated, at least `after` seconds later."""

    def __init__(self, detail: str, after: float = 0.0) -> None:
        super().__init__(detail)
        self.after = after


@dataclass(frozen=True, slots=True)
class Retries:
    """How long, and how far apart. `jitter` gives numbers in [0, 1); all other figures are seconds."""

    clock: Clock
    jitter: Callable[[], float]
    first: float = 0.05
    longest: float = 5.0
    total: float = 20.0

    async def run(self, what: str, attempt: Callable[[], Awaitable[T]]) -> T:
        """The attempt's result. Raises BlobUnavailable when the time is over, or too short for the next wait."""
        give_up = self.clock.monotonic() + self.total
        ceiling = self.first
        while True:
            try:
                return await attempt()
            except Again as again:
                wait = max(again.after, self.jitter() * ceiling)
                if self.clock.monotonic() + wait >= give_up:
                    raise BlobUnavailable(f"{again} (tried for {self.total:g} s)") from again
            ceiling = min(2 * ceiling, self.longest)
            await self.clock.sleep(wait)
