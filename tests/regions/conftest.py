"""Two regions or three in the test's own process: own stores, own buckets, own nodes, and a control keyspace apart."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from cut_off import CutOff
from whole_nodes import NodeGroup, One

from domicile import Object
from domicile.node.clock import SystemClock
from domicile.node.values import Answer, Call
from domicile.placement.embedded import EmbeddedStore
from domicile.placement.records import ObjectKey


class Regions:
    """`a`, `b`, … are the regions' first nodes; `groups` all nodes of each; `control`, the keyspace, can be away."""

    def __init__(self, groups: dict[str, NodeGroup], control: CutOff) -> None:
        self.groups = groups
        self.control = control

    def __getattr__(self, name: str) -> One:
        return self.groups[name].nodes[0]

    async def call(self, through: str, project: str, cls: str, name: str, method: str, *args: Any, **how: Any) -> Any:
        return json.loads((await self.answer(through, project, cls, name, method, *args, **how)).body)

    async def answer(
        self, through: str, project: str, cls: str, name: str, method: str, *args: Any, key: str | None = None
    ) -> Answer:
        """A client's call through the first node of a region."""
        node = self.groups[through].nodes[0].node
        call = Call(ObjectKey(project, cls, name), method, json.dumps(list(args)).encode(), node.now() + 20.0, key)
        return await node.call(call)

    def hops(self, through: str) -> int:
        """How many hops to other regions the region's first node has made."""
        family = self.groups[through].nodes[0].node._seams.telemetry.region_hops
        return sum(int(counter.value) for counter in family.children.values())

    def lives_in(self, project: str, cls: str, name: str) -> list[str]:
        """The regions with a residency of the object."""
        key = ObjectKey(project, cls, name)
        return [
            region
            for region, group in self.groups.items()
            if any(one.node._residents.find(key.id) is not None for one in group.nodes)
        ]

    async def until(self, holds: Callable[[], Any], what: str) -> None:
        """Wait on the condition `what` (awaited if it is awaitable), not on time."""
        await next(iter(self.groups.values())).until(holds, what)

    async def all_know(self, *names: str) -> None:
        """Every node has seen how these regions are reached now."""

        def knows(one: One, name: str) -> bool:
            row = one.node._control.regions.known(name)
            return row is not None and row.ingress == ",".join(n.hood.address for n in self.groups[name].nodes)

        ones = [one for group in self.groups.values() for one in group.nodes]
        await self.until(lambda: all(knows(one, name) for one in ones for name in names), "all know the regions")


@pytest.fixture
def regions(tmp_path: Path) -> Callable[..., None]:
    """`regions(scenario, *classes, names=("a", "b"), nodes=1, **settings)` runs `async def scenario(regions)`.

    `classes` may be a mapping: other classes for each region.
    """

    def go(
        scenario: Callable[[Regions], Awaitable[None]],
        *classes: type[Object],
        names: tuple[str, ...] = ("a", "b"),
        of: dict[str, tuple[type[Object], ...]] | None = None,
        nodes: int = 1,
        **settings: Any,
    ) -> None:
        async def main() -> None:
            control = CutOff(EmbeddedStore(str(tmp_path / "control.db"), SystemClock().monotonic))
            groups = {}
            try:
                for name in names:
                    own = {"region": name, "object_replicas": 0, "object_quorum": 0, "object_journal_mb": 4, **settings}
                    group = NodeGroup(tmp_path / name, (of or {}).get(name, classes), own)
                    group.control = control
                    groups[name] = group
                    await group.start(nodes)
                world = Regions(groups, control)
                await world.all_know(*names)
                await scenario(world)
            finally:
                for group in groups.values():
                    await group.stop()
                await control.close()

        asyncio.run(main())

    return go
