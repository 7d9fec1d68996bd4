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

from domicile.activities.node_questions import NodeQuestions
from domicile.activities.object_rows import ObjectRows, read_rows
from domicile.activities.refusals import cut
from domicile.activities.world import RegionWorld
from domicile.node.clock import Clock
from domicile.node.control.messages import DrainObject, DrainProject, Landed, ProjectLeft
from domicile.placement.records import Held, MovingTo
from domicile.placement.store import ScanExpired
from domicile.workflows.move_values import DrainOrder, DrainResult

PAGE_OBJECTS = 250
PARALLEL = 16
LOOK_SECS = 0.05
LOOK_SECS_MAX = 1.0
PROJECT_SECS = 7.0  # a little more than a node waits for its releases
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
        self._questions = NodeQuestions(region, log)
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
            await asyncio.gather(*(self._land(one, answering, tell) for one in left))
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
        answers = await asyncio.gather(
            *(self._questions.ask(node, "drain-project", body, PROJECT_SECS) for node in nodes)
        )
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
            rows = await read_rows(self._region, [keys.instance_of(row.key) for row in page.records], heads=True)
            left += [Left(row, _owner(row)) for row in rows if _is_left(row)]
            looked += len(rows)
            self._result.objects = looked
            tell(self._result)
            token = page.token
            if token is None:
                return left

    async def _land(self, left: Left, answering: set[str], tell: Tell) -> None:
        """By its owner, if that lives and answers; else by another node that has its class."""
        key = left.rows.key
        if left.owner is None or key.id in self._incidents:
            return
        async with self._at_once:
            asked = DrainObject(key.scope, key.cls, key.name, self._order.accept)
            body = msgspec.msgpack.encode(asked)
            answer = await self._questions.ask_about(left.rows, "drain-object", body, answering)
            tell(self._result)
        if answer is None:
            return
        landed = msgspec.msgpack.decode(answer, type=Landed)
        if landed.incident:
            self._incidents[key.id] = f"{key}: {landed.incident}"
        else:
            self._result.landed += 1


def _is_left(rows: ObjectRows) -> bool:
    return isinstance(rows.state, Held | MovingTo) and not rows.class_gate and not rows.own_gate


def _owner(rows: ObjectRows) -> str | None:
    return rows.state.owner if isinstance(rows.state, Held) else None
