"""A limit on bytes a second that many copies share."""

from __future__ import annotations

from domicile.node.clock import Clock

MIB = 1 << 20


class Pace:
    """Whoever is about to move bytes waits for its turn; 0 MiB a second is no limit."""

    def __init__(self, clock: Clock, mb_per_sec: float) -> None:
        """Raises ValueError below 0."""
        if mb_per_sec < 0:
            raise ValueError("a rate is no less than 0 MiB a second")
        self._clock = clock
        self._bytes_per_sec = mb_per_sec * MIB
        self._free_at = clock.monotonic()

    async def take(self, size: int) -> None:
        """Returns when `size` bytes may move."""
        if not self._bytes_per_sec:
            return
        begins = max(self._free_at, self._clock.monotonic())
        self._free_at = begins + size / self._bytes_per_sec
        if (wait := begins - self._clock.monotonic()) > 0:
            await self._clock.sleep(wait)
