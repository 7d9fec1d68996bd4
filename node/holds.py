"""Objects that nobody's call may wake here for a while: they were just sent elsewhere (PROTOCOLS section 10)."""

from __future__ import annotations

from domicile.errors import DomicileError
from domicile.node.clock import Clock


class Holds:
    """By object id: until when, and with what callers are refused."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._held: dict[str, tuple[float, DomicileError]] = {}

    def hold(self, object_id: str, refusal: DomicileError, secs: float) -> None:
        """For so long nobody's call wakes the object here."""
        now = self._clock.monotonic()
        self._held = {held: (until, error) for held, (until, error) in self._held.items() if until > now}
        self._held[object_id] = (now + secs, refusal)

    def check(self, object_id: str) -> None:
        """Raises the refusal."""
        held = self._held.get(object_id) if self._held else None
        if held is not None and held[0] > self._clock.monotonic():
            raise held[1]
