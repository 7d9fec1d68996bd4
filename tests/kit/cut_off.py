"""A placement store that can be cut off from those who use it, while it is there for others."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from domicile.placement.store import (
    SCAN_MAX,
    Committed,
    Condition,
    Conflict,
    Event,
    Grant,
    Mutation,
    Page,
    Record,
    Resync,
    StoreUnavailable,
)


class CutOff:
    """`away`: nothing is answered, and watches end without a word. Whatever else the store has is its own."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.away = False

    async def read(self, keys: Sequence[str]) -> dict[str, Record]:
        self._check()
        found: dict[str, Record] = await self._store.read(keys)
        return found

    async def scan(self, prefix: str, limit: int = SCAN_MAX, token: str | None = None) -> Page:
        self._check()
        page: Page = await self._store.scan(prefix, limit, token)
        return page

    async def write(
        self, conditions: Sequence[Condition], mutations: Sequence[Mutation], grant: Grant | None = None
    ) -> Committed | Conflict:
        self._check()
        outcome: Committed | Conflict = await self._store.write(conditions, mutations, grant)
        return outcome

    async def watch(self, prefix: str, after: int) -> AsyncIterator[Event | Resync]:
        async for event in self._store.watch(prefix, after):
            self._check()
            yield event

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def _check(self) -> None:
        if self.away:
            raise StoreUnavailable("away")
