"""What every provider of the placement store keeps: PROTOCOLS section 2, sentence by sentence."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Protocol

import pytest
from etcd_servers import Etcd, until

from domicile.placement.embedded import EmbeddedStore
from domicile.placement.etcd import EtcdStore
from domicile.placement.etcd_link import EtcdConfig
from domicile.placement.store import (
    CONDITIONS_MAX,
    MUTATIONS_MAX,
    SCAN_BYTES_MAX,
    At,
    Committed,
    Conflict,
    Delete,
    Event,
    Grant,
    GrantGone,
    Put,
    Record,
    Resync,
    ScanExpired,
    Since,
    Store,
    StoreUnavailable,
)

pytestmark = pytest.mark.anyio
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
        return self.etcd.members[0].post("/v3/lease/timetolive", {"ID": grant}).get("TTL") != "-1"

    async def compact(self, store: Store) -> None:
        await asyncio.to_thread(self.etcd.compact)


PROVIDERS: dict[str, Callable[[pytest.FixtureRequest, Path], Provider]] = {
    "embedded": lambda request, path: Embedded(path, inline=False),
    "embedded-inline": lambda request, path: Embedded(path, inline=True),
    "etcd": lambda request, path: RealEtcd(request.getfixturevalue("etcd")),
}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=sorted(PROVIDERS))
def provider(request: pytest.FixtureRequest, tmp_path: Path) -> Provider:
    return PROVIDERS[request.param](request, tmp_path)


@pytest.fixture
async def store(provider: Provider) -> AsyncIterator[Store]:
    store = await provider.open()
    yield store
    await store.close()


async def put(store: Store, key: str, value: bytes = b"v") -> int:
    outcome = await store.write([], [Put(key, value)])
    assert isinstance(outcome, Committed)
    return outcome.version


async def keys_of(store: Store, prefix: str) -> list[str]:
    return [record.key for record in (await store.scan(prefix)).records]


async def test_read_gives_what_was_written_and_nothing_for_an_absent_key(store: Store) -> None:
    """A record is (key, value, version, created); an absent key is absent."""
    first = await put(store, "/a", b"1")
    second = await put(store, "/a", b"2")
    assert await store.read(["/a", "/b"]) == {"/a": Record("/a", b"2", second, first)}
    assert await store.read([]) == {}


async def test_values_are_any_bytes_and_keys_any_text_without_nul(store: Store) -> None:
    """Names are raw UTF-8: slashes, percent signs, spaces and emoji are distinct keys."""
    keys = ["/k/a", "/k/a/b", "/k/a%2Fb", "/k/ a", "/k/🏠", "/k/é", "/k/e\u0301", "/k/" + "x" * 255]
    for number, key in enumerate(keys):
        await put(store, key, bytes([number, 0, 255]))
    found = await store.read(keys)
    assert [found[key].value for key in keys] == [bytes([number, 0, 255]) for number in range(len(keys))]
    assert await keys_of(store, "/k/") == sorted(keys, key=str.encode)


async def test_versions_are_store_wide_and_strictly_grow(store: Store) -> None:
    """Every write of any key has a greater version than every one before it, deletions included."""
    versions = [await put(store, f"/{n % 3}") for n in range(6)]
    deletion = await store.write([], [Delete("/0")])
    assert isinstance(deletion, Committed)
    versions += [deletion.version, await put(store, "/0")]
    assert versions == sorted(set(versions))


async def test_all_rows_of_one_write_carry_its_version(store: Store) -> None:
    """The version that a write commits at is that of every row it wrote."""
    outcome = await store.write([], [Put("/a", b""), Put("/b", b"")])
    assert isinstance(outcome, Committed)
    found = await store.read(["/a", "/b"])
    assert {(record.version, record.created) for record in found.values()} == {(outcome.version, outcome.version)}


async def test_at_holds_only_at_exactly_that_version(store: Store) -> None:
    """`At` is a compare-and-swap on the key's version."""
    version = await put(store, "/a")
    assert isinstance(await store.write([At("/a", version)], [Put("/a", b"2")]), Committed)
    conflict = await store.write([At("/a", version)], [Put("/a", b"3")])
    assert isinstance(conflict, Conflict)
    assert conflict.current == await store.read(["/a"])


async def test_at_zero_means_absent(store: Store) -> None:
    """Version 0 is that of a key that is not there, also after it was deleted."""
    assert isinstance(await store.write([At("/a", 0)], [Put("/a", b"")]), Committed)
    assert isinstance(await store.write([At("/a", 0)], [Put("/a", b"")]), Conflict)
    await store.write([], [Delete("/a")])
    assert isinstance(await store.write([At("/a", 0)], [Put("/a", b"")]), Committed)


async def test_since_survives_rewrites_and_not_a_recreation(store: Store) -> None:
    """`Since` holds while the key has been there without a break since that version created it."""
    created = await put(store, "/a")
    await put(store, "/a")
    assert isinstance(await store.write([Since("/a", created)], [Put("/x", b"1")]), Committed)
    await store.write([], [Delete("/a")])
    assert isinstance(await store.write([Since("/a", created)], [Put("/x", b"2")]), Conflict)
    again = await put(store, "/a")
    assert isinstance(await store.write([Since("/a", created)], [Put("/x", b"3")]), Conflict)
    assert isinstance(await store.write([Since("/a", again)], [Put("/x", b"4")]), Committed)


async def test_a_conflict_names_all_conditions_keys_and_writes_nothing(store: Store) -> None:
    """All or nothing; what comes back is what the conditions' keys hold, None for absent."""
    here = await put(store, "/here")
    conflict = await store.write(
        [At("/here", here), At("/gone", 7), Since("/also-gone", 3)], [Put("/new", b""), Delete("/here")]
    )
    assert isinstance(conflict, Conflict)
    assert conflict.current == {"/here": (await store.read(["/here"]))["/here"], "/gone": None, "/also-gone": None}
    assert "/new" not in await store.read(["/new"])


async def test_a_write_that_changes_nothing_is_committed(store: Store) -> None:
    """Deleting what is not there is no error, and conditions may be checked alone."""
    version = await put(store, "/a")
    for mutations in ([], [Delete("/never")]):
        outcome = await store.write([At("/a", version)], mutations)
        assert isinstance(outcome, Committed)
        assert version <= outcome.version < await put(store, "/b")


async def test_writes_are_bounded_and_change_a_key_once(store: Store) -> None:
    """128 of each pass, one more is refused, and so is a key written twice or a text that is no key."""
    most = [Put(f"/{n}", b"") for n in range(MUTATIONS_MAX)]
    conditions = [At(f"/{n}", 0) for n in range(CONDITIONS_MAX)]
    assert isinstance(await store.write(conditions, most), Committed)
    for refused in ([*most, Put("/more", b"")], [Put("/a", b""), Delete("/a")], [Put("", b"")], [Put("/\0", b"")]):
        with pytest.raises(ValueError, match=r"write|key"):
            await store.write([], refused)
    with pytest.raises(ValueError, match="128"):
        await store.write([At("/a", 0)] * (CONDITIONS_MAX + 1), [])


async def test_of_concurrent_writers_exactly_one_wins(store: Store) -> None:
    """Writes on the same version are serialized, and every loser sees the winner's row."""
    for round_ in range(5):
        current = (await store.read(["/lock"])).get("/lock")
        version = current.version if current else 0
        outcomes = await asyncio.gather(
            *(store.write([At("/lock", version)], [Put("/lock", b"%d" % n)]) for n in range(20))
        )
        won = [(n, outcome) for n, outcome in enumerate(outcomes) if isinstance(outcome, Committed)]
        assert len(won) == 1, round_
        row = (await store.read(["/lock"]))["/lock"]
        assert (row.value, row.version) == (b"%d" % won[0][0], won[0][1].version)
        assert all(outcome.current == {"/lock": row} for outcome in outcomes if isinstance(outcome, Conflict))


async def test_a_read_sees_one_snapshot(store: Store) -> None:
    """Two keys that are always written together are always read together."""

    async def write() -> None:
        for n in range(50):
            await store.write([], [Put("/left", b"%d" % n), Put("/right", b"%d" % n)])

    writing = asyncio.ensure_future(write())
    while not writing.done():
        found = await store.read(["/left", "/right"])
        assert len({record.value for record in found.values()}) <= 1
        assert len(found) in (0, 2)
        await asyncio.sleep(0)
    await writing


async def test_scan_gives_the_prefix_in_byte_order(store: Store) -> None:
    """Only keys that start with the prefix, ordered by their UTF-8 bytes."""
    keys = ["/p/a", "/p/a-b/1", "/p/a/1", "/p/a/2", "/p/a/\U0010ffff", "/p/a/\uffff", "/p/b", "/p0", "/q"]
    for key in keys:
        await put(store, key)
    assert await keys_of(store, "/p/a/") == ["/p/a/1", "/p/a/2", "/p/a/\uffff", "/p/a/\U0010ffff"]
    assert await keys_of(store, "/p/") == sorted((key for key in keys if key.startswith("/p/")), key=str.encode)
    assert await keys_of(store, "/p/b") == ["/p/b"]
    assert await keys_of(store, "/none") == []
    assert await keys_of(store, "") == sorted(keys, key=str.encode)


async def test_all_pages_of_a_scan_show_one_snapshot(store: Store) -> None:
    """Keys added, changed and removed between pages, before and behind the token, do not show."""
    for n in range(10):
        await put(store, f"/s/{n}", b"old")
    page = await store.scan("/s/", limit=4)
    seen = list(page.records)
    await store.write([], [Delete("/s/5"), Delete("/s/0"), Put("/s/6", b"new"), Put("/s/55", b"new"), Put("/s/", b"")])
    await store.write([], [Put("/s/5", b"again")])
    while page.token is not None:
        version = page.version
        page = await store.scan("/s/", limit=4, token=page.token)
        assert page.version == version
        seen += page.records
        await put(store, "/s/9", b"new")
    assert [(record.key, record.value) for record in seen] == [(f"/s/{n}", b"old") for n in range(10)]
    assert max(record.version for record in seen) <= page.version


async def test_pages_are_bounded_by_rows_and_by_bytes(store: Store) -> None:
    """At most `limit` rows and 4 MiB a page; exactly full pages end without an empty one."""
    for n in range(6):
        await put(store, f"/big/{n}", bytes(1_000_000))
    first = await store.scan("/big/")
    assert sum(len(record.value) for record in first.records) <= SCAN_BYTES_MAX
    assert 0 < len(first.records) < 6
    assert first.token is not None
    rest = await store.scan("/big/", token=first.token)
    assert [record.key for record in (*first.records, *rest.records)] == [f"/big/{n}" for n in range(6)]
    assert (await store.scan("/big/", limit=3, token=(await store.scan("/big/", limit=3)).token)).token is None
    for limit in (0, 1001):
        with pytest.raises(ValueError, match="limit"):
            await store.scan("/big/", limit=limit)


async def test_a_token_of_a_lost_past_is_expired_and_a_made_up_one_refused(provider: Provider, store: Store) -> None:
    """A scan never mixes snapshots: when its own is gone, it says so."""
    for n in range(4):
        await put(store, f"/s/{n}")
    token = (await store.scan("/s/", limit=2)).token
    assert token is not None
    await provider.compact(store)
    with pytest.raises(ScanExpired):
        await store.scan("/s/", token=token)
    with pytest.raises((ValueError, ScanExpired)):
        await store.scan("/s/", token="nonsense")


async def collect(store: Store, prefix: str, after: int, count: int) -> list[Event | Resync]:
    found: list[Event | Resync] = []
    async with contextlib.aclosing(store.watch(prefix, after)) as events:  # type: ignore[type-var]
        async for event in events:
            found.append(event)
            if len(found) == count:
                break
    return found


async def test_watch_shows_every_change_in_order_and_only_of_the_prefix(store: Store) -> None:
    """Puts carry the record, deletions None; changes made before the watch began, but after `after`, are there."""
    start = await put(store, "/w/a", b"0")
    await put(store, "/w/a", b"1")
    await put(store, "/other", b"")
    watching = asyncio.ensure_future(collect(store, "/w/", start, 3))
    await asyncio.sleep(0)
    await store.write([], [Delete("/w/a"), Put("/w/b", b"2")])
    events = await watching
    assert all(isinstance(event, Event) for event in events)
    assert [(e.key, e.record.value if e.record else None) for e in events if isinstance(e, Event)] == [
        ("/w/a", b"1"),
        ("/w/a", None),
        ("/w/b", b"2"),
    ]
    assert [e.version for e in events] == sorted(e.version for e in events)


async def test_a_watch_wakes_for_a_change_made_while_it_waits(store: Store) -> None:
    """A watcher that has seen everything gets the next change without asking."""
    start = await put(store, "/w/a")
    watching = asyncio.ensure_future(collect(store, "/w/", start, 1))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not watching.done()
    version = await put(store, "/w/b")
    assert [event.version for event in await watching] == [version]


async def test_a_watch_resumes_without_a_gap(store: Store) -> None:
    """Going on after the last version seen gives exactly the rest, whatever happened in between."""
    start = await put(store, "/w/start")
    versions = [await put(store, f"/w/{n}") for n in range(20)]
    first = await collect(store, "/w/", start, 7)
    versions += [await put(store, f"/w/{n}") for n in range(20, 25)]
    rest = await collect(store, "/w/", first[-1].version, 18)
    assert [event.version for event in (*first, *rest)] == versions


async def test_a_compacted_past_yields_resync_and_then_goes_on(provider: Provider, store: Store) -> None:
    """Resync comes first; reading everything and applying what follows it gives the present."""
    start = await put(store, "/w/a")
    await put(store, "/w/b")
    await provider.compact(store)
    watch = store.watch("/w/", start)
    resync = await anext(watch)
    assert isinstance(resync, Resync)
    assert await keys_of(store, "/w/") == ["/w/a", "/w/b"]
    version = await put(store, "/w/c")
    event = await anext(watch)
    assert isinstance(event, Event)
    assert (event.key, event.version) == ("/w/c", version)
    assert resync.version < version
    await watch.aclose()  # type: ignore[attr-defined]


async def test_a_slow_watcher_gets_everything_or_resync_in_the_middle(provider: Provider, store: Store) -> None:
    """One that stops reading holds no past alive: when it goes on, what it did not get it is told that it missed."""
    start = await put(store, "/w/a")
    await put(store, "/w/b")
    watch = store.watch("/w/", start)
    assert isinstance(await anext(watch), Event)
    await provider.compact(store)
    last = await put(store, "/w/c")
    after = [await anext(watch)]
    while not isinstance(after[-1], Resync) and after[-1].version < last:
        after.append(await anext(watch))
    if isinstance(after[-1], Resync):
        assert after[-1].version >= start
    else:
        assert [event.version for event in after] == [last]
    await watch.aclose()  # type: ignore[attr-defined]


async def test_rows_of_a_grant_vanish_when_it_runs_out(provider: Provider, store: Store) -> None:
    """Only after its time since the last `keep`; other rows stay; watchers and versions see it."""
    grant = await store.grant(10)
    await store.write([], [Put("/n/mine", b"")], grant)
    start = await put(store, "/n/other")
    await provider.advance(6)
    await store.keep(grant)
    await provider.advance(6)
    assert await keys_of(store, "/n/") == ["/n/mine", "/n/other"]
    await provider.advance(5)
    assert await keys_of(store, "/n/") == ["/n/other"]
    (event,) = await collect(store, "/n/", start, 1)
    assert isinstance(event, Event)
    assert (event.key, event.record) == ("/n/mine", None)
    assert start < event.version < await put(store, "/n/new")


async def test_a_gone_grant_takes_no_rows_and_no_keeping(provider: Provider, store: Store) -> None:
    """After it ran out or was revoked, `keep` and `write` raise GrantGone and nothing is written."""
    ran_out, revoked = await store.grant(5), await store.grant(500)
    await provider.advance(6)
    await store.revoke(revoked)
    for grant in (ran_out, revoked):
        with pytest.raises(GrantGone):
            await store.keep(grant)
        with pytest.raises(GrantGone):
            await store.write([At("/x", 0)], [Put("/x", b"")], grant)
        assert isinstance(await store.write([At("/x", 1)], [Put("/x", b"")], grant), Conflict)
    assert await store.read(["/x"]) == {}
    await store.revoke(revoked)


async def test_revoking_takes_all_rows_of_the_grant_and_no_others(store: Store) -> None:
    """A row put again without a grant, or under another, is no longer the first grant's."""
    first, second = await store.grant(100), await store.grant(100)
    await store.write([], [Put("/g/1", b""), Put("/g/2", b""), Put("/g/3", b"")], first)
    await store.write([], [Put("/g/2", b"")], second)
    await store.write([], [Put("/g/3", b"")])
    await store.revoke(first)
    assert await keys_of(store, "/g/") == ["/g/2", "/g/3"]
    await store.revoke(second)
    assert await keys_of(store, "/g/") == ["/g/3"]


async def test_a_condition_sees_that_a_grant_ran_out(provider: Provider, store: Store) -> None:
    """The rows are gone for conditions too, and come back only as new ones."""
    grant = await store.grant(5)
    outcome = await store.write([], [Put("/n/1", b"")], grant)
    assert isinstance(outcome, Committed)
    await provider.advance(6)
    assert isinstance(await store.write([Since("/n/1", outcome.version)], [Put("/x", b"")]), Conflict)
    assert isinstance(await store.write([At("/n/1", 0)], [Put("/x", b"")]), Committed)


async def test_rows_and_growing_versions_outlive_the_store(provider: Provider, store: Store) -> None:
    """What was committed is there after a restart, with its versions, and later versions are greater."""
    created = await put(store, "/a", b"1")
    version = await put(store, "/a", b"2")
    last = await put(store, "/z")
    await store.close()
    again = await provider.open()
    try:
        assert await again.read(["/a"]) == {"/a": Record("/a", b"2", version, created)}
        assert await put(again, "/b") > last
    finally:
        await again.close()


async def test_a_closed_store_says_so_and_its_watches_end(store: Store) -> None:
    """Nothing hangs on a store that is closed, and what comes late has not happened."""
    start = await put(store, "/a")

    async def watch_to_the_end() -> int:
        return len([event async for event in store.watch("/", start)])

    watching = asyncio.ensure_future(watch_to_the_end())
    await asyncio.sleep(0)
    await store.close()
    assert await watching == 0
    with pytest.raises(StoreUnavailable) as late:
        await store.write([], [Put("/b", b"")])
    assert not late.value.maybe
    await store.close()
