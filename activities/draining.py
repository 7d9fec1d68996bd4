"""Draining one node, by asking it (PROTOCOLS section 10, "DrainNode"): it releases in batches and says what is left."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from temporalio import activity

from domicile.activities.refusals import refused
from domicile.activities.world import RegionWorld, World
from domicile.node.control.messages import DrainAnswer, DrainRequest
from domicile.placement.followed import decode
from domicile.placement.records import NodeRow
from domicile.workflows.drain_node import Drain, Drained

ASK_SECS = 20.0
LOOK_SECS = 0.2
SERVING = "serving"


class DrainingActivities:
    """Run where the region's nodes are near."""

    def __init__(self, world: World) -> None:
        self._world = world

    def steps(self) -> Sequence[Callable[..., Any]]:
        """The activities."""
        return (self.check, self.release, self.undo)

    @activity.defn(name="drain-check")
    async def check(self, asked: Drain) -> int:
        """How many objects the node is home to. Fails for good when it is unknown, or nobody else serves."""
        region = await self._world.region(asked.region)
        node = await _find(region, asked.node)
        if node is None:
            raise refused("NoSuchNode", f"there is no node {asked.node} in region {asked.region}")
        others = [row for row in await region.nodes() if row.node_id != node.node_id and row.state == SERVING]
        if not others:
            unserved = f"nobody could take what {asked.node} releases"
            raise refused("NoOtherNode", f"no other node of region {asked.region} serves: {unserved}")
        return node.load

    @activity.defn(name="drain-release")
    async def release(self, asked: Drain) -> Drained:
        """Batch after batch until the node is empty, or gone. Safe to repeat; heartbeats tell how many are left."""
        region = await self._world.region(asked.region)
        released = _released_before()
        while True:
            node = await _find(region, asked.node)
            if node is None:
                return Drained(asked.node, released, "gone")
            answer = await _ask(region, node, DrainRequest())
            released = max(released, answer.released)
            activity.heartbeat({"done": released, "total": released + answer.left})
            if answer.left == 0:
                return Drained(asked.node, released, "empty")
            await self._world.clock.sleep(LOOK_SECS)

    @activity.defn(name="drain-undo")
    async def undo(self, asked: Drain) -> None:
        """The node serves again; nothing to do for one that is gone."""
        region = await self._world.region(asked.region)
        node = await _find(region, asked.node)
        if node is not None:
            await _ask(region, node, DrainRequest(undo=True))


def _released_before() -> int:
    """What an earlier attempt had seen."""
    details = activity.info().heartbeat_details
    return int(details[0]["done"]) if details else 0


async def _find(region: RegionWorld, node_id: str) -> NodeRow | None:
    key = region.keys.node(node_id)
    record = (await region.store.read([key])).get(key)
    return decode(record, NodeRow).row if record else None


async def _ask(region: RegionWorld, node: NodeRow, request: DrainRequest) -> DrainAnswer:
    answer = await region.ask(node, "drain-node", msgspec.msgpack.encode(request), ASK_SECS)
    return msgspec.msgpack.decode(answer, type=DrainAnswer)
