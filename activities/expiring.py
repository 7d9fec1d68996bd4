"""What a move left in its old region goes, once it was kept long enough (PROTOCOLS section 10, MoveProject).

Of each object first the lease row becomes a forwarding row, on the gate's version that the move left; then the manifest
is overwritten (*left*: it names nothing any more), on its tag; then what it named is deleted. A move back changes the
gate before it copies anything, so none of its rows is touched; and what it puts is keyed by newer generations than
those that go here. A directory row goes last, so that what was broken off is found again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import msgspec
from temporalio import activity

from domicile.activities.copy_content import PUT_ID_BYTES, read_register
from domicile.activities.object_rows import ObjectRows, Wanted, read_rows, replace
from domicile.activities.world import RegionWorld, World
from domicile.node import manifest as manifests
from domicile.node.chunks import manifest_key, object_prefix
from domicile.node.errors import PreconditionFailed
from domicile.node.garbage import piece_of
from domicile.node.manifest import Manifest
from domicile.placement.records import Birth, Forwarded, LeaseRow, ObjectKey, Released
from domicile.placement.store import ScanExpired
from domicile.workflows.move_values import Expire, ExpireProgress

PAGE_OBJECTS = 64
PARALLEL = 8


class ExpiringActivities:
    """The step of ExpireCopy."""

    def __init__(self, world: World) -> None:
        self._world = world

    def steps(self) -> Sequence[Callable[..., Any]]:
        """The activities."""
        return (self.expire,)

    @activity.defn(name="expire-copy")
    async def expire(self, asked: Expire, progress: ExpireProgress) -> ExpireProgress:
        """So many objects more, or until the project is found to come back."""
        region = await self._world.region(asked.region)
        details = activity.info().heartbeat_details
        until = progress.objects + asked.objects_per_step
        if details:
            progress = ExpireProgress(**details[0])
        while not progress.done and progress.objects < until:
            progress = await self._page(region, asked, progress)
            activity.heartbeat(asdict(progress))
        return progress

    async def _page(self, region: RegionWorld, asked: Expire, progress: ExpireProgress) -> ExpireProgress:
        gate = await region.gates.get(region.keys.gate_project(asked.project))
        if gate is None or gate.version != asked.gate:
            return ExpireProgress(None, progress.objects, progress.expired, done=True, stopped=True)
        try:
            page = await region.store.scan(region.keys.instances(asked.project), PAGE_OBJECTS, progress.token)
        except ScanExpired:
            return ExpireProgress(None, progress.objects, progress.expired)
        rows = await read_rows(region, [region.keys.instance_of(record.key) for record in page.records])
        at_once = asyncio.Semaphore(PARALLEL)

        async def one(row: ObjectRows) -> bool:
            async with at_once:
                return await self._one(region, asked, row)

        gone = sum(await asyncio.gather(*map(one, rows)))
        done = page.token is None
        return ExpireProgress(page.token, progress.objects + len(rows), progress.expired + gone, done=done)

    async def _one(self, region: RegionWorld, asked: Expire, rows: ObjectRows) -> bool:
        """Whether it is gone now."""
        seen = rows.gate.seen[2][1]
        if rows.class_gate or rows.own_gate or seen is None or seen.version != asked.gate or rows.lease is None:
            return False
        row, state = rows.lease.row, rows.state
        if isinstance(state, Released) and state.tag is not None:
            left = LeaseRow(
                row.scope,
                row.cls,
                row.name,
                row.incarnation,
                Forwarded(asked.to, asked.term),
                asked.term,
                None,
                row.burials,
            )
            if not await replace(region, rows, Wanted(left, None, rows.instance, None)):
                return False
            (rows,) = await read_rows(region, [rows.key])
        elif not isinstance(state, Forwarded):
            return False
        if rows.lease is None or not await self._emptied(region, rows):
            return False
        return await replace(region, rows, Wanted(rows.lease.row))

    async def _emptied(self, region: RegionWorld, rows: ObjectRows) -> bool:
        """Whether the register names nothing any more, and nothing of what it named is there."""
        found = await read_register(region.blobs, rows.key.id)
        manifest = found.manifest
        if manifest is None:
            return True
        if not manifest.deleted:
            manifest = left_behind(manifest, self._world.rng.randbytes(PUT_ID_BYTES))
            try:
                await region.blobs.put(manifest_key(rows.key.id), manifests.encode(manifest), found.tag)
            except PreconditionFailed:
                return False
        async for listed in region.blobs.list(object_prefix(rows.key.id)):
            piece = piece_of(listed.key)
            if piece is not None and (piece.incarnation, piece.generation) <= (
                manifest.incarnation,
                manifest.generation,
            ):
                await region.blobs.delete(listed.key)
        return True


def left_behind(manifest: Manifest, put_id: bytes) -> Manifest:
    """State *left*: a manifest that names nothing, of a generation not older than any it named."""
    named = [ref.generation for ref in manifest.base] + [segment.generation for segment in manifest.segments]
    empty = manifests.birth(
        ObjectKey(manifest.scope, manifest.cls, manifest.name),
        manifest.incarnation,
        manifest.epoch,
        Birth(),
    )
    generation = max([manifest.generation, *named])
    return msgspec.structs.replace(empty, seq=manifest.seq + 1, put_id=put_id, generation=generation, deleted=True)
