"""What RecoverIncident does in its region: asks nodes for copies, compares, has the home bring rows back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec
from temporalio import activity
from temporalio.exceptions import ApplicationError

from domicile.activities import branch_report
from domicile.activities.world import RegionUnknownError, RegionWorld, World
from domicile.errors import DomicileError, NotHome
from domicile.node.chunks import LOST, SERVED, lost_key
from domicile.node.control.incident_messages import (
    BranchAt,
    BranchesFound,
    FindBranches,
    ForgetBranch,
    Repair,
    Repaired,
    StoreBranch,
)
from domicile.node.errors import PeerBusy, PeerGone
from domicile.node.sqlite.row_diff import diff
from domicile.placement.incidents import IncidentRow, Incidents
from domicile.placement.records import Epoch, Forwarded, Held, NodeRow, ObjectKey
from domicile.placement.store import StoreUnavailable
from domicile.workflows.recover_incident import Branch, Closed, Decision, Incident, Look, LookFor
from domicile.workflows.watch_incidents import WatchRegion

FIND_SECS, STORE_SECS, REPAIR_SECS = 10.0, 120.0, 300.0
LOOK_SECS = 3600.0
PAUSE_FIRST_SECS, PAUSE_MAX_SECS = 0.5, 20.0
HOPS_MAX = 5
OPEN_MAX = 200
REPORT = "diff.json"
STORED = "stored"

T = TypeVar("T")
Found = tuple[RegionWorld, NodeRow, BranchesFound]
BranchHere = tuple[RegionWorld, NodeRow, BranchAt]


class RecoveringActivities:
    """Run where the region's nodes and bucket are near."""

    def __init__(self, world: World) -> None:
        self._world = world

    def steps(self) -> Sequence[Callable[..., Any]]:
        """The activities."""
        return (self.open, self.look, self.compare, self.repair, self.forget)

    @activity.defn(name="incidents-open")
    async def open(self, asked: WatchRegion) -> list[Incident]:
        """The open incidents of objects that live here; one that moved took its incidents along.

        Up to 200: a history takes no more, and the next run comes soon.
        """
        region = await self._world.region(asked.region)
        found = await Incidents(region.store, region.keys).open()
        here = [one for one in found[:OPEN_MAX] if not await _lives_elsewhere(region, one.row)]
        return [Incident(asked.region, one.object_id, one.epoch) for one in here]

    @activity.defn(name="incident-look")
    async def look(self, asked: LookFor) -> Look:
        """Ask every node, again and again, until there is news, or all have been heard of that are needed."""
        region = await self._world.region(asked.incident.region)
        began, pause = self._world.clock.monotonic(), PAUSE_FIRST_SECS
        while True:
            look, _, _ = await self._look(region, asked.incident)
            news = asked.known is None or asked.known != look.told
            if news or look.suffices or not look.open or self._world.clock.monotonic() - began > LOOK_SECS:
                return look
            activity.heartbeat({"heard": len(look.heard), "missing": len(look.missing)})
            await self._world.clock.sleep(pause)
            pause = min(pause * 1.5, PAUSE_MAX_SECS)

    @activity.defn(name="incident-compare")
    async def compare(self, asked: Incident) -> Branch:
        """Have the longest branch stored as databases, and say by rows what differs from what was served."""
        region = await self._world.region(asked.region)
        _, row, branches = await self._look(region, asked)
        if row is None or not (branches or row.stored):
            raise ApplicationError(f"the branch of {asked.object_id} is not to be had: its node is away")
        epoch = Epoch.parse(asked.epoch)
        served, lost, report = (lost_key(asked.object_id, epoch, part) for part in (SERVED, LOST, REPORT))
        if not row.stored:
            there, node, branch = branches[0]
            request = StoreBranch(asked.object_id, epoch, row.served, row.checksum, branch.source)
            await self._beating(there.ask(node, "incident-store", msgspec.msgpack.encode(request), STORE_SECS))
            for key in (served, lost) if there is not region else ():
                await region.blobs.put(key, (await there.blobs.get(key)).data)
        before, after = (await region.blobs.get(served)).data, (await region.blobs.get(lost)).data
        found = await self._beating(asyncio.to_thread(partial(diff, before, after)))
        await region.blobs.put(report, branch_report.full(found))
        rows, tables = branch_report.rows_of(found), branch_report.summary(found)
        return Branch(lost, len(after), report, rows, tables, branch_report.altered(found))

    @activity.defn(name="incident-repair")
    async def repair(self, asked: Decision) -> Closed:
        """Asked of the object's home, wherever that is; safe to repeat."""
        region = await self._world.region(asked.incident.region)
        row = await Incidents(region.store, region.keys).get(asked.incident.object_id, asked.incident.epoch)
        if row is None:
            return Closed("void")
        if await _lives_elsewhere(region, row):
            return Closed("moved")
        epoch = Epoch.parse(asked.incident.epoch)
        life = None if row.born else row.served.incarnation
        action: Any = asked.action
        repair = Repair(row.scope, row.cls, row.name, life, epoch, action, row.stored)
        answer = await self._beating(_ask_home(region, asked.incident.object_id, row, msgspec.msgpack.encode(repair)))
        done = msgspec.msgpack.decode(answer, type=Repaired)
        return Closed(done.outcome, done.rows, done.already, done.left, list(done.shown), done.why)

    @activity.defn(name="incident-forget")
    async def forget(self, asked: Incident) -> None:
        """The incident is closed: `lost/` of every node that answers gives it up, then the row goes."""
        region = await self._world.region(asked.region)
        body = msgspec.msgpack.encode(ForgetBranch(asked.object_id, Epoch.parse(asked.epoch)))
        for where in (region, *await self._others(region)):
            for node in await where.nodes():
                try:
                    await where.ask(node, "incident-forget", body, FIND_SECS)
                except (PeerGone, PeerBusy, DomicileError) as error:
                    self._world.log.warning(
                        "incident.forget", node=node.node_id, object=asked.object_id, error=str(error)
                    )
        await Incidents(region.store, region.keys).close(asked.object_id, asked.epoch)

    async def _look(self, region: RegionWorld, asked: Incident) -> tuple[Look, IncidentRow | None, list[BranchHere]]:
        """What is known now, the row, and the branches, the longest first. Copies of an object that has moved are with
        the nodes of the region it came from."""
        row = await Incidents(region.store, region.keys).get(asked.object_id, asked.epoch)
        if row is None:
            return Look(open=False), None, []
        named = f"{row.scope}/{row.cls}/{row.name}"
        if await _lives_elsewhere(region, row):
            return Look(open=False, named=named, moved=True), row, []
        if row.stored:
            return Look(open=True, named=named, suffices=True, source=STORED), row, []
        body = msgspec.msgpack.encode(FindBranches(asked.object_id, Epoch.parse(asked.epoch), row.served, row.asked))
        found = await _ask_all(region, body)
        look, branches = _looked(row, named, found)
        if look.suffices:
            return look, row, branches
        for other in await self._others(region):
            found += await _ask_all(other, body)
        look, branches = _looked(row, named, found)
        return look, row, branches

    async def _others(self, region: RegionWorld) -> list[RegionWorld]:
        """The other regions, as far as they answer."""
        others = []
        for row in await self._world.regions():
            if row.name == region.name:
                continue
            try:
                other = await self._world.region(row.name)
                await other.nodes()
            except (StoreUnavailable, RegionUnknownError, OSError, ValueError) as error:
                self._world.log.warning("incident.region", region=row.name, error=str(error))
            else:
                others.append(other)
        return others

    async def _beating(self, work: Any) -> Any:
        """What takes longer than a heartbeat may: the activity shows that it lives."""
        task = asyncio.ensure_future(work)
        try:
            while not task.done():
                activity.heartbeat()
                await asyncio.wait([task], timeout=PAUSE_MAX_SECS)
        finally:
            task.cancel()
        return task.result()


def _looked(row: IncidentRow, named: str, found: list[Found]) -> tuple[Look, list[BranchHere]]:
    heard = {copy for copy, _ in row.answered} | {answer.copy_id for _, _, answer in found if answer.heard}
    missing = sorted(set(row.asked) - heard)
    branches = [(where, node, branch) for where, node, answer in found for branch in answer.branches]
    branches.sort(key=lambda one: one[2].position, reverse=True)
    look = Look(
        open=True,
        named=named,
        heard=sorted(heard & set(row.asked)),
        missing=missing,
        suffices=not missing or 0 < row.needed <= len(heard & set(row.asked)),
        node=branches[0][1].node_id if branches else "",
        source=branches[0][2].source if branches else "",
        position=str(branches[0][2].position) if branches else "",
    )
    return look, branches


async def _lives_elsewhere(region: RegionWorld, row: IncidentRow) -> bool:
    """Whether the object was moved to another region, or placed there by itself."""
    if not row.scope:
        return False
    key = ObjectKey(row.scope, row.cls, row.name)
    decision, lease = await region.gates.read(key), await region.leases.read(key.id)
    gate = decision.gate
    gone = gate is not None and not gate.open and gate.to not in (None, region.name)
    return gone or (lease is not None and isinstance(lease.row.state, Forwarded))


async def _ask_all(region: RegionWorld, body: bytes) -> list[Found]:
    async def one(node: NodeRow) -> Found | None:
        try:
            answer = await region.ask(node, "incident-find", body, FIND_SECS)
        except (PeerGone, PeerBusy, DomicileError):
            return None  # not heard; asked again
        return region, node, msgspec.msgpack.decode(answer, type=BranchesFound)

    answers = await asyncio.gather(*(one(node) for node in await region.nodes() if node.peer))
    return [answer for answer in answers if answer is not None]


async def _ask_home(region: RegionWorld, object_id: str, row: IncidentRow, body: bytes) -> bytes:
    """The node that has the object awake, or one that may wake it. Raises what it raises, PeerGone, PeerBusy."""
    nodes = {node.node_id: node for node in await region.nodes() if node.peer}
    lease = await region.leases.read(object_id)
    state = lease.row.state if lease is not None else None
    owner = nodes.get(state.owner) if isinstance(state, Held) else None
    serving = [node for node in nodes.values() if node.state == "serving" and row.cls in node.classes]
    if owner is None and not serving:
        raise ApplicationError(f"no node of region {region.name} serves the class {row.cls}")
    node = owner or serving[0]
    for _ in range(HOPS_MAX):
        try:
            return await region.ask(node, "incident-repair", body, REPAIR_SECS)
        except NotHome as error:
            home = nodes.get(str(error.extra.get("node")))
            if home is None:
                raise
            node = home
    raise ApplicationError(f"the home of {object_id} keeps changing")
