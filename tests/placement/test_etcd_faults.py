"""The etcd store over a link that fails: lost answers, lost streams, compaction meanwhile, many loops."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from etcd_servers import Etcd, running
from link_proxy import LinkProxy, proxied

from domicile.placement import etcd_link
from domicile.placement.etcd import EtcdStore
from domicile.placement.etcd_link import EtcdConfig
from domicile.placement.followed import Followed
from domicile.placement.records import NodeRow, encode
from domicile.placement.store import At, Committed, Delete, Event, Put, Resync, StoreUnavailable

SLACK_SECS = 20.0  # for a busy machine; what hangs, hangs for ever
pytestmark = pytest.mark.anyio


def opened(*endpoints: str) -> EtcdStore:
    return EtcdStore(EtcdConfig(endpoints), time.monotonic, asyncio.sleep)


@pytest.fixture
async def direct(etcd: Etcd) -> AsyncIterator[EtcdStore]:
    """A store with nothing in between."""
    store = opened(*etcd.endpoints)
    yield store
    await store.close()


@pytest.fixture
async def proxy(etcd: Etcd) -> AsyncIterator[LinkProxy]:
    async with proxied(etcd.endpoints[0]) as proxy:
        yield proxy


@pytest.fixture
async def store(proxy: LinkProxy, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[EtcdStore]:
    """A store behind the proxy, in more of a hurry than usual."""
    monkeypatch.setattr(etcd_link, "REQUEST_SECS", 1.0)
    store = opened(proxy.endpoint)
    yield store
    await store.close()


async def put(store: EtcdStore, key: str, value: bytes = b"") -> int:
    outcome = await store.write([], [Put(key, value)])
    assert isinstance(outcome, Committed)
    return outcome.version


async def test_a_lost_answer_is_maybe_and_the_write_is_not_sent_again(
    store: EtcdStore, direct: EtcdStore, proxy: LinkProxy
) -> None:
    """The write happened once; nobody knew; reading it again proves it."""
    await store.read(["/a"])
    proxy.swallowing = True
    began = time.monotonic()
    with pytest.raises(StoreUnavailable) as lost:
        await store.write([], [Put("/a", b"1")])
    assert lost.value.maybe
    assert time.monotonic() - began < etcd_link.REQUEST_SECS + SLACK_SECS
    proxy.cut()
    row = (await store.read(["/a"]))["/a"]
    assert row.version == row.created
    assert row == (await direct.read(["/a"]))["/a"]


async def test_a_connection_cut_under_a_write_is_maybe(store: EtcdStore, proxy: LinkProxy) -> None:
    """Whether it arrived before the cut cannot be told."""
    await store.read(["/a"])
    proxy.swallowing = True
    writing = asyncio.ensure_future(store.write([], [Put("/a", b"1")]))
    await asyncio.wait((writing,), timeout=0.1)
    proxy.cut()
    with pytest.raises(StoreUnavailable) as lost:
        await writing
    assert lost.value.maybe


async def test_a_store_that_cannot_be_reached_has_not_written(store: EtcdStore, proxy: LinkProxy) -> None:
    """Nothing was sent, so nothing can have happened; and nothing hangs."""
    proxy.refusing = True
    proxy.cut()
    began = time.monotonic()
    with pytest.raises(StoreUnavailable) as refused:
        await store.write([], [Put("/a", b"1")])
    assert not refused.value.maybe
    assert time.monotonic() - began < etcd_link.REQUEST_SECS + SLACK_SECS
    proxy.refusing = False
    assert await put(store, "/a") > 0


async def test_a_write_after_a_lost_connection_goes_through(store: EtcdStore, proxy: LinkProxy) -> None:
    """A connection known to be lost is made anew before the write is sent: no error for it."""
    await put(store, "/a")
    proxy.cut()
    before = proxy.connections
    for _ in range(3):
        with contextlib.suppress(StoreUnavailable):  # the cut may not have been noticed yet
            await put(store, "/a")
    assert proxy.connections == before + 1
    assert await put(store, "/a")


async def test_a_member_that_swallows_is_left_for_another(etcd: Etcd, proxy: LinkProxy) -> None:
    """A read is asked elsewhere after an attempt's time, a caller's own short timeout moves on at once, and both stay
    there.
    """
    for hasty in (False, True):
        store = opened(proxy.endpoint, *etcd.endpoints)
        await store.read(["/a"])
        proxy.swallowing = True
        began = time.monotonic()
        if hasty:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    await store.write([], [Put("/a", b"1")])
        else:
            await store.read(["/a"])
            assert time.monotonic() - began < etcd_link.REQUEST_SECS
        again = time.monotonic()
        await put(store, "/b")
        assert time.monotonic() - again < etcd_link.ATTEMPT_SECS, "the one that swallows is not asked again"
        proxy.cut()
        await store.close()


async def test_a_watch_resumes_over_lost_streams_without_a_gap(
    store: EtcdStore, direct: EtcdStore, proxy: LinkProxy
) -> None:
    """Cut again and again, with changes in between: every change once, in order."""
    start = await put(direct, "/w/start")
    expected: list[int] = []
    async with contextlib.aclosing(store.watch("/w/", start)) as events:
        for round_ in range(6):
            expected += [await put(direct, f"/w/{round_}/{n}") for n in range(5)]
            if round_ % 2:
                proxy.cut()
                expected += [await put(direct, f"/w/{round_}/{n}") for n in range(5)]
            while expected:
                event = await anext(events)
                assert isinstance(event, Event)
                assert event.version == expected.pop(0)


async def test_a_watch_cut_off_over_a_compaction_ends_with_a_fresh_nodes_view(
    store: EtcdStore, direct: EtcdStore, etcd: Etcd, proxy: LinkProxy
) -> None:
    """Field case 50: cut off, 2,000 changes, a compaction, healed: what is followed equals what a new reader sees."""
    row = NodeRow(node_id="n", http="h")
    for n in range(20):
        await put(direct, f"/n/{n}", encode(row))
    followed = Followed(store, "/n/", NodeRow, asyncio.sleep)
    told: dict[str, int] = {}
    followed.changed = lambda key, before, after: told.__setitem__(key, after.version if after else 0)
    running = asyncio.ensure_future(followed.run())
    await followed.loaded.wait()
    proxy.refusing = True
    proxy.cut()
    for n in range(20):
        await direct.write([], [Put(f"/n/{m}", encode(row)) for m in range(n, 100 + n)])
        await direct.write([], [Delete(f"/n/{m}") for m in range(n)])
    await asyncio.to_thread(etcd.compact)
    proxy.refusing = False
    last = await put(direct, "/n/last", encode(row))
    try:
        async with asyncio.timeout(SLACK_SECS):
            while followed.version < last and "/n/last" not in followed.rows:
                await asyncio.sleep(0)
    finally:
        running.cancel()
    fresh = {record.key: record.version for record in (await direct.scan("/n/")).records}
    assert {key: seen.version for key, seen in followed.rows.items()} == fresh
    assert {key: version for key, version in told.items() if version} == fresh


async def test_a_watch_that_keeps_up_is_not_told_of_a_compaction(direct: EtcdStore, etcd: Etcd) -> None:
    """Compaction takes only what everyone has seen from those who have seen it."""
    start = await put(direct, "/w/a")
    watch = direct.watch("/w/", start)
    for n in range(5):
        version = await put(direct, f"/w/{n}")
        event = await anext(watch)
        assert (type(event), event.version) == (Event, version)
        await asyncio.to_thread(etcd.compact)
    await watch.aclose()


async def test_a_watch_ahead_of_a_store_put_back_from_a_backup_begins_anew(direct: EtcdStore) -> None:
    """Versions that are no more are not waited for."""
    present = await put(direct, "/w/a")
    watch = direct.watch("/w/", present + 1_000_000)
    resync = await anext(watch)
    assert isinstance(resync, Resync)
    assert present <= resync.version
    version = await put(direct, "/w/b")
    event = await anext(watch)
    assert (type(event), event.version) == (Event, version)
    await watch.aclose()


async def test_a_watch_on_a_frozen_member_goes_on_at_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A member that stops with its connections open is found out by pings, which etcd must put up with."""
    pings = {"grpc.keepalive_time_ms": 1000, "grpc.http2.ping_timeout_ms": 500}
    monkeypatch.setattr(etcd_link, "OPTIONS", tuple({**dict(etcd_link.OPTIONS), **pings}.items()))
    flags = ("--heartbeat-interval", "100", "--election-timeout", "600", "--grpc-keepalive-min-time", "500ms")
    with running(tmp_path / "etcd", 3, flags) as etcd:
        frozen = next(member for member in etcd.members if member is not etcd.leader())
        others = [member.endpoint for member in etcd.members if member is not frozen]
        watching, writing = opened(frozen.endpoint, *others), opened(*others)
        start = await put(writing, "/w/a")
        watch = watching.watch("/w/", start)
        assert (await put(writing, "/w/b")) == (await anext(watch)).version
        frozen.freeze()
        version = await put(writing, "/w/c")
        async with asyncio.timeout(SLACK_SECS):
            assert (await anext(watch)).version == version
        await watch.aclose()
        await watching.close()
        await writing.close()


def test_pings_are_within_what_etcd_allows() -> None:
    """Field case 98: etcd ends connections that ping more than every 5 s, or with nothing open."""
    options = dict(etcd_link.OPTIONS)
    assert options["grpc.keepalive_time_ms"] >= 2 * 5_000
    assert not options["grpc.keepalive_permit_without_calls"]
    assert options["grpc.http2.max_pings_without_data"] == 0
    # Without it a ping may go unanswered for a minute.
    assert options["grpc.http2.ping_timeout_ms"] <= 5_000


def on_another_loop(store: EtcdStore, work: Callable[[], Awaitable[object]]) -> threading.Thread:
    async def run() -> None:
        await work()
        await store.release()

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    return thread


async def test_a_blocked_loop_does_not_stop_another(direct: EtcdStore) -> None:
    """Heartbeats run on a thread of their own: it writes while the loop that opened the store stands still."""
    await put(direct, "/a")
    version = (await direct.read(["/a"]))["/a"].version

    async def beat() -> None:
        current = version
        for _ in range(20):
            outcome = await direct.write([At("/a", current)], [Put("/a", b"")])
            assert isinstance(outcome, Committed)
            current = outcome.version

    thread = on_another_loop(direct, beat)
    thread.join(timeout=SLACK_SECS)  # the loop of this test does nothing meanwhile
    assert not thread.is_alive()
    assert (await direct.read(["/a"]))["/a"].version == version + 20


async def test_closing_ends_what_waits_on_every_loop(direct: EtcdStore) -> None:
    """Watches of other threads end too; loops that are gone are no obstacle."""
    on_another_loop(direct, lambda: direct.read(["/a"])).join()
    began, ended = threading.Event(), threading.Event()

    async def watch() -> None:
        async for _ in direct.watch("/w/", start - 1):
            began.set()
        ended.set()

    start = await put(direct, "/w/a")
    thread = on_another_loop(direct, watch)
    assert await asyncio.to_thread(began.wait, 10)
    await direct.close()
    await asyncio.to_thread(thread.join, 10)
    assert ended.is_set()


async def test_a_cancelled_caller_is_cancelled(direct: EtcdStore) -> None:
    """Only closing the store turns a cancellation into an answer."""
    watching = asyncio.ensure_future(anext(direct.watch("/w/", await put(direct, "/w/a"))))
    await asyncio.wait((watching,), timeout=0.1)
    watching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await watching


async def test_what_is_too_large_is_refused(direct: EtcdStore) -> None:
    """A row over etcd's own bound is the caller's fault, not the store's absence."""
    for size in (1_600_000, 3_000_000):
        with pytest.raises(ValueError, match="large"):
            await direct.write([], [Put("/big", bytes(size))])
    assert await direct.read(["/big"]) == {}


async def test_many_keys_and_long_tables_come_from_one_snapshot(direct: EtcdStore) -> None:
    """Past the 128 operations of a transaction, and past a page, nothing written meanwhile shows."""
    keys = [f"/t/{n:04}" for n in range(2_304)]
    for at in range(0, len(keys), 128):
        await direct.write([], [Put(key, b"old") for key in keys[at : at + 128]])

    async def meddle() -> None:
        for at in range(0, len(keys), 128):
            await direct.write([], [Put(key, b"new") for key in keys[at : at + 128]])

    page = await direct.scan("/t/")
    meddling = asyncio.ensure_future(meddle())
    seen = list(page.records)
    while page.token is not None:
        assert len(page.records) == 1000
        page = await direct.scan("/t/", token=page.token)
        seen += page.records
    assert [(record.key, record.value) for record in seen] == [(key, b"old") for key in keys]
    await meddling
    assert set(await direct.read(keys[:300])) == set(keys[:300])
