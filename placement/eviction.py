"""Evicting a node that no longer serves (PROTOCOLS section 3).

A node whose row has stood at one version for the admission time and the margin, by the watcher's own clock, is past
its deadline: had it renewed, the version would be another. The row is deleted on that version, so a renewal in between
wins. Suspicion decides when to look, nothing more.
"""

from __future__ import annotations

from dataclasses import dataclass

from domicile.placement.admission import Clock, Timing
from domicile.placement.followed import decode
from domicile.placement.keys import Keys
from domicile.placement.records import DepartureRow, NodeRow, encode
from domicile.placement.store import At, Committed, Delete, Put, Store


@dataclass(frozen=True, slots=True)
class Verdict:
    """`gone`: the node has no row any more. Else look again after `wait_secs`."""

    gone: bool
    wait_secs: float = 0.0


@dataclass(frozen=True, slots=True)
class _Sighting:
    version: int
    at: float


class Evictor:
    """What one node remembers of the others' rows."""

    def __init__(self, store: Store, keys: Keys, timing: Timing, clock: Clock) -> None:
        self._store = store
        self._keys = keys
        self._timing = timing
        self._clock = clock
        self._sightings: dict[str, _Sighting] = {}

    def saw(self, node_id: str, version: int | None) -> None:
        """A watch showed the row at this version, or gone: time counts from here."""
        self._remember(node_id, version, self._clock.monotonic())

    async def suspect(self, node_id: str) -> Verdict:
        """Look at a node that seems not to answer; evict it if its time is over. Raises StoreUnavailable."""
        asked = self._clock.monotonic()
        key = self._keys.node(node_id)
        record = (await self._store.read([key])).get(key)
        # Remembered by the clock after the answer, judged by the one before it: both sides err towards waiting.
        self._remember(node_id, record.version if record else None, self._clock.monotonic())
        if record is None:
            return Verdict(gone=True)
        waited = asked - self._sightings[node_id].at
        if waited < self._timing.fence:
            return Verdict(gone=False, wait_secs=min(self._timing.fence, self._timing.fence - waited))
        departure = DepartureRow(self._clock.wall_ms(), "evicted", decode(record, NodeRow).row.copy_id)
        outcome = await self._store.write(
            [At(key, record.version)], [Delete(key), Put(self._keys.departure(node_id), encode(departure))]
        )
        now = outcome.current[key] if not isinstance(outcome, Committed) else None
        self._remember(node_id, now.version if now else None, self._clock.monotonic())
        return Verdict(gone=now is None, wait_secs=self._timing.fence if now else 0.0)

    def _remember(self, node_id: str, version: int | None, at: float) -> None:
        known = self._sightings.get(node_id)
        if version is None:
            self._sightings.pop(node_id, None)
        elif known is None or known.version < version:
            # Never for a lower version: a watch may show late what a read has already overtaken.
            self._sightings[node_id] = _Sighting(version, at)
