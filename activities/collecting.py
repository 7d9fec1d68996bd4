"""The collector's walk over one region's objects (PROTOCOLS section 10, "CollectGarbage").

Objects are found by their manifests: where there is none nothing is deleted. They are walked in 16 shards, by the first
digit of the object's id: an activity takes one, so that no history grows with the region.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from temporalio import activity
from temporalio.exceptions import ApplicationError

from domicile.activities.world import RegionWorld, World
from domicile.node import garbage
from domicile.node.blobs.base import Blobs
from domicile.node.chunks import MANIFESTS
from domicile.node.errors import BlobError, Corrupt
from domicile.workflows.collect_garbage import Collected, CollectShard

OBJECTS_AT_ONCE = 8


class CollectingActivities:
    """Run where the region's bucket is near."""

    def __init__(self, world: World) -> None:
        self._world = world

    def steps(self) -> Sequence[Callable[..., Any]]:
        """The activities."""
        return (self.collect_shard,)

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
        async for object_id in object_ids(region.blobs, asked.shard, after):
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
    """One object. Raises BlobUnavailable, Corrupt. Stopped anywhere it has deleted garbage only."""
    done = await garbage.collect(blobs, object_id)
    return Collected(1, done.kept, done.deleted, done.freed_bytes)


async def object_ids(blobs: Blobs, shard: str, after: str = "") -> AsyncIterator[str]:
    """Ids of the objects that have a manifest, that begin with `shard` and are greater than `after`, in order.

    Raises BlobUnavailable.
    """
    async for listed in blobs.list(MANIFESTS + shard):
        object_id = listed.key.removeprefix(MANIFESTS)
        if object_id > after:
            yield object_id


def _resumed() -> str:
    """Where an earlier attempt had got to."""
    details: Any = activity.info().heartbeat_details
    if not details:
        return ""
    if not isinstance(details[0], str):
        raise ApplicationError(f"{details[0]!r} is no object id", non_retryable=True)
    return details[0]
