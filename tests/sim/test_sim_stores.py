"""The stores' twins: true compare-and-swap and versions, and all the ways in which an answer can go missing."""

from __future__ import annotations

import asyncio
import random

import pytest
from simworld.blobs import SimBlobs
from simworld.loop import SimLoop
from simworld.process import Process
from simworld.store import SimStore
from simworld.weather import Odds

from domicile.node.blobs.base import ABSENT
from domicile.node.errors import BlobMissing, BlobUnavailable, PreconditionFailed
from domicile.placement.store import (
    At,
    Committed,
    Conflict,
    Delete,
    Event,
    GrantGone,
    Put,
    Resync,
    ScanExpired,
    Since,
    StoreUnavailable,
)


def run(main, seed=1):
    loop = SimLoop(seed)
    rng = random.Random(seed)
    try:
        return loop.run(main(loop, SimBlobs(loop, rng), SimStore(loop, rng).session()))
    finally:
        loop.end()


def test_a_register_is_swapped_only_at_its_tag():
    """ABSENT and tags are preconditions; a failed one stores nothing; every value of the register is remembered."""

    async def main(loop, blobs, store):
        first = await blobs.put("m/o", b"1", ABSENT)
        with pytest.raises(PreconditionFailed):
            await blobs.put("m/o", b"x", ABSENT)
        second = await blobs.put("m/o", b"2", first)
        with pytest.raises(PreconditionFailed):
            await blobs.put("m/o", b"x", first)
        assert (await blobs.get("m/o")).tag == second
        await blobs.put("o/c/1", b"chunk")
        assert [(one.key, one.size) async for one in blobs.list("o/c/")] == [("o/c/1", 5)]
        await blobs.delete("o/c/1")
        await blobs.delete("o/c/1")
        with pytest.raises(BlobMissing):
            await blobs.get("o/c/1")
        return [(moment.data, sorted(moment.store)) for moment in blobs.moments]

    assert run(main) == [(b"1", ["m/o"]), (b"2", ["m/o"]), (b"2", ["m/o"])]


@pytest.mark.parametrize(("odds", "lands"), [("request_lost", False), ("answer_lost", True), ("late", True)])
def test_an_unanswered_put_may_have_happened(odds, lands):
    """The caller learns `maybe`; whether, and when, the put lands is another matter."""

    async def main(loop, blobs, store):
        blobs.weather.odds = Odds(**{odds: 1.0})
        with pytest.raises(BlobUnavailable) as raised:
            await blobs.put("k", b"v")
        await asyncio.sleep(60)
        return raised.value.maybe, "k" in blobs.stored()

    assert run(main) == (True, lands)


def test_a_refused_put_did_not_happen():
    """`maybe` is False only for what never left."""

    async def main(loop, blobs, store):
        blobs.weather.odds = Odds(refused=1.0)
        with pytest.raises(BlobUnavailable) as raised:
            await blobs.put("k", b"v")
        await asyncio.sleep(60)
        return raised.value.maybe, blobs.stored()

    assert run(main) == (False, {})


def test_a_put_outlives_the_process_that_sent_it():
    """What was under way when its node was killed still arrives, late ones included; what the dead send does not."""

    async def main(loop, blobs, store):
        process = Process(loop, "node-1")
        blobs.weather.odds = Odds(late=1.0)

        async def node():
            try:
                await blobs.put("zombie", b"v")
            finally:
                await blobs.put("ghost", b"v")

        process.spawn(node())
        await asyncio.sleep(0.01)
        process.kill()
        before = blobs.stored()
        await asyncio.sleep(60)
        return before, blobs.stored()

    assert run(main) == ({}, {"zombie": b"v"})


def test_nothing_is_answered_during_an_outage():
    """In the window every request fails, and afterwards they work again."""

    async def main(loop, blobs, store):
        blobs.weather.outages.append((10.0, 20.0))
        store.server.weather.outages.append((10.0, 20.0))
        await asyncio.sleep(11)
        with pytest.raises(BlobUnavailable):
            await blobs.put("k", b"v", ABSENT)
        with pytest.raises(StoreUnavailable):
            await store.read(["a"])
        await asyncio.sleep(10)
        await blobs.put("k", b"v")
        return await store.read(["a"])

    assert run(main) == {}


def test_placement_writes_are_all_or_nothing_under_one_growing_version():
    """Conditions on version, absence and creation; a conflict shows what is there and changes nothing."""

    async def main(loop, blobs, store):
        one = await store.write([At("a", 0)], [Put("a", b"1"), Put("b", b"1")])
        assert one == Committed(1)
        conflict = await store.write([At("a", 0), At("c", 0)], [Put("c", b"1")])
        assert isinstance(conflict, Conflict)
        assert conflict.current["a"].version == 1
        assert conflict.current["c"] is None
        assert await store.write([At("a", 1), Since("b", 1)], [Put("a", b"2")]) == Committed(2)
        assert isinstance(await store.write([Since("a", 2)], []), Conflict)
        await store.write([], [Delete("b"), Delete("nothing")])
        assert isinstance(await store.write([Since("b", 1)], []), Conflict)
        with pytest.raises(ValueError, match="at most"):
            await store.write([], [Put(f"k{n}", b"") for n in range(129)])
        return {key: (row.value, row.version, row.created) for key, row in (await store.read(["a", "b"])).items()}

    assert run(main) == {"a": (b"2", 2, 1)}


def test_grants_end_on_virtual_time_and_take_their_rows():
    """Rows under a grant vanish with it; keeping it starts its time anew; a row rewritten without it stays."""

    async def main(loop, blobs, store):
        grant = await store.grant(10.0)
        await store.write([], [Put("nodes/a", b""), Put("nodes/b", b"")], grant)
        await asyncio.sleep(8)
        await store.keep(grant)
        await store.write([], [Put("nodes/b", b"mine now")])
        await asyncio.sleep(8)
        assert sorted(store.server.rows()) == ["nodes/a", "nodes/b"]
        await asyncio.sleep(8)
        assert sorted(store.server.rows()) == ["nodes/b"]
        for late in (store.keep(grant), store.write([], [Put("x", b"")], grant)):
            with pytest.raises(GrantGone):
                await late
        await store.revoke(grant)

    run(main)


def test_scans_are_one_snapshot_over_all_pages():
    """Pages show the store as it was at the first; a compacted scan says that it expired."""

    async def main(loop, blobs, store):
        await store.write([], [Put(f"k/{n}", b"") for n in range(5)])
        page = await store.scan("k/", 2)
        await store.write([], [Delete("k/3"), Put("k/9", b"")])
        keys = [row.key for row in page.records]
        while page.token:
            page = await store.scan("k/", 2, page.token)
            keys += [row.key for row in page.records]
        assert keys == [f"k/{n}" for n in range(5)]
        token = (await store.scan("k/", 1)).token
        store.server.compact()
        with pytest.raises(ScanExpired):
            await store.scan("k/", 1, token)

    run(main)


def test_a_watch_misses_nothing_and_says_when_the_past_is_gone():
    """Every change after `after`, in order; Resync over a compacted past."""

    async def main(loop, blobs, store):
        heard = []

        async def watch(after):
            async for event in store.watch("k/", after):
                heard.append(event)

        loop.create_task(watch(0))
        for n in range(5):
            await store.write([], [Put("k/x", str(n).encode()), Put("other", b"")])
        await store.write([], [Delete("k/x")])
        await asyncio.sleep(1)
        values = [event.record and event.record.value for event in heard if isinstance(event, Event)]
        assert values == [b"0", b"1", b"2", b"3", b"4", None]
        store.server.compact()
        heard.clear()
        loop.create_task(watch(2))
        await asyncio.sleep(1)
        assert heard == [Resync(6)]

    run(main)
