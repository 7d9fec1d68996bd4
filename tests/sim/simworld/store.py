"""The placement store's twin: strictly consistent in memory, behind the weather; grants run on virtual time."""

from __future__ import annotations

import asyncio
import bisect
import random
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

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
from simworld.loop import SimFuture, SimLoop
from simworld.weather import Weather

SNAPSHOTS_MAX = 32
LEAP = 1000

T = TypeVar("T")


@dataclass
class _GrantState:
    ttl_secs: float
    keys: set[str] = field(default_factory=set)
    timer: asyncio.TimerHandle | None = None


class SimStore:
    """The store itself, which outlives every node; `session` is how a process reaches it."""

    def __init__(self, loop: SimLoop, rng: random.Random) -> None:
        self.weather = Weather(loop, rng)
        self.loop = loop
        self._rows: dict[str, Record] = {}
        self._version = 0
        self._log: list[Event] = []
        self._compacted = 0
        self._grants: dict[Grant, _GrantState] = {}
        self._grant_of: dict[str, Grant] = {}
        self._numbers = 0
        self._snapshots: dict[int, list[Record]] = {}
        self._watchers: list[tuple[str, SimFuture]] = []
        self.on_event: Callable[[Event], None] | None = None

    def session(self) -> Session:
        """A connection of its own, to be closed."""
        return Session(self)

    # by hand

    def rows(self) -> dict[str, Record]:
        """Everything there now."""
        return dict(self._rows)

    def restarted(self) -> None:
        """As the embedded store opens: the grants of earlier runs are dropped, the sequence leaps."""
        self._version += LEAP
        self.drop_grants()

    def commit(self, mutations: list[Mutation]) -> None:
        """Somebody else's write, unconditioned."""
        self._commit(mutations, None)

    def drop_grants(self) -> None:
        """Every grant ends, and the rows under it go."""
        for grant in sorted(self._grants):
            self.end_grant(grant)

    def compact(self) -> None:
        """Forget the past: watchers behind get Resync, scans under way expire."""
        self._compacted = self._version
        self._log.clear()
        self._snapshots.clear()
        self.wake()

    # what a session asks

    def read(self, keys: list[str]) -> dict[str, Record]:
        return {key: self._rows[key] for key in keys if key in self._rows}

    def write(
        self, conditions: list[Condition], mutations: list[Mutation], grant: Grant | None
    ) -> Committed | Conflict:
        if not all(self._holds(condition) for condition in conditions):
            return Conflict({condition.key: self._rows.get(condition.key) for condition in conditions})
        if grant is not None and grant not in self._grants:
            raise GrantGone(grant)
        return Committed(self._commit(mutations, grant))

    def _holds(self, condition: Condition) -> bool:
        row = self._rows.get(condition.key)
        if isinstance(condition, At):
            return (row.version if row else 0) == condition.version
        return row is not None and row.created == condition.created

    def _commit(self, mutations: list[Mutation], grant: Grant | None) -> int:
        self._version += 1
        changed = []
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
            changed.append(mutation.key)
            if self.on_event is not None:
                self.on_event(self._log[-1])
        self._wake_for(changed)
        return self._version

    def scan(self, prefix: str, limit: int, token: str | None) -> Page:
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

    def grant(self, ttl_secs: float) -> Grant:
        self._numbers += 1
        grant = Grant(f"grant-{self._numbers}")
        self._grants[grant] = _GrantState(ttl_secs)
        self.keep(grant)
        return grant

    def keep(self, grant: Grant) -> None:
        state = self._grants.get(grant)
        if state is None:
            raise GrantGone(grant)
        if state.timer is not None:
            state.timer.cancel()
        state.timer = self.loop.in_world(self.loop.call_later, state.ttl_secs, self.end_grant, grant)

    def end_grant(self, grant: Grant) -> None:
        state = self._grants.pop(grant, None)
        if state is None:
            return
        if state.timer is not None:
            state.timer.cancel()
        if state.keys:
            self._commit([Delete(key) for key in sorted(state.keys)], None)

    def changes(self, after: int) -> list[Event | Resync]:
        """What a watch shows next: the changes after `after`, or that they are forgotten."""
        if after < self._compacted:
            return [Resync(self._compacted)]
        at = bisect.bisect_right(self._log, after, key=lambda event: event.version)
        return list(self._log[at:])

    def changed(self, prefix: str) -> SimFuture:
        """Resolves with the next change below `prefix`, giving the version up to which there was none."""
        future = self.loop.create_future()
        self._watchers.append((prefix, future))
        return future

    def wake(self) -> None:
        """Let every watch look again."""
        watchers, self._watchers = self._watchers, []
        for _, future in watchers:
            if not future.done():
                future.set_result(self._version)

    def _wake_for(self, changed: list[str]) -> None:
        waiting = []
        for prefix, future in self._watchers:
            if future.done():
                continue
            if any(key.startswith(prefix) for key in changed):
                future.set_result(self._version - 1)
            else:
                waiting.append((prefix, future))
        self._watchers = waiting


class Session:
    """A `domicile.placement.store.Store`: one process's connection to the store, behind its own weather if given."""

    def __init__(self, server: SimStore, weather: Weather | None = None) -> None:
        self.server = server
        self.weather = weather or server.weather
        self._closed = False

    async def read(self, keys: Sequence[str]) -> dict[str, Record]:
        asked = list(keys)
        return await self._request(lambda: self.server.read(asked), writes=False)

    async def write(
        self, conditions: Sequence[Condition], mutations: Sequence[Mutation], grant: Grant | None = None
    ) -> Committed | Conflict:
        if len(conditions) > CONDITIONS_MAX or len(mutations) > MUTATIONS_MAX:
            raise ValueError(f"a write has at most {CONDITIONS_MAX} conditions and {MUTATIONS_MAX} mutations")
        keys = [change.key for change in mutations]
        if len(set(keys)) < len(keys):
            raise ValueError("a write changes a key once")
        if any(not key or "\0" in key for key in keys):
            raise ValueError("a key is text without NUL, and not empty")
        wanted, changes = list(conditions), list(mutations)
        return await self._request(lambda: self.server.write(wanted, changes, grant), writes=True)

    async def scan(self, prefix: str, limit: int = SCAN_MAX, token: str | None = None) -> Page:
        if not 1 <= limit <= SCAN_MAX:
            raise ValueError(f"the limit of a page is 1 to {SCAN_MAX}")
        return await self._request(lambda: self.server.scan(prefix, limit, token), writes=False)

    async def watch(self, prefix: str, after: int) -> AsyncIterator[Event | Resync]:
        while not self._closed:
            if self.weather.out():
                await asyncio.sleep(0.5)
                continue
            found = self.server.changes(after)
            if not found:
                after = await self.server.changed(prefix)
                continue
            await asyncio.sleep(self.weather.odds.latency)
            for event in found:
                after = event.version
                if isinstance(event, Resync) or event.key.startswith(prefix):
                    yield event

    async def grant(self, ttl_secs: float) -> Grant:
        return await self._request(lambda: self.server.grant(ttl_secs), writes=True)

    async def keep(self, grant: Grant) -> None:
        await self._request(lambda: self.server.keep(grant), writes=True)

    async def revoke(self, grant: Grant) -> None:
        await self._request(lambda: self.server.end_grant(grant), writes=True)

    async def release(self) -> None:
        """There is one loop."""

    async def close(self) -> None:
        self._closed = True
        self.server.wake()

    async def _request(self, effect: Callable[[], T], *, writes: bool) -> T:
        if self._closed:
            raise StoreUnavailable("this connection to the store is closed")
        return await self.weather.request(effect, _fail, writes=writes)


def _fail(detail: str, maybe: bool) -> StoreUnavailable:
    return StoreUnavailable(detail, maybe=maybe)
