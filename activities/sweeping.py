"""One pass of a sweep: due rows of the mirror, each taken to a live node that wakes its object (PROTOCOLS section 9).

An object that is held by a live node is looked at there; any other by the first node in its rendezvous order that
serves its class. A node may answer that the object had better wake on a member, or lives elsewhere: then that node is
asked, once. Nobody here writes anything: the nodes do, by claiming.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from temporalio import activity

from domicile.activities.world import RegionWorld, World
from domicile.errors import DomicileError
from domicile.node.control.messages import WakeRequest, Woken
from domicile.node.errors import NodeError
from domicile.placement.alarms import Alarms, Due
from domicile.placement.claims import lease_seen
from domicile.placement.gates import decide
from domicile.placement.records import Forwarded, Held, MovingTo, NodeRow, ObjectKey
from domicile.placement.rendezvous import Candidate, rank
from domicile.placement.store import ScanExpired
from domicile.workflows.sweep_alarms import Pass, Passed, Swept

ASK_ROWS = 32
ASK_SECS = 25.0
SERVING = "serving"


@dataclass(frozen=True, slots=True)
class Aim:
    """A row and the node to ask: the holder if there is one; None when no node can take it."""

    due: Due
    node: NodeRow | None


class SweepingActivities:
    """Run where the region's nodes are near."""

    def __init__(self, world: World) -> None:
        self._world = world

    def steps(self) -> Sequence[Callable[..., Any]]:
        """The activities."""
        return (self.sweep_pass,)

    @activity.defn(name="sweep-pass")
    async def sweep_pass(self, asked: Pass) -> Passed:
        """Wake the rows of one page. Safe to repeat: a row whose object was woken is gone, or is looked at again."""
        region = await self._world.region(asked.region)
        until_ms = asked.until_ms or self._world.clock.wall_ms()
        rows, token = await _page(region, replace(asked, until_ms=until_ms))
        after = region.keys.alarm(rows[-1].row.due_ms, rows[-1].object_id) if rows else asked.after
        swept = await Waking(region, await region.nodes()).wake(rows)
        return Passed(swept, until_ms, after, token or "", more=token is not None)


async def _page(region: RegionWorld, asked: Pass) -> tuple[list[Due], str | None]:
    """The next rows, and what asks for those behind them. A snapshot that is gone is begun anew, read past."""
    alarms = Alarms(region.store, region.keys)
    token = asked.token or None
    while True:
        try:
            page = await alarms.due(asked.until_ms, asked.rows, token)
        except ScanExpired:
            if token is None:
                raise
            token = None
            continue
        rows = [due for due in page.rows if region.keys.alarm(due.row.due_ms, due.object_id) > asked.after]
        token = page.token
        if rows or token is None:
            return rows, token
        activity.heartbeat()


class Waking:
    """The rows of one page, and the nodes there are."""

    def __init__(self, region: RegionWorld, nodes: Iterable[NodeRow]) -> None:
        self._region = region
        self._nodes = {row.node_id: row for row in nodes}
        self._swept = Swept()
        self._silent: set[str] = set()

    async def wake(self, rows: Sequence[Due]) -> Swept:
        """Ask for all of them, side by side by node. Raises StoreUnavailable."""
        aims = await self._aimed(rows)
        self._count(skipped=len(rows) - len(aims))
        again = await self._ask_all(aims, may_forward=True)
        left = await self._ask_all(again, may_forward=False)
        self._count(left=len(left))
        return replace(self._swept, rows=len(rows))

    async def _aimed(self, rows: Sequence[Due]) -> list[Aim]:
        """By gates and lease rows as they are. What is moving, or has gone, is nobody's here to wake."""
        keys = {due.object_id: ObjectKey(due.row.scope, due.row.cls, due.row.name) for due in rows}
        wanted = [self._region.keys.lease(object_id) for object_id in keys]
        wanted += [gate for key in keys.values() for gate in self._region.keys.gates_of(key)]
        found = await self._region.store.read(list(dict.fromkeys(wanted)))
        aims = []
        for due in rows:
            gate = decide(self._region.keys, keys[due.object_id], found).gate
            lease = lease_seen(found.get(self._region.keys.lease(due.object_id)))
            state = lease.row.state if lease is not None else None
            if (gate is not None and not gate.open) or isinstance(state, MovingTo | Forwarded):
                continue
            holder = self._nodes.get(state.owner) if isinstance(state, Held) else None
            aims.append(Aim(due, holder or self._first(due, set())))
        return aims

    def _first(self, due: Due, left_out: set[str]) -> NodeRow | None:
        """The node that wakes an object nobody holds."""
        fit = {
            row.node_id: row
            for row in self._nodes.values()
            if row.state == SERVING and due.row.cls in row.classes and row.node_id not in left_out
        }
        order = rank(due.object_id, [Candidate(row.node_id, row.weight) for row in fit.values()])
        return fit[order[0].id] if order else None

    async def _ask_all(self, aims: Sequence[Aim], *, may_forward: bool) -> list[Aim]:
        """Those that are to be asked for again, elsewhere."""
        by_node: dict[str, list[Aim]] = {}
        again: list[Aim] = []
        for aim in aims:
            if aim.node is None:
                self._count(left=1)
            else:
                by_node.setdefault(aim.node.node_id, []).append(aim)
        asking = [self._ask_node(its, may_forward=may_forward) for its in by_node.values()]
        for more in await asyncio.gather(*asking):
            again += more
        return again

    async def _ask_node(self, aims: Sequence[Aim], *, may_forward: bool) -> list[Aim]:
        again: list[Aim] = []
        for at in range(0, len(aims), ASK_ROWS):
            batch = aims[at : at + ASK_ROWS]
            node = batch[0].node
            assert node is not None
            rows = tuple((aim.due.row, aim.due.version) for aim in batch)
            request = WakeRequest(rows, may_forward, tuple(sorted(self._silent)))
            try:
                answer = await self._region.ask(node, "wake-alarm", msgspec.msgpack.encode(request), ASK_SECS)
            except (NodeError, DomicileError):
                # Whoever is asked next finds out whether it is gone, and has it evicted if so.
                self._silent.add(node.node_id)
                again += [replace(aim, node=self._first(aim.due, {node.node_id})) for aim in batch]
                continue
            finally:
                activity.heartbeat()
            woken = msgspec.msgpack.decode(answer, type=list[Woken])
            again += [aim for aim in map(self._settle, batch, woken) if aim is not None]
        return again

    def _settle(self, aim: Aim, woken: Woken) -> Aim | None:
        """Count what became of a row; the row again if another node is to be asked."""
        named = self._nodes.get(woken.node)
        if woken.wake == "elsewhere":
            assert aim.node is not None
            return replace(aim, node=named or self._first(aim.due, {aim.node.node_id}))
        self._count(**_COUNTED[woken.wake])
        return None

    def _count(self, **more: int) -> None:
        self._swept = self._swept.plus(Swept(**more))


_COUNTED: Mapping[str, dict[str, int]] = {
    "awake": {"woken": 1},
    "ghost": {"ghosts": 1},
    "moving": {"skipped": 1},
    "refused": {"left": 1},
}
