"""The right to serve, as a deadline (PROTOCOLS section 3).

Every committed renewal gives it anew, measured from before the renewal was sent, on a clock that runs through
suspension. Whatever was read from an object is checked against it on the way out. A heartbeat that did not tick for a
while (a stopped process, a machine asleep) takes the right away at once, until a renewal sent after that commits.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from domicile.errors import NotServing

TICKS_PER_BEAT = 5


class Clock(Protocol):
    """Time, passed in."""

    def monotonic(self) -> float:
        """Seconds, through suspension of the machine (CLOCK_BOOTTIME)."""
        ...

    def wall_ms(self) -> int:
        """Milliseconds since 1970."""
        ...

    def sleep(self, secs: float) -> Awaitable[None]: ...


@dataclass(frozen=True, slots=True)
class Timing:
    """The settings NODE_TTL_SECS, NODE_HEARTBEAT_SECS, NODE_RENEW_TIMEOUT_SECS, NODE_ADMISSION_SECS and
    NODE_FENCE_MARGIN_SECS, in seconds.
    """

    ttl: float = 45.0
    heartbeat: float = 5.0
    timeout: float = 3.0
    admission: float = 10.0
    margin: float = 5.0

    @property
    def fence(self) -> float:
        """How long a node's row must have stood unchanged before its deadline has passed for certain."""
        return self.admission + self.margin

    @property
    def tick(self) -> float:
        return self.heartbeat / TICKS_PER_BEAT

    def check(self) -> None:
        """Raises ValueError, naming the settings, when a relation of section 3 does not hold."""
        if min(self.ttl, self.heartbeat, self.timeout, self.admission, self.margin) <= 0:
            raise ValueError("the NODE_*_SECS settings are all greater than 0")
        if self.heartbeat + self.timeout >= self.admission:
            raise ValueError(
                f"NODE_HEARTBEAT_SECS ({self.heartbeat}) + NODE_RENEW_TIMEOUT_SECS ({self.timeout}) must be less than"
                f" NODE_ADMISSION_SECS ({self.admission}): one missed beat must not end the right to serve"
            )
        if self.fence > self.ttl:
            raise ValueError(
                f"NODE_ADMISSION_SECS ({self.admission}) + NODE_FENCE_MARGIN_SECS ({self.margin}) must not exceed"
                f" NODE_TTL_SECS ({self.ttl}): a row must not vanish while its node may serve"
            )


class Admission:
    """The deadline of one node id. Written by the heartbeat, read by any thread. Not admitted until first renewed."""

    def __init__(self, timing: Timing, monotonic: Callable[[], float]) -> None:
        self._timing = timing
        self._monotonic = monotonic
        self._lock = threading.Lock()
        now = monotonic()
        self._deadline = now
        self._ticked = now
        self._renewals_from = now
        self._ended = False

    def renewed(self, sent: float) -> None:
        """A renewal that was sent after `sent` has committed."""
        with self._lock:
            if sent >= self._renewals_from:
                self._deadline = max(self._deadline, sent + self._timing.admission)

    def tick(self) -> bool:
        """By the heartbeat, `TICKS_PER_BEAT` times a beat. True after a gap of more than a beat: renew at once."""
        with self._lock:
            now = self._monotonic()
            gap = now - self._ticked > self._timing.heartbeat
            if gap:
                self._deadline = self._renewals_from = now
            self._ticked = now
            return gap

    def end(self) -> None:
        """The deadline is now, for good."""
        with self._lock:
            self._ended = True
            self._deadline = min(self._deadline, self._monotonic())

    def remaining(self) -> float:
        """Seconds left; 0 or less when nothing may leave."""
        with self._lock:
            now = self._monotonic()
            if self._ended or now - self._ticked > self._timing.heartbeat:
                return 0.0
            return self._deadline - now

    def check(self) -> None:
        """Raises NotServing past the deadline."""
        if self.remaining() <= 0:
            raise NotServing("this node has not renewed its right to serve in time")
