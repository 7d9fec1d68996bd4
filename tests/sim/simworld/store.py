"""The placement store's twin: strictly consistent in memory, behind the weather; grants run on virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from domicile.placement.store import (
    CONDITIONS_MAX,
    MUTATIONS_MAX,
    SCAN_BYTES_MAX,
    SCAN_MAX,
    At,
    Committed,
    Condition,
    Conflict,
    Delete,
    Event,
    Grant,
    GrantGone,
    Mutation,
    Page,
    Put,
    Record,
    Resync,
    ScanExpired,
    StoreUnavailable,
)
from simworld.loop import SimLoop
from simworld.weather import Weather

SNAPSHOTS_MAX = 32


@dataclass
class _GrantState:
    ttl_secs: float
    keys: set[str] = field(default_factory=set)
    timer: asyncio.TimerHandle | None = None


class SimStore:
    """A `domicile.placement.store.Store`. It outlives every node."""

    def __init__(self, loop: SimLoop, rng: random.Random) -> None:
        self.weather = Weather(loop, rng)
        self._loop = loop
        self._rows: dict[str, Record] = {}
        self._version = 0
        self._log: list[Event] = []
        self._compacted = 0
        self._grants: dict[Grant, _GrantState] = {}
        self._grant_of: dict[str, Grant] = {}
        self._numbers = 0
        self._snapshots: dict[int, list[Record]] = {}
        self._watchers: list[asyncio.Future[None]] = []

    async def read(self, keys: Sequence[str]) -> dict[str, Record]:
        asked = list(keys)
        return await self.weather.request(
            lambda: {key: self._rows[key] for key in asked if key in self._rows}, _fail, writes=False
        )

    async def write(
        self, conditions: Sequence[Condition], mutations: Sequence[Mutation], grant: Grant | None = None
    ) -> Committed | Conflict:
        if len(conditions) > CONDITIONS_MAX or len(mutations) > MUTATIONS_MAX:
            raise ValueError("too many conditions or mutations in one write")
        if len({mutation.key for mutation in mutations}) < len(mutations):
            raise ValueError("a key may change once in a write")
        wanted, changes = list(conditions), list(mutations)
        return await self.weather.request(lambda: self._write(wanted, changes, grant), _fail, writes=True)

    async def scan(self, prefix: str, limit: int = SCAN_MAX, token: str | None = None) -> Page:
        if not 1 <= limit <= SCAN_MAX:
            raise ValueError(f"a page has 1 to {SCAN_MAX} records")
        return await self.weather.request(lambda: self._scan(prefix, limit, token), _fail, writes=False)

    async def watch(self, prefix: str, after: int) -> AsyncIterator[Event | Resync]:
        while True:
            if after < self._compacted:
                after = self._compacted
                yield Resync(after)
                continue
            events = [event for event in self._log if event.version > after]
            if events and not self.weather.out():
                await asyncio.sleep(self.weather.odds.latency)
                after = events[-1].version
                for event in events:
                    if event.key.startswith(prefix):
                        yield event
            elif events:
                await asyncio.sleep(0.5)
            else:
                changed = self._loop.create_future()
                self._watchers.append(changed)
                await changed

    async def grant(self, ttl_secs: float) -> Grant:
        return await self.weather.request(lambda: self._grant(ttl_secs), _fail, writes=True)

    async def keep(self, grant: Grant) -> None:
        await self.weather.request(lambda: self._keep(grant), _fail, writes=True)

    async def revoke(self, grant: Grant) -> None:
        await self.weather.request(lambda: self._end_grant(grant), _fail, writes=True)

    async def close(self) -> None:
        """Nothing to let go."""

    # by hand

    def rows(self) -> dict[str, Record]:
        """Everything there now."""
        return dict(self._rows)

    def compact(self) -> None:
        """Forget the past: watchers behind get Resync, scans under way expire."""
        self._compacted = self._version
        self._log.clear()
        self._snapshots.clear()

    def _write(
        self, conditions: list[Condition], mutations: list[Mutation], grant: Grant | None
    ) -> Committed | Conflict:
        if grant is not None and grant not in self._grants:
            raise GrantGone(grant)
        if not all(self._holds(condition) for condition in conditions):
            return Conflict({condition.key: self._rows.get(condition.key) for condition in conditions})
        return Committed(self._commit(mutations, grant))

    def _holds(self, condition: Condition) -> bool:
        row = self._rows.get(condition.key)
        if isinstance(condition, At):
            return (row.version if row else 0) == condition.version
        return row is not None and row.created == condition.created

    def _commit(self, mutations: list[Mutation], grant: Grant | None) -> int:
        self._version += 1
        for mutation in mutations:
            if (before := self._grant_of.pop(mutation.key, None)) is not None and before in self._grants:
                self._grants[before].keys.discard(mutation.key)
            row = self._rows.get(mutation.key)
            if isinstance(mutation, Put):
                created = row.created if row else self._version
                self._rows[mutation.key] = Record(mutation.key, mutation.value, self._version, created)
                if grant is not None:
                    self._grants[grant].keys.add(mutation.key)
                    self._grant_of[mutation.key] = grant
            elif row is not None:
                del self._rows[mutation.key]
            else:
                continue
            self._log.append(Event(mutation.key, self._version, self._rows.get(mutation.key)))
        watchers, self._watchers = self._watchers, []
        for changed in watchers:
            if not changed.done():
                changed.set_result(None)
        return self._version

    def _scan(self, prefix: str, limit: int, token: str | None) -> Page:
        if token is None:
            version, after = self._version, ""
            rows = sorted(self._rows.values(), key=lambda row: row.key.encode())
            self._snapshots[version] = rows
            while len(self._snapshots) > SNAPSHOTS_MAX:
                del self._snapshots[min(self._snapshots)]
        else:
            text, _, after = token.partition(":")
            version = int(text)
            if version not in self._snapshots:
                raise ScanExpired(token)
            rows = self._snapshots[version]
        rest = [row for row in rows if row.key.startswith(prefix) and row.key.encode() > after.encode()]
        page: list[Record] = []
        size = 0
        for row in rest[:limit]:
            size += len(row.key.encode()) + len(row.value)
            if page and size > SCAN_BYTES_MAX:
                break
            page.append(row)
        more = len(page) < len(rest)
        return Page(tuple(page), version, f"{version}:{page[-1].key}" if more else None)

    def _grant(self, ttl_secs: float) -> Grant:
        self._numbers += 1
        grant = Grant(f"grant-{self._numbers}")
        self._grants[grant] = _GrantState(ttl_secs)
        self._keep(grant)
        return grant

    def _keep(self, grant: Grant) -> None:
        state = self._grants.get(grant)
        if state is None:
            raise GrantGone(grant)
        if state.timer is not None:
            state.timer.cancel()
        state.timer = self._loop.in_world(self._loop.call_later, state.ttl_secs, self._end_grant, grant)

    def _end_grant(self, grant: Grant) -> None:
        state = self._grants.pop(grant, None)
        if state is None:
            return
        if state.timer is not None:
            state.timer.cancel()
        if state.keys:
            self._commit([Delete(key) for key in sorted(state.keys)], None)


def _fail(detail: str, maybe: bool) -> StoreUnavailable:
    return StoreUnavailable(detail, maybe=maybe)
