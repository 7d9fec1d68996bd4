"""Nodes that remember the wrong home, while the object changes its place under calls."""

from __future__ import annotations

import asyncio

from counting import Counter

from domicile.placement.records import ObjectKey

FORWARDS_MAX = 4  # three resolutions where the call landed, and a node that is not the home may name one more


def test_calls_do_not_go_round_where_every_node_believes_another(cluster):
    """Field case 58: holder caches point in a circle and the object sleeps: few hops a call, each runs once."""

    async def scenario(c):
        object_id = ObjectKey("demo", "Counter", "a").id
        forwards = 0
        for one in c.nodes:
            peers = one.hood.peers

            async def counted(*args, call=peers.call):
                nonlocal forwards
                forwards += 1
                return await call(*args)

            peers.call = counted
        await c.nodes[0].call("Counter", "a", "increment")
        done = 1
        for _ in range(5):
            home = c.home("Counter", "a")
            await home.node._residents.put_to_sleep(home.residency("Counter", "a"))
            for one, other in zip(c.nodes, [*c.nodes[1:], c.nodes[0]], strict=True):
                one.node._router._remember(object_id, other.node.node_id)
            before = forwards
            numbers = await asyncio.gather(*(one.call("Counter", "a", "increment") for one in c.nodes))
            assert sorted(numbers) == [done + 1, done + 2, done + 3]
            assert forwards - before <= FORWARDS_MAX * len(c.nodes)
            done += 3

    cluster(scenario, Counter)
