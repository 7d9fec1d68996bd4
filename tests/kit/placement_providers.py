"""The providers of the placement store for tests, each with a hand on its time and its past."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import pytest
from etcd_servers import Etcd, until

from domicile.placement.embedded import EmbeddedStore
from domicile.placement.etcd import EtcdStore
from domicile.placement.etcd_link import EtcdConfig
from domicile.placement.store import (
    MUTATIONS_MAX,
    Committed,
    Event,
    Grant,
    Put,
    Resync,
    Store,
)

ETCD_HURRY = 0.2  # real seconds of etcd for one of a test


class Provider(Protocol):
    """What the suite needs of a provider beside the store itself."""

    async def open(self) -> Store:
        """A store over the same rows each time; only one is open at a time."""
        ...

    async def advance(self, secs: float) -> None:
        """Let time pass for grants."""
        ...

    async def compact(self, store: Store) -> None:
        """Make the past go."""
        ...


class Embedded:
    """The embedded store, with its thread or inline."""

    def __init__(self, path: Path, *, inline: bool) -> None:
        self.path, self.inline, self.now, self.compactions = path, inline, 100.0, 0

    async def open(self) -> Store:
        return EmbeddedStore(str(self.path / "p.db"), lambda: self.now, inline=self.inline, changes_max=400)

    async def advance(self, secs: float) -> None:
        self.now += secs

    async def compact(self, store: Store) -> None:
        self.compactions += 1
        for start in range(0, 500, MUTATIONS_MAX):
            keys = [f"/compaction/{self.compactions}/{start + n}" for n in range(MUTATIONS_MAX)]
            assert isinstance(await store.write([], [Put(key, b"") for key in keys]), Committed)


class Hurried(EtcdStore):
    """Grants in fifths of their seconds: etcd's time cannot be moved, and tests should not wait for it."""

    leases: dict[Grant, tuple[float, float]]
    now: Callable[[], float]

    async def grant(self, ttl_secs: float) -> Grant:
        grant = await super().grant(ttl_secs * ETCD_HURRY)
        self.leases[grant] = (ttl_secs, self.now() + ttl_secs)
        return grant

    async def keep(self, grant: Grant) -> None:
        await super().keep(grant)
        ttl, _ = self.leases[grant]
        self.leases[grant] = (ttl, self.now() + ttl)


class RealEtcd:
    """One member of etcd."""

    def __init__(self, etcd: Etcd) -> None:
        self.etcd, self.now = etcd, 0.0
        self.leases: dict[Grant, tuple[float, float]] = {}

    async def open(self) -> Store:
        store = Hurried(EtcdConfig(self.etcd.endpoints), time.monotonic, asyncio.sleep)
        store.leases, store.now = self.leases, lambda: self.now
        return store

    async def advance(self, secs: float) -> None:
        """Then wait until etcd has noticed what ran out: it may be late by design."""
        await asyncio.sleep(secs * ETCD_HURRY)
        self.now += secs
        out = [grant for grant, (_, deadline) in self.leases.items() if deadline <= self.now]
        await asyncio.to_thread(until, lambda: not any(self.lives(grant) for grant in out))

    def lives(self, grant: Grant) -> bool:
        return self.etcd.members[0].ask("/v3/lease/timetolive", {"ID": grant}).get("TTL") != "-1"

    async def compact(self, store: Store) -> None:
        await asyncio.to_thread(self.etcd.compact)


PROVIDERS: dict[str, Callable[[pytest.FixtureRequest, Path], Provider]] = {
    "embedded": lambda request, path: Embedded(path, inline=False),
    "embedded-inline": lambda request, path: Embedded(path, inline=True),
    "etcd": lambda request, path: RealEtcd(request.getfixturevalue("etcd")),
}


async def put(store: Store, key: str, value: bytes = b"v") -> int:
    outcome = await store.write([], [Put(key, value)])
    assert isinstance(outcome, Committed)
    return outcome.version


async def keys_of(store: Store, prefix: str) -> list[str]:
    return [record.key for record in (await store.scan(prefix)).records]


async def collect(store: Store, prefix: str, after: int, count: int) -> list[Event | Resync]:
    found: list[Event | Resync] = []
    async with contextlib.aclosing(store.watch(prefix, after)) as events:  # type: ignore[type-var]
        async for event in events:
            found.append(event)
            if len(found) == count:
                break
    return found
