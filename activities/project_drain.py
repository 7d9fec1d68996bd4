"""The drain of a project whose gate is closed: until every row of its directory is released clean (section 10, step 3).

Nodes are asked to end what is awake; a row whose owner is gone, or left dirty, is landed by a drain claim. What has a
gate of its own, or lives elsewhere, does not count.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
from blake3 import blake3

from domicile.activities.object_rows import ObjectRows, read_rows
from domicile.activities.refusals import cut
from domicile.activities.world import RegionWorld
from domicile.errors import DomicileError
from domicile.node.clock import Clock
from domicile.node.control_messages import DrainObject, DrainProject, Landed, ProjectLeft
from domicile.node.errors import PeerBusy, PeerGone
from domicile.placement.records import Held, MovingTo, NodeRow
from domicile.placement.store import ScanExpired
from domicile.workflows.move_values import DrainOrder, DrainResult

PAGE_OBJECTS = 200
PARALLEL = 16
ASK_SECS = 15.0
LOOK_SECS = 0.05
LOOK_SECS_MAX = 1.0
SHOWN = 10

Tell = Callable[[DrainResult], None]


@dataclass(frozen=True, slots=True)
class Left:
    """A row that is not released: whose it is; None while its object moves by itself."""

    rows: ObjectRows
    owner: str | None


class ProjectDrain:
    """One drain."""

    def __init__(self, region: RegionWorld, order: DrainOrder, clock: Clock, log: Any) -> None:
        self._region = region
        self._order = order
        self._clock = clock
        self._log = log
        self._at_once = asyncio.Semaphore(PARALLEL)
        self._incidents: dict[str, str] = {}
        self._result = DrainResult()

    async def run(self, tell: Tell) -> DrainResult:
        """Returns when nothing is left but incidents. `tell` is called at least every few seconds."""
        wait = LOOK_SECS
        while True:
            tell(self._result)
            answering = await self._ask_nodes()
            tell(self._result)
            left = await self._left(tell)
            if not left or all(one.rows.key.id in self._incidents for one in left):
                return self._ended()
            nodes = await self._region.nodes()
            await asyncio.gather(*(self._land(one, nodes, answering, tell) for one in left))
            await self._clock.sleep(wait)
            wait = min(wait * 2, LOOK_SECS_MAX)

    def _ended(self) -> DrainResult:
        shown = [f"{name}: {why}" for name, why in sorted(self._incidents.items())]
        self._result.incidents = [cut(line) for line in shown[:SHOWN]]
        self._result.incidents_in_all = len(shown)
        return self._result

    async def _ask_nodes(self) -> set[str]:
        """Every node ends what is awake there; gives those that answered."""
        nodes = [node for node in await self._region.nodes() if node.peer]
        body = msgspec.msgpack.encode(DrainProject(self._order.project))
        answers = await asyncio.gather(*(self._ask(node, "drain-project", body) for node in nodes))
        for node, answer in zip(nodes, answers, strict=True):
            if answer is not None and msgspec.msgpack.decode(answer, type=ProjectLeft).left:
                self._log.info("drain.left", node=node.node_id, project=self._order.project)
        return {node.node_id for node, answer in zip(nodes, answers, strict=True) if answer is not None}

    async def _left(self, tell: Tell) -> list[Left]:
        """All rows of the directory that are not released, and are to be."""
        keys = self._region.keys
        left: list[Left] = []
        token: str | None = None
        looked = 0
        while True:
            try:
                page = await self._region.store.scan(keys.instances(self._order.project), PAGE_OBJECTS, token)
            except ScanExpired:
                token, left, looked = None, [], 0
                continue
            rows = await read_rows(self._region, [keys.instance_of(record.key) for record in page.records])
            left += [Left(row, _owner(row)) for row in rows if _is_left(row)]
            looked += len(rows)
            self._result.objects = looked
            tell(self._result)
            token = page.token
            if token is None:
                return left

    async def _land(self, left: Left, nodes: list[NodeRow], answering: set[str], tell: Tell) -> None:
        """By its owner, if that lives and answers; else by another node that has its class."""
        key = left.rows.key
        if left.owner is None or key.id in self._incidents:
            return
        async with self._at_once:
            node = self._chosen(left, nodes, answering)
            if node is None:
                self._log.warning("drain.nobody", object=str(key), region=self._region.name)
                return
            asked = DrainObject(key.scope, key.cls, key.name, self._order.accept)
            answer = await self._ask(node, "drain-object", msgspec.msgpack.encode(asked))
            tell(self._result)
        if answer is None:
            return
        landed = msgspec.msgpack.decode(answer, type=Landed)
        if landed.incident:
            self._incidents[key.id] = f"{key}: {landed.incident}"
        else:
            self._result.landed += 1

    def _chosen(self, left: Left, nodes: list[NodeRow], answering: set[str]) -> NodeRow | None:
        usable = [n for n in nodes if n.node_id in answering and left.rows.key.cls in n.classes]
        owner = next((node for node in usable if node.node_id == left.owner), None)
        if owner is not None:
            return owner
        serving = [node for node in usable if node.state == "serving"]
        seed = left.rows.key.id + str(left.rows.lease.version if left.rows.lease else 0)
        return min(serving, key=lambda node: blake3((node.node_id + seed).encode()).digest(), default=None)

    async def _ask(self, node: NodeRow, method: str, body: bytes) -> bytes | None:
        """None when the node does not answer, or cannot now: it is asked again, or another is."""
        try:
            return await self._region.ask(node, method, body, ASK_SECS)
        except (PeerGone, PeerBusy, DomicileError) as error:
            self._log.warning("drain.asked", node=node.node_id, method=method, error=cut(str(error)))
            return None


def _is_left(rows: ObjectRows) -> bool:
    return isinstance(rows.state, Held | MovingTo) and not rows.class_gate and not rows.own_gate


def _owner(rows: ObjectRows) -> str | None:
    return rows.state.owner if isinstance(rows.state, Held) else None
