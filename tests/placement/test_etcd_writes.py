"""Writes that go to etcd together: each as if it had gone by itself, and never two that meet."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aetcd.rpc import rpc_pb2 as pb
from etcd_servers import Etcd
from hypothesis import given
from hypothesis import strategies as st
from link_proxy import proxied

from domicile.placement import etcd_link
from domicile.placement.etcd import EtcdStore
from domicile.placement.etcd_link import EtcdConfig, Link
from domicile.placement.etcd_writes import TOGETHER_MAX, Waiting, fitting
from domicile.placement.store import At, Committed, Conflict, Delete, Put, StoreUnavailable

pytestmark = pytest.mark.anyio

MANY = 200


@pytest.fixture
async def store(etcd: Etcd) -> AsyncIterator[EtcdStore]:
    store = EtcdStore(EtcdConfig(etcd.endpoints), time.monotonic, asyncio.sleep)
    yield store
    await store.close()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """One entry for each request that was sent."""
    sent: list[object] = []
    ask = Link.ask

    async def counted(link: Link, send: Any, *, once: bool = False) -> Any:
        sent.append(send)
        return await ask(link, send, once=once)

    monkeypatch.setattr(Link, "ask", counted)
    return sent


keys = st.frozensets(st.sampled_from("abcdefgh"), max_size=3)


@given(st.lists(st.tuples(keys, keys, st.integers(1, 300_000)), max_size=120))
def test_only_what_does_not_meet_goes_together(wishes: list[tuple[frozenset[str], frozenset[str], int]]) -> None:
    """No write of a batch changes what another asks or changes; the first always goes; nothing is lost or doubled."""
    waiting = [Waiting(pb.TxnRequest(), asks, changes, size, None) for asks, changes, size in wishes]  # type: ignore[arg-type]
    batch, rest = fitting(waiting)
    assert sorted(map(id, batch + rest)) == sorted(map(id, waiting))
    assert batch[:1] == waiting[:1]
    assert len(batch) <= TOGETHER_MAX
    for one in batch:
        for other in batch:
            if one is not other:
                assert one.changes.isdisjoint(other.changes | other.asks)


async def test_many_writes_at_once_go_together(store: EtcdStore, asked: list[object]) -> None:
    """Each is told its own outcome: done with its version, or in conflict with what stands."""
    first = await store.write([], [Put("/stands", b"here")])
    assert isinstance(first, Committed)
    del asked[:]
    wishes = [
        store.write([At("/stands", first.version)], [Put(f"/made/{n}", b"%d" % n)])
        if n % 3
        else store.write([At("/stands", 0)], [Put(f"/never/{n}", b"")])
        for n in range(MANY)
    ]
    outcomes = await asyncio.gather(*wishes)
    assert len(asked) < MANY / 4
    for n, outcome in enumerate(outcomes):
        if n % 3:
            assert isinstance(outcome, Committed)
            row = (await store.read([f"/made/{n}"]))[f"/made/{n}"]
            assert (row.value, row.version) == (b"%d" % n, outcome.version)
        else:
            assert isinstance(outcome, Conflict)
            stands = outcome.current["/stands"]
            assert stands is not None
            assert (stands.value, stands.version) == (b"here", first.version)
    assert (await store.scan("/never/")).records == ()


async def test_two_that_would_undo_each_others_condition_never_both_happen(store: EtcdStore) -> None:
    """Each changes what the other is conditioned on: in whatever order, one of the two is in conflict."""
    for round_ in range(20):
        a, b = f"/a/{round_}", f"/b/{round_}"
        at = {key: (await store.write([], [Put(key, b"")])) for key in (a, b)}
        busy = [store.write([], [Put(f"/busy/{round_}/{n}", b"")]) for n in range(4)]
        pairs = [
            store.write([At(a, at[a].version)], [Put(b, b"1")]),  # type: ignore[union-attr]
            store.write([At(b, at[b].version)], [Delete(a)]),  # type: ignore[union-attr]
        ]
        done = (await asyncio.gather(*busy, *pairs))[-2:]
        assert sorted(type(one).__name__ for one in done) == ["Committed", "Conflict"]


async def test_one_of_many_claims_of_a_key_wins(store: EtcdStore) -> None:
    """Compare and swap under contention: every version has one successor."""
    for round_ in range(5):
        key = f"/k/{round_}"
        outcomes = await asyncio.gather(*(store.write([At(key, 0)], [Put(key, b"%d" % n)]) for n in range(40)))
        won = [n for n, outcome in enumerate(outcomes) if isinstance(outcome, Committed)]
        assert len(won) == 1
        assert (await store.read([key]))[key].value == b"%d" % won[0]


async def test_one_that_is_refused_takes_none_along(store: EtcdStore) -> None:
    """A row that is too large for etcd is its caller's fault alone."""
    wishes = [store.write([], [Put(f"/r/{n}", bytes(250_000 if n != 5 else 10))]) for n in range(8)]
    huge = store.write([], [Put("/huge", bytes(1_600_000))])
    *fine, refused = await asyncio.gather(*wishes, huge, return_exceptions=True)
    assert all(isinstance(outcome, Committed) for outcome in fine)
    assert isinstance(refused, ValueError)


async def test_a_lost_answer_is_maybe_for_all_that_went(etcd: Etcd, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever changed something may have; who gave up meanwhile holds up nobody, and the next goes through."""
    monkeypatch.setattr(etcd_link, "REQUEST_SECS", 1.0)
    async with proxied(etcd.endpoints[0]) as proxy:
        store = EtcdStore(EtcdConfig((proxy.endpoint,)), time.monotonic, asyncio.sleep)
        await store.read(["/a"])
        proxy.swallowing = True
        wishes = [asyncio.ensure_future(store.write([], [Put(f"/l/{n}", b"")])) for n in range(20)]
        await asyncio.wait(wishes, timeout=0.1)
        wishes[10].cancel()
        outcomes = await asyncio.gather(*wishes, return_exceptions=True)
        assert isinstance(outcomes.pop(10), asyncio.CancelledError)
        assert all(isinstance(outcome, StoreUnavailable) and outcome.maybe for outcome in outcomes)
        proxy.cut()
        async with asyncio.timeout(20):  # the first may yet leave by the connection that was cut
            outcome: object = None
            while not isinstance(outcome, Committed):
                (outcome,) = await asyncio.gather(store.write([], [Put("/after", b"")]), return_exceptions=True)
                assert isinstance(outcome, Committed | StoreUnavailable)
        await store.close()
