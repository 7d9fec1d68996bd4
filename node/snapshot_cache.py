"""Snapshots kept open for the next read at the same place of the same log: opening one costs more than most reads.

Generation and length name an object's bytes, so a snapshot is good for whoever holds a copy still at that generation,
whatever has become of its files' names meanwhile. It is with one reader at a time, or kept here.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from domicile.node.sqlite.snapshot import Snapshot
from domicile.placement.records import Generation

KEPT_MAX = 128
KEPT_SECS = 1.0


class Place(NamedTuple):
    """What a snapshot shows."""

    object_id: str
    generation: Generation
    length: int


class SnapshotCache:
    """Lives on the loop. Several of one place, for reads side by side; what nobody took for a second is closed."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._kept: dict[Place, list[Snapshot]] = {}
        self._count = 0
        self._old: set[Place] = set()
        self._sweep: asyncio.TimerHandle | None = None

    def take(self, place: Place) -> Snapshot | None:
        """One that shows `place`, for the caller alone until it is kept again."""
        self._old.discard(place)
        kept = self._kept.get(place)
        if not kept:
            return None
        self._count -= 1
        return kept.pop()

    def keep(self, place: Place, snapshot: Snapshot) -> None:
        """For the next reader, if there is room."""
        if self._count >= KEPT_MAX:
            snapshot.close()
            return
        self._kept.setdefault(place, []).append(snapshot)
        self._count += 1
        self._old.discard(place)
        if self._sweep is None:
            self._sweep = self._loop.call_later(KEPT_SECS, self._close_old)

    def _close_old(self) -> None:
        for place in self._old:
            for snapshot in self._kept.pop(place, ()):
                self._count -= 1
                snapshot.close()
        self._old = set(self._kept)
        self._sweep = self._loop.call_later(KEPT_SECS, self._close_old) if self._kept else None
