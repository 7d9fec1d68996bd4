"""Alarms of objects that sleep here: a timer for each row this node wrote at a release (PROTOCOLS section 9)."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable

from domicile.node.clock import Clock
from domicile.placement.records import ObjectKey

TIMER_SECS_MAX = 3600.0


class Sleepers:
    """Calls `wake` with the objects that are due, on time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock, wake: Callable[[list[ObjectKey]], None]) -> None:
        self._loop = loop
        self._clock = clock
        self._wake = wake
        self._due: dict[str, tuple[int, ObjectKey]] = {}
        self._heap: list[tuple[int, str]] = []
        self._timer: asyncio.TimerHandle | None = None

    def set(self, key: ObjectKey, due_ms: int) -> None:
        """Wake `key` at `due_ms`."""
        self._due[key.id] = (due_ms, key)
        heapq.heappush(self._heap, (due_ms, key.id))
        self._arm()

    def forget(self, object_id: str) -> None:
        """The object is awake, or gone."""
        self._due.pop(object_id, None)

    def stop(self) -> None:
        """Wake nobody any more."""
        self._due.clear()
        self._heap.clear()
        self._arm()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._heap:
            wait = (self._heap[0][0] - self._clock.wall_ms()) / 1000
            self._timer = self._loop.call_later(min(max(wait, 0.0), TIMER_SECS_MAX), self._ring)

    def _ring(self) -> None:
        now, due = self._clock.wall_ms(), []
        while self._heap and self._heap[0][0] <= now:
            due_ms, object_id = heapq.heappop(self._heap)
            entry = self._due.get(object_id)
            if entry is not None and entry[0] == due_ms:
                del self._due[object_id]
                due.append(entry[1])
        if due:
            self._wake(due)
        self._arm()
