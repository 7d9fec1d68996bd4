"""What FailoverRegion does before the new gate opens: the loss counted, the copy's state kept (PROTOCOLS section 10).

The rest of its steps are MoveProject's (gates, terms, the drain) and those of `fork_compare`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from temporalio import activity

from domicile.activities.collecting import object_ids
from domicile.activities.copy_content import read_register
from domicile.activities.object_rows import ObjectRows, read_rows
from domicile.activities.project_rows import FLIPPED, ProjectRows
from domicile.activities.refusals import refused
from domicile.activities.standing_copies import StandingCopies
from domicile.activities.world import RegionUnknownError, RegionWorld, World
from domicile.node.chunks import fork_key, manifest_key
from domicile.node.errors import BlobError, BlobMissing, Corrupt
from domicile.node.manifest import Manifest
from domicile.placement.records import ObjectKey, Released
from domicile.placement.store import StoreUnavailable
from domicile.workflows.failover_values import AssessOrder, FailoverBegun, ForkOrder, Loss
from domicile.workflows.move_values import MarkStep

PAGE_OBJECTS = 64


class FailoverActivities:
    """The first steps of FailoverRegion."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rows = ProjectRows(world)
        self._standing = StandingCopies(world)

    def steps(self) -> Sequence[Callable[..., Any]]:
        """The activities."""
        return (self.begin, self.assess, self.fork)

    @activity.defn(name="failover-begin")
    async def begin(self, step: MarkStep) -> FailoverBegun:
        """What stands. Fails for good: no such project or region, it lives there already, or it is being moved."""
        seen = await self._rows.read(step.project)
        if seen.policy is None:
            raise refused("NoSuchProject", f"there is no project {step.project}")
        if not await self._rows.registered(step.to):
            raise refused("NoSuchRegion", f"there is no region {step.to}")
        source = await self._rows.place(seen.policy.row.region)
        if source == step.to:
            raise refused("Home", f"{step.project} lives in {step.to}")
        if seen.mark is not None:
            what = "has moved, and is not done" if seen.mark.row.step == FLIPPED else "is being moved"
            raise refused("Moving", f"{step.project} {what}: cancel that, or let it end")
        return FailoverBegun(source, seen.mark_version, await self._standing.read(step.project, step.to))

    @activity.defn(name="failover-assess")
    async def assess(self, asked: AssessOrder) -> Loss:
        """What the copy lacks of the old region's bucket, if that can be read; how old it is in any case."""
        lag = round(self._world.clock.wall_ms() / 1000 - asked.standing_at, 3)
        try:
            source, target = await self._world.region(asked.source), await self._world.region(asked.to)
            return await _counted(source, target, asked.project, lag)
        except (BlobError, StoreUnavailable, RegionUnknownError, OSError) as error:
            self._world.log.warning("failover.uncounted", region=asked.source, error=str(error))
            return Loss(lag)

    @activity.defn(name="failover-fork")
    async def fork(self, asked: ForkOrder) -> None:
        """Keep the manifest that each object of the copy has: the state that this region goes on from. Safe to repeat
        until the gate opens."""
        region = await self._world.region(asked.to)
        async for rows in listed(region, asked.project):
            for one in rows:
                if one.own_gate or one.class_gate or not isinstance(one.state, Released):
                    continue
                try:
                    data = (await region.blobs.get(manifest_key(one.key.id))).data
                except BlobMissing:
                    continue
                await region.blobs.put(fork_key(one.key.id), data)
            activity.heartbeat()


async def listed(region: RegionWorld, project: str) -> AsyncIterator[list[ObjectRows]]:
    """The rows of a project's objects, page by page. Raises StoreUnavailable, ScanExpired."""
    token: str | None = None
    while True:
        page = await region.store.scan(region.keys.instances(project), PAGE_OBJECTS, token)
        yield await read_rows(region, [region.keys.instance_of(record.key) for record in page.records])
        token = page.token
        if token is None:
            return


async def _counted(source: RegionWorld, target: RegionWorld, project: str, lag: float) -> Loss:
    """By the manifests alone: the old region's rows may be away with it."""
    objects = missing = lost = 0
    for shard in "0123456789abcdef":
        async for object_id in object_ids(source.blobs, shard):
            try:
                manifest = (await read_register(source.blobs, object_id)).manifest
            except Corrupt:
                continue
            activity.heartbeat()
            if manifest is None or manifest.deleted or manifest.scope != project or not manifest.seq:
                continue
            behind = await _behind(target, manifest)
            if behind is not None:
                objects, missing, lost = objects + 1, missing + (behind < 0), lost + abs(behind)
    return Loss(lag, True, objects, missing, lost)


async def _behind(target: RegionWorld, manifest: Manifest) -> int | None:
    """Bytes of log that the copy lacks, negative where it lacks the object; None: nothing, or it is not the copy's."""
    (rows,) = await read_rows(target, [ObjectKey(manifest.scope, manifest.cls, manifest.name)])
    if rows.own_gate or rows.class_gate:
        return None
    state = rows.state
    if not isinstance(state, Released) or state.position.incarnation != manifest.incarnation:
        return -max(manifest.length, 1)
    if manifest.position <= state.position:
        return None
    same = manifest.generation == state.position.generation
    return max(manifest.length - state.position.length if same else manifest.length, 1)
