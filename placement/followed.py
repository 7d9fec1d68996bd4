"""A table of the store, kept in memory by watching it.

While the store does not answer, the last whole table stays: known rows are kept, nothing is made up or dropped
(PROTOCOLS section 2). What is read here is for routing and for conditions, never proof of the present.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from domicile.placement.store import Event, Record, Resync, ScanExpired, Store, StoreUnavailable

RETRY_SECS = 0.5
T = TypeVar("T", bound=msgspec.Struct)
Sleep = Callable[[float], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Seen(Generic[T]):
    """A row as read, with the version of its last write and the version that created it."""

    row: T
    version: int
    created: int


def decode(record: Record, kind: type[T]) -> Seen[T]:
    """Raises msgspec.ValidationError for bytes that are no such row."""
    return Seen(msgspec.json.decode(record.value, type=kind), record.version, record.created)


class Followed(Generic[T]):
    """`rows`: key → row, whole as of `version` once `loaded` is set. Run `run()` as a task for as long as it is used.

    `wanted` leaves out keys of other kinds under the prefix. `changed(key, before, after)` is called on the loop, after
    `rows` has the change; None is absent. Changes that a Resync hid are told as the difference.
    """

    def __init__(self, store: Store, prefix: str, kind: type[T], sleep: Sleep) -> None:
        self.rows: dict[str, Seen[T]] = {}
        self.version = 0
        self.loaded = asyncio.Event()
        self.wanted: Callable[[str], bool] = lambda key: True
        self.changed: Callable[[str, Seen[T] | None, Seen[T] | None], None] = lambda key, before, after: None
        self._store = store
        self._prefix = prefix
        self._kind = kind
        self._sleep = sleep

    async def run(self) -> None:
        """Until cancelled, or until the store is closed under it."""
        while True:
            try:
                await self.load()
                async for event in self._store.watch(self._prefix, self.version):
                    if isinstance(event, Resync):
                        await self.load()
                    else:
                        self._apply(event)
                return
            except (StoreUnavailable, ScanExpired):
                await self._sleep(RETRY_SECS)

    async def load(self) -> None:
        """Read the whole table, from one snapshot, and tell the differences. Raises StoreUnavailable, ScanExpired."""
        rows: dict[str, Seen[T]] = {}
        token: str | None = None
        while True:
            page = await self._store.scan(self._prefix, token=token)
            rows.update({r.key: decode(r, self._kind) for r in page.records if self.wanted(r.key)})
            token = page.token
            if token is None:
                break
        before, self.rows, self.version = self.rows, rows, page.version
        self.loaded.set()
        for key in sorted(before.keys() | rows.keys()):
            if before.get(key) != rows.get(key):
                self.changed(key, before.get(key), rows.get(key))

    def _apply(self, event: Event) -> None:
        # After a Resync the table may be newer than the first events that follow it.
        if event.version <= self.version or not self.wanted(event.key):
            return
        before = self.rows.pop(event.key, None)
        after = decode(event.record, self._kind) if event.record else None
        if after is not None:
            self.rows[event.key] = after
        self.changed(event.key, before, after)
