"""A node that leaves hands its objects over at the rate at which the others take them (PROTOCOLS section 3)."""

from __future__ import annotations

import asyncio

import pytest

from domicile import Object
from domicile.node.control import draining, hand_over
from domicile.node.control.hand_over import AT_ONCE
from domicile.placement.records import ObjectKey, Released

NAMES = [f"c{n}" for n in range(24)]


class Counter(Object):
    def add(self) -> int:
        self.kv.put("n", self.kv.get("n", 0) + 1)
        return self.kv.get("n", 0)


class Takers:
    """The other nodes, which take nothing while they are held."""

    def __init__(self, ones) -> None:
        self.free = asyncio.Event()
        self.asked = self.most = self.under_way = 0
        for one in ones:
            requests = one.node.handler._requests
            requests["take-object"] = self._held(requests["take-object"])

    def _held(self, take):
        async def held(body: bytes) -> bytes:
            self.asked += 1
            self.under_way += 1
            self.most = max(self.most, self.under_way)
            try:
                await self.free.wait()
                return await take(body)
            finally:
                self.under_way -= 1

        return held


async def homed(c):
    """Objects that all live on one node, and are called there."""
    leaver = c.nodes[0]
    await asyncio.gather(*(leaver.call("Counter", name, "add") for name in NAMES))
    assert all(leaver.home_of("Counter", name) for name in NAMES)
    return leaver, Takers(c.others(leaver))


def test_few_are_under_way_and_the_others_are_served_where_they_are(cluster, monkeypatch):
    """Those whose turn has not come answer at the node that leaves, through any node. One that was released answers
    elsewhere, whoever was asked to take it. When others take them, all are awake there before anybody calls."""
    monkeypatch.setattr(hand_over, "TURN_SECS", 60.0)
    monkeypatch.setattr(hand_over, "CALLED_SECS", 600.0)

    async def scenario(c):
        leaver, takers = await homed(c)
        everyone, others = list(c.nodes), c.others(leaver)
        stopping = asyncio.create_task(c.remove(leaver))
        await c.until(lambda: takers.asked == AT_ONCE, "so many are on their way")
        here = [name for name in NAMES if leaver.home_of("Counter", name)]
        gone = [name for name in NAMES if name not in here]
        assert len(gone) == AT_ONCE
        for one in everyone:
            await asyncio.gather(*(one.call("Counter", name, "add") for name in here))
        assert all(leaver.home_of("Counter", name) for name in here)
        assert await leaver.call("Counter", gone[0], "add") == 2
        assert takers.asked == AT_ONCE
        takers.free.set()
        await stopping
        assert (takers.asked, takers.most) == (len(NAMES), AT_ONCE)
        assert all(any(one.home_of("Counter", name) for one in others) for name in NAMES)
        counts = [await others[0].call("Counter", name, "add") for name in NAMES]
        assert counts == [5 if name in here else 3 if name == gone[0] else 2 for name in NAMES]

    cluster(scenario, Counter, object_flush_ms=10_000)


@pytest.mark.parametrize("nodes", [3, 1])
def test_what_nobody_takes_is_released_within_the_flush_budget(cluster, nodes, monkeypatch):
    """Takers that do not answer, or none at all, keep nothing awake: every object is released, and clean."""
    monkeypatch.setattr(hand_over, "CALLED_SECS", 600.0)
    monkeypatch.setattr(draining, "RESERVE_SECS", 10.0)  # of 12

    async def scenario(c):
        leaver, takers = await homed(c)
        await c.remove(leaver)
        assert takers.asked == (AT_ONCE if nodes > 1 else 0)
        for name in NAMES:
            seen = await leaver.node.leases.read(ObjectKey("demo", "Counter", name).id)
            assert isinstance(seen.row.state, Released), name

    alone = {} if nodes > 1 else {"object_replicas": 1, "object_quorum": 0}
    cluster(scenario, Counter, nodes=nodes, object_flush_ms=500, **alone)
