"""CAPACITY: a node that has as many objects as it may sends cold ones to nodes that have room."""

from __future__ import annotations

from domicile import Object

CAPACITY = 4
MANY = 16


class Slip(Object):
    def add(self) -> int:
        self.kv.put("n", self.kv.get("n", 0) + 1)
        return int(self.kv.get("n"))


def test_a_full_node_sends_cold_objects_on(cluster):
    """Births at one node fill it, then the others; once all are full they are homed where they land. What lives
    elsewhere is found, through the full node too."""

    async def scenario(c):
        first = c.nodes[0]

        async def told() -> None:
            for one in c.nodes:
                one.node._heartbeat.hurry()
            await c.until(
                lambda: all(
                    {row.node_id: row.load for row in seer.node._nodes.all()}
                    == {one.node.node_id: len(one.node._residents) for one in c.nodes}
                    for seer in c.nodes
                ),
                "all know how full all are",
            )

        for n in range(MANY):
            assert await first.call("Slip", f"s{n}", "add") == 1
            await told()
        loads = [len(one.node._residents) for one in c.nodes]
        assert loads[1:] == [CAPACITY, CAPACITY]
        assert loads[0] == MANY - 2 * CAPACITY
        for n in range(MANY):
            assert await first.call("Slip", f"s{n}", "add") == 2
        assert [len(one.node._residents) for one in c.nodes] == loads

    cluster(scenario, Slip, capacity=CAPACITY)
