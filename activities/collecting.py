"""The collector's walk over one region's objects (PROTOCOLS section 10, "CollectGarbage").

Objects are found by their lease rows, which are never removed. The rows are walked in 16 shards, by the first digit of
the object's id: an activity takes one, so that neither a history nor a page of a scan grows with the region.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from temporalio import activity
from temporalio.exceptions import ApplicationError

from domicile.activities.garbage import judge
from domicile.activities.world import RegionWorld, World
from domicile.node import manifest as manifests
from domicile.node.blobs.base import Blobs
from domicile.node.chunks import manifest_key, object_prefix
from domicile.node.errors import BlobError, BlobMissing, Corrupt
from domicile.node.manifest import Manifest
from domicile.placement.store import ScanExpired
from domicile.workflows.collect_garbage import Collected, CollectShard

OBJECTS_AT_ONCE = 8
SCAN_ROWS = 500
SCAN_TRIES = 3


class CollectingActivities:
    """Run where the region's bucket is near."""

    def __init__(self, world: World) -> None:
        self._world = world

    @activity.defn(name="collect-shard")
    async def collect_shard(self, asked: CollectShard) -> Collected:
        """Collect what is garbage of every object whose id begins with the shard's digit. Safe to repeat.

        Heartbeats carry the last object all of whose predecessors are done. An object that cannot be collected is
        counted and left for the next run.
        """
        region = await self._world.region(asked.region)
        done = Collected()
        after = _resumed()
        batch: list[str] = []
        async for object_id in object_ids(region, asked.shard, after):
            batch.append(object_id)
            if len(batch) == OBJECTS_AT_ONCE:
                done = await self._collect(region, batch, done)
                batch = []
        return await self._collect(region, batch, done)

    async def _collect(self, region: RegionWorld, batch: list[str], done: Collected) -> Collected:
        for one in await asyncio.gather(*(self._collect_one(region, object_id) for object_id in batch)):
            done = done.plus(one)
        if batch:
            activity.heartbeat(batch[-1])
        return done

    async def _collect_one(self, region: RegionWorld, object_id: str) -> Collected:
        try:
            return await collect(region.blobs, object_id)
        except (BlobError, Corrupt) as error:
            self._world.log.warning("collect.left", object=object_id, error=str(error))
            return Collected(objects=1, left=1)


async def collect(blobs: Blobs, object_id: str) -> Collected:
    """One object: read the manifest, then list, then delete what is garbage by it.

    Raises BlobUnavailable, Corrupt. Stopped anywhere it has deleted garbage only.
    """
    is_garbage = judge(await _manifest(blobs, object_id))
    kept = deleted = freed = 0
    async for listed in blobs.list(object_prefix(object_id)):
        if is_garbage(listed.key):
            await blobs.delete(listed.key)
            deleted, freed = deleted + 1, freed + listed.size
        else:
            kept += 1
    return Collected(1, kept, deleted, freed)


async def _manifest(blobs: Blobs, object_id: str) -> Manifest | None:
    key = manifest_key(object_id)
    try:
        return manifests.decode((await blobs.get(key)).data, key)
    except BlobMissing:
        return None


async def object_ids(region: RegionWorld, shard: str, after: str = "") -> AsyncIterator[str]:
    """Ids of the region's objects that begin with `shard` and are greater than `after`, in order.

    A scan that took too long for its snapshot begins anew where it was. Raises StoreUnavailable, ScanExpired.
    """
    prefix, expired = region.keys.lease(shard), 0
    token: str | None = None
    while True:
        try:
            page = await region.store.scan(prefix, SCAN_ROWS, token)
        except ScanExpired:
            expired += 1
            if expired > SCAN_TRIES:
                raise
            token = None
            continue
        for record in page.records:
            object_id = region.keys.object_of_lease(record.key)
            if object_id > after:
                after = object_id
                yield object_id
        token = page.token
        if token is None:
            return


def _resumed() -> str:
    """Where an earlier attempt had got to."""
    details: Any = activity.info().heartbeat_details
    if not details:
        return ""
    if not isinstance(details[0], str):
        raise ApplicationError(f"{details[0]!r} is no object id", non_retryable=True)
    return details[0]

