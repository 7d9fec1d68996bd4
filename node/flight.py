"""Flights: what was committed on its way to being durable, and the callers who wait for that (PROTOCOLS section 7).

A residency counts everything it commits by one growing number, the *mark*: the bytes of write-ahead log written since
it began, across rotations. A **flight** is one round of shipping everything up to a mark; a **ticket** is one caller's
claim on the flight that covers what its answer saw. An answer that wrote leaves when its ticket resolves. So does every
other answer that looked at the database, which costs nothing while nothing is dirty or flying: nobody outside learns of
state that a crash could take back.

Before a residency is *confirmed* (section 5, step 6) even the laid state is one that a second crash could take back;
then `landed` is below every mark and nothing leaves at all.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

UNCONFIRMED = -1


class Sink(Protocol):
    """A leg of a flight: carries the log somewhere and reports to `Flights.land`. The store is one, peers the other."""

    def committed(self, *, awaited: bool) -> None:
        """There is more to carry; `awaited` when a caller waits for it."""
        ...


class Ticket(NamedTuple):
    """A caller's wait: resolves True when landed, False when `expires` passed first."""

    mark: int
    expires: float
    landed: asyncio.Future[bool]


class Flights:
    """The tickets of one residency. `land` is called by the legs, everything else by the call path."""

    def __init__(self, loop: asyncio.AbstractEventLoop, behind_max: int) -> None:
        self._loop = loop
        self._behind_max = behind_max
        self._tickets: deque[Ticket] = deque()
        self._sinks: list[Sink] = []
        self._broken: Exception | None = None
        self.released: Callable[[int], None] = lambda count: None
        self.landed = UNCONFIRMED
        self.mark = 0

    def carry_by(self, sink: Sink) -> None:
        """Add a leg."""
        self._sinks.append(sink)

    @property
    def awaited(self) -> bool:
        """Whether anybody waits for a flight."""
        return bool(self._tickets)

    def longest_wait(self, now: float, gate_secs: float) -> float:
        """How long the first ticket has waited; 0 when nobody waits. `gate_secs`: how long tickets live."""
        return now - (self._tickets[0].expires - gate_secs) if self._tickets else 0.0

    @property
    def behind(self) -> int:
        """Bytes committed and not landed."""
        return self.mark - max(self.landed, 0)

    @property
    def choked(self) -> bool:
        """Too much has not landed: nothing that looks at the object now could leave, so it may as well not run."""
        return self.behind > self._behind_max

    def committed(self, mark: int, *, awaited: bool) -> None:
        """The log has grown to `mark`."""
        assert mark >= self.mark, "a mark never falls"
        self.mark = mark
        for sink in self._sinks:
            sink.committed(awaited=awaited)

    def has_landed(self, mark: int) -> bool:
        """Whether an answer that saw `mark` may leave now."""
        return self.landed >= mark and self._broken is None

    def wait(self, mark: int, expires: float) -> asyncio.Future[bool]:
        """A ticket for `mark`. Its future raises what broke the residency, if that came first."""
        landed = self._loop.create_future()
        if self._broken is not None:
            landed.set_exception(self._broken)
        elif self.landed >= mark:
            landed.set_result(True)
        else:
            self._tickets.append(Ticket(mark, expires, landed))
        return landed

    def land(self, mark: int) -> None:
        """Everything up to `mark` is durable: release its tickets."""
        if mark <= self.landed:
            return
        self.landed = mark
        released = 0
        while self._tickets and self._tickets[0].mark <= mark:
            _resolve(self._tickets.popleft(), True)
            released += 1
        if released:
            self.released(released)

    def expire(self, now: float) -> None:
        """Callers that waited past their gate stop waiting; what they wrote keeps shipping."""
        if self._tickets and any(ticket.expires <= now for ticket in self._tickets):
            waiting, self._tickets = self._tickets, deque()
            for ticket in waiting:
                if ticket.expires <= now:
                    _resolve(ticket, False)
                else:
                    self._tickets.append(ticket)

    def break_off(self, error: Exception) -> None:
        """The residency lost its right: nothing that has not landed leaves any more."""
        self._broken = error
        while self._tickets:
            ticket = self._tickets.popleft()
            if not ticket.landed.done():
                ticket.landed.set_exception(error)


def _resolve(ticket: Ticket, landed: bool) -> None:
    if not ticket.landed.done():
        ticket.landed.set_result(landed)
