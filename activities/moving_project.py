"""What MoveProject does to the world (PROTOCOLS section 10): marks and terms in control, gates, copy, drain.

Steps on control's rows run on `domicile-control`; gates, drain and copy where their region is. Every gate is written on
a version that an earlier step has read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from temporalio import activity

from domicile.activities.copying import CopyPass, TargetOpenError, TermTooLowError
from domicile.activities.project_drain import ProjectDrain
from domicile.activities.project_rows import FLIPPED, PREPARING, OvertakenRowError, ProjectRows
from domicile.activities.refusals import refused, told
from domicile.activities.world import RegionUnknownError, World
from domicile.errors import BadName
from domicile.placement.records import GateRow, check_scope
from domicile.workflows.copy_values import CopyProgress
from domicile.workflows.move_values import (
    Begun,
    CopyStep,
    DrainOrder,
    DrainResult,
    GateAt,
    GateChange,
    GateSeen,
    Marked,
    MarkStep,
    Move,
)


class MovingActivities:
    """The steps of MoveProject."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rows = ProjectRows(world)

    def steps(self) -> Sequence[Callable[..., Any]]:
        """The activities."""
        return (
            self.begin,
            self.mark,
            self.flip,
            self.draw,
            self.clear,
            self.read_gate,
            self.change_gate,
            self.copy,
            self.drain,
        )

    @activity.defn(name="move-begin")
    async def begin(self, asked: Move) -> Begun:
        """What stands. Fails for good: no such project, no such region, a name that is none."""
        try:
            check_scope(asked.project)
        except BadName as error:
            raise refused("BadName", error.detail) from error
        seen = await self._rows.read(asked.project)
        if seen.policy is None:
            raise refused("NoSuchProject", f"there is no project {asked.project}")
        if not await self._rows.registered(asked.to):
            raise refused("NoSuchRegion", f"there is no region {asked.to}")
        policy, mark = seen.policy.row, seen.mark
        source = await self._rows.place(policy.region)
        if source != asked.to:
            return Begun(source, moving=True, mark=seen.mark_version)
        if mark is not None and mark.row.step == FLIPPED and mark.row.to == asked.to:
            was = mark.row.source
            return Begun(source, moving=True, flipped=True, mark=mark.version, term=mark.row.term, was=was)
        cut_off = mark is not None and mark.row.step == PREPARING
        return Begun(source, moving=False, mark=seen.mark_version, cut_off=cut_off)

    @activity.defn(name="move-mark")
    async def mark(self, step: MarkStep) -> Marked:
        """The project is marked, with a term drawn for the copy. Fails for good when another move has begun."""
        return await self._drawn(step, PREPARING)

    @activity.defn(name="move-flip")
    async def flip(self, step: MarkStep) -> Marked:
        """The point of no return: the home is another, with the term its gate will open with."""
        return await self._drawn(step, FLIPPED, home=step.to)

    async def _drawn(self, step: MarkStep, kind: str, home: str = "") -> Marked:
        try:
            mark = await self._rows.draw(
                step.project, step.mark, to=step.to, step=kind, run=step.run, home=home, source=step.source
            )
        except OvertakenRowError as error:
            raise refused("Overtaken", str(error)) from error
        return Marked(mark.version, mark.row.term)

    @activity.defn(name="move-draw")
    async def draw(self, project: str) -> int:
        """The next term of the project's counter."""
        return await self._rows.draw_term(project)

    @activity.defn(name="move-clear")
    async def clear(self, step: MarkStep) -> None:
        """The mark goes, if it still is this move's."""
        await self._rows.clear(step.project, step.mark)

    @activity.defn(name="move-read-gate")
    async def read_gate(self, at: GateAt) -> GateSeen:
        """The project's gate in a region. Fails for good when the region is not known."""
        try:
            region = await self._world.region(at.region)
        except RegionUnknownError as error:
            raise refused("NoSuchRegion", str(error)) from error
        seen = await region.gates.get(region.keys.gate_project(at.project))
        if seen is None:
            return GateSeen(region.name, 0, False, 0)
        return GateSeen(region.name, seen.version, seen.row.open, seen.row.term, seen.row.to)

    @activity.defn(name="move-change-gate")
    async def change_gate(self, change: GateChange) -> GateSeen:
        """Fails for good when the gate is neither at the version read nor as it is to be."""
        region = await self._world.region(change.region)
        key, wanted = region.keys.gate_project(change.project), GateRow(change.open, change.term, change.to)
        await region.gates.change(key, change.version, wanted)
        seen = await region.gates.get(key)
        if seen is None or seen.row != wanted:
            raise refused("Overtaken", f"the gate of {change.project} in {change.region} was changed by another")
        return GateSeen(region.name, seen.version, seen.row.open, seen.row.term, seen.row.to)

    @activity.defn(name="move-copy")
    async def copy(self, step: CopyStep) -> CopyProgress:
        """A slice of a pass; goes on where the last attempt was, by its heartbeats."""
        order = step.order
        source, target = await self._world.region(order.source), await self._world.region(order.target)
        details = activity.info().heartbeat_details
        progress = CopyProgress(**details[0]) if details else step.progress
        passing = CopyPass(source, target, order, self._world.clock, self._world.rng)
        left = step.progress.looked + step.objects_max - progress.looked
        try:
            return await passing.run(progress, left, lambda now: activity.heartbeat(asdict(now), {"done": now.objects}))
        except (TargetOpenError, TermTooLowError) as error:
            raise refused(type(error).__name__, str(error)) from error

    @activity.defn(name="move-drain")
    async def drain(self, order: DrainOrder) -> DrainResult:
        """Returns when every object of the project is released clean, but for those that met an incident."""
        region = await self._world.region(order.region)
        draining = ProjectDrain(region, order, self._world.clock, self._world.log)
        return await draining.run(lambda now: activity.heartbeat(told(now)))
