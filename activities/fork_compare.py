"""After a failover, when the old region has returned and is drained: what it had answered more (PROTOCOLS section 10).

Each object of the old region is compared with the state that the new region went on from (its fork). Where the old one
went further, both states are stored in the new region as databases, and an incident is put on record: RecoverIncident
lays it, or asks.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import asdict
from typing import Any

from temporalio import activity

from domicile.activities.copy_content import read_register
from domicile.activities.failing_over import listed
from domicile.activities.object_rows import ObjectRows, read_rows
from domicile.activities.refusals import cut
from domicile.activities.restoring import restore
from domicile.activities.world import RegionWorld, World
from domicile.node import manifest as manifests
from domicile.node.branches import as_file
from domicile.node.chunks import LOST, SERVED, fork_key, lost_key
from domicile.node.errors import BlobMissing
from domicile.node.manifest import Manifest
from domicile.node.sqlite.birth import IMAGE
from domicile.placement.incidents import IncidentRow, Incidents
from domicile.placement.records import FIRST_INCARNATION, Deleted, Epoch, Generation, Position, Released
from domicile.workflows.failover_values import Compared, ForkOrder

LISTED_SHOWN = 10
NOWHERE = Position(FIRST_INCARNATION, Generation(Epoch(0, 0), 0), 0)


class ForkActivities:
    """The last steps of FailoverRegion."""

    def __init__(self, world: World) -> None:
        self._world = world

    def steps(self) -> Sequence[Callable[..., Any]]:
        """The activities."""
        return (self.compare, self.unfork)

    @activity.defn(name="failover-compare")
    async def compare(self, asked: ForkOrder) -> Compared:
        """Every object of the old region. Safe to repeat: an incident is named by the failover's term."""
        source, target = await self._world.region(asked.source), await self._world.region(asked.to)
        compared = Compared()
        async for rows in listed(source, asked.project):
            for one in rows:
                if not (one.own_gate or one.class_gate):
                    compared = await self._compared(source, target, one, asked.term, compared)
            activity.heartbeat(asdict(compared))
        async for rows in deletions(source, target, asked.project):
            for one in rows:
                compared = _with_listed(compared, f"{one.key}: deleted in {asked.source}, lives in {asked.to}")
        return compared

    @activity.defn(name="failover-unfork")
    async def unfork(self, asked: ForkOrder) -> None:
        """The forks are roots no more: both states of whatever differs are stored."""
        target = await self._world.region(asked.to)
        async for found in target.blobs.list(fork_key("")):
            manifest = manifests.decode((await target.blobs.get(found.key)).data, found.key)
            if manifest.scope == asked.project:
                await target.blobs.delete(found.key)
            activity.heartbeat()

    async def _compared(
        self, source: RegionWorld, target: RegionWorld, rows: ObjectRows, term: int, compared: Compared
    ) -> Compared:
        done = Compared(compared.objects + 1, compared.incidents, compared.listed_in_all, compared.listed)
        if not isinstance(rows.state, Released) or rows.state.tag is None:
            return done
        lost = (await read_register(source.blobs, rows.key.id)).manifest
        fork = await _fork(target, rows.key.id)
        if lost is None or lost.deleted or _same(lost, fork):
            return done
        if fork is not None and fork.incarnation != lost.incarnation:
            return _with_listed(done, f"{rows.key}: deleted and born again in {source.name}")
        if not await self._record(source, target, lost, fork, Epoch(term, 0)):
            return done
        return Compared(done.objects, done.incidents + 1, done.listed_in_all, done.listed)

    async def _record(
        self, source: RegionWorld, target: RegionWorld, lost: Manifest, fork: Manifest | None, epoch: Epoch
    ) -> bool:
        """False: the bytes are the same after all."""
        object_id = lost.object_id
        after = await restore(source.blobs, lost)
        before = await restore(target.blobs, fork) if fork is not None else as_file(IMAGE, b"")
        if before == after:
            return False
        await target.blobs.put(lost_key(object_id, epoch, SERVED), before)
        await target.blobs.put(lost_key(object_id, epoch, LOST), after)
        row = IncidentRow(
            asked=(),
            answered=(),
            served=fork.position if fork is not None else NOWHERE,
            scope=lost.scope,
            cls=lost.cls,
            name=lost.name,
            at_ms=self._world.clock.wall_ms(),
            stored=True,
            born=fork is None,
        )
        await Incidents(target.store, target.keys).record(object_id, epoch, row)
        self._world.log.error("failover.incident", object=f"{lost.scope}/{lost.cls}/{lost.name}", epoch=str(epoch))
        return True


async def deletions(source: RegionWorld, target: RegionWorld, project: str) -> AsyncIterator[list[ObjectRows]]:
    """Pages of objects that the old region deleted and the new one has."""
    async for rows in listed(target, project):
        there = await read_rows(source, [one.key for one in rows])
        yield [one for one, old in zip(rows, there, strict=True) if isinstance(old.state, Deleted)]


async def _fork(region: RegionWorld, object_id: str) -> Manifest | None:
    key = fork_key(object_id)
    try:
        return manifests.decode((await region.blobs.get(key)).data, key)
    except BlobMissing:
        return None


def _same(lost: Manifest, fork: Manifest | None) -> bool:
    return fork is not None and (lost.position, lost.checksum) == (fork.position, fork.checksum)


def _with_listed(compared: Compared, line: str) -> Compared:
    shown = [*compared.listed, cut(line)][:LISTED_SHOWN]
    return Compared(compared.objects, compared.incidents, compared.listed_in_all + 1, shown)
