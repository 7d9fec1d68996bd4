"""Grants and a store's end: what every provider of the placement store keeps, sentence by sentence (PROTOCOLS 2)."""

from __future__ import annotations

import asyncio

import pytest
from placement_providers import Provider, collect, keys_of, put

from domicile.placement.store import (
    At,
    Committed,
    Conflict,
    Event,
    GrantGone,
    Put,
    Record,
    Since,
    Store,
    StoreUnavailable,
)

pytestmark = pytest.mark.anyio


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
