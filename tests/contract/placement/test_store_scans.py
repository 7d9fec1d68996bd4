"""Scans and watches: what every provider of the placement store keeps, sentence by sentence (PROTOCOLS 2)."""

from __future__ import annotations

import asyncio

import pytest
from placement_providers import Provider, collect, keys_of, put

from domicile.placement.store import (
    SCAN_BYTES_MAX,
    Delete,
    Event,
    Put,
    Resync,
    ScanExpired,
    Store,
)

pytestmark = pytest.mark.anyio


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
