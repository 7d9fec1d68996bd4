"""The recent changes of the embedded store, in memory: what watches read, and what scans undo.

A change carries the record before and after it, so one bounded log serves both: a watch goes forward from a version,
and a scan's later pages take back what changed after their snapshot (PROTOCOLS section 2). What falls out at the old
end is the compacted past: a watch from there gets Resync, a scan from there ScanExpired. Readers hold positions, never
copies, so a slow one costs no memory.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Sequence

import msgspec

from domicile.placement.store import Record

CHANGES_MAX = 50_000
BYTES_MAX = 32 << 20
READ_MAX = 256


class Change(msgspec.Struct, frozen=True, gc=False):
    """One key's change at `version`; None is absent."""

    key: str
    version: int
    before: Record | None
    after: Record | None

    @property
    def size(self) -> int:
        """Bytes it keeps in memory, about."""
        return 200 + sum(len(record.value) + len(record.key) for record in (self.before, self.after) if record)


class ChangeLog:
    """Bounded by count and by bytes. One thread appends; any thread reads."""

    def __init__(self, version: int, changes_max: int = CHANGES_MAX, bytes_max: int = BYTES_MAX) -> None:
        self._lock = threading.Lock()
        self._changes: list[Change] = []
        self._dropped = 0
        self._bytes = 0
        self._floor = version
        self._version = version
        self._changes_max = changes_max
        self._bytes_max = bytes_max

    def append(self, changes: Sequence[Change], version: int) -> None:
        """Take over what was committed; `version` is the store's now."""
        with self._lock:
            self._changes.extend(changes)
            self._bytes += sum(change.size for change in changes)
            self._version = version
            if len(self._changes) > self._changes_max or self._bytes > self._bytes_max:
                self._trim()

    def tip(self) -> tuple[int, int]:
        """(version of the store, position behind the newest change)."""
        with self._lock:
            return self._version, self._dropped + len(self._changes)

    def position(self, after: int) -> int | None:
        """Where the changes after version `after` begin; None when they are not all here."""
        with self._lock:
            if not self._floor <= after <= self._version:
                return None
            return self._dropped + self._index(after)

    def read(self, position: int) -> tuple[Sequence[Change], int] | None:
        """Up to READ_MAX changes and the position behind them; None when the position has been dropped."""
        with self._lock:
            start = position - self._dropped
            if start < 0:
                return None
            changes = self._changes[start : start + READ_MAX]
            return changes, position + len(changes)

    def undone(self, snapshot: int, prefix: str) -> dict[str, Record | None] | None:
        """The records at version `snapshot` of the keys that changed since; None when that is too long ago."""
        with self._lock:
            if not self._floor <= snapshot <= self._version:
                return None
            since = self._changes[self._index(snapshot) :]
        past: dict[str, Record | None] = {}
        for change in since:
            if change.key.startswith(prefix):
                past.setdefault(change.key, change.before)
        return past

    def _index(self, after: int) -> int:
        return bisect_right(self._changes, after, key=lambda change: change.version)

    def _trim(self) -> None:
        # A quarter at a time, so that dropping from the front of a list costs little per change.
        drop = max(0, len(self._changes) - self._changes_max * 3 // 4)
        kept = self._bytes - sum(change.size for change in self._changes[:drop])
        while kept > self._bytes_max * 3 // 4 and drop < len(self._changes):
            kept -= self._changes[drop].size
            drop += 1
        self._floor = self._changes[drop - 1].version
        self._dropped += drop
        self._bytes = kept
        del self._changes[:drop]
