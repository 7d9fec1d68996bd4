"""CollectGarbage beside rotations that bring old chunks back, takeovers and restores (PROTOCOLS section 10)."""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from domicile import Object
from domicile.activities.collecting import collect
from domicile.node import manifest as manifests
from domicile.node.blobs.base import Blob, Blobs, Listed, Precondition
from domicile.node.chunks import chunk_key, manifest_key, object_prefix, segment_key
from domicile.node.garbage import judge
from domicile.node.manifest import Manifest
from domicile.placement.records import ObjectKey
from domicile.workflows.collect_garbage import Collected, CollectGarbage, CollectRegion
from domicile.workflows.queues import CONTROL_QUEUE

SMALL = {
    "object_wal_rotate_kb": 8,
    "object_wal_rotate_fraction": 0.001,
    "object_store_interval_ms": 10,
    "temporal": "127.0.0.1:1",  # nodes with a control plane collect nothing by themselves; these have nothing to ask it
}
FLIPS = 60


class Flipping(Object):
    """Two chunks, the second of which has one of two contents."""

    def init(self) -> None:
        self.sql.exec("CREATE TABLE pages(n INTEGER PRIMARY KEY, v BLOB NOT NULL)")
        for n in range(400):
            self.sql.exec("INSERT INTO pages VALUES (?, zeroblob(4000))", n)

    def flip(self, value: int) -> int:
        self.sql.exec("UPDATE pages SET v = ? WHERE n = 390", bytes([value]) * 4000)
        return value

    def value(self) -> int:
        row = self.sql.one("SELECT v FROM pages WHERE n = 390")
        assert row is not None
        return int(row["v"][0])


class Dawdling:
    """A collector's view of the bucket: slow between reading, listing and deleting, so that the world goes on."""

    def __init__(self, blobs: Blobs, luck: random.Random) -> None:
        self._blobs = blobs
        self._luck = luck
        self.deleted: list[str] = []

    async def get(self, key: str) -> Blob:
        blob = await self._blobs.get(key)
        await self._dawdle()
        return blob

    async def put(self, key: str, data: bytes, condition: Precondition = None) -> str:
        raise AssertionError("a collector puts nothing")

    async def delete(self, key: str) -> None:
        await self._dawdle()
        await self._blobs.delete(key)
        self.deleted.append(key)

    async def list(self, prefix: str) -> AsyncIterator[Listed]:
        async for listed in self._blobs.list(prefix):
            yield listed

    async def close(self) -> None: ...

    async def _dawdle(self) -> None:
        await asyncio.sleep(self._luck.random() * 0.02)


async def present(blobs: Blobs, object_id: str) -> Manifest:
    """The manifest of a moment in which everything it names was there."""
    while True:
        before = await blobs.get(manifest_key(object_id))
        manifest = manifests.decode(before.data)
        keys = {listed.key async for listed in blobs.list(object_prefix(object_id))}
        named = {chunk_key(object_id, manifest.incarnation, ref) for ref in manifest.base}
        named |= {segment_key(object_id, manifest.incarnation, segment) for segment in manifest.segments}
        if (await blobs.get(manifest_key(object_id))).tag == before.tag:
            assert not named - keys, "a named key was collected"
            return manifest


@contextlib.asynccontextmanager
async def collecting(blobs: Blobs, object_id: str, luck: random.Random) -> AsyncIterator[Dawdling]:
    """A collector that never rests."""
    view = Dawdling(blobs, luck)

    async def on() -> None:
        while True:
            await collect(view, object_id)

    task = asyncio.create_task(on())
    try:
        yield view
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def test_old_chunks_that_come_back_are_never_lost(control: Callable[..., Any]) -> None:
    """Two slow collectors beside rotations between two contents and a takeover: what a manifest names is there."""

    async def scenario(plane: Any) -> None:
        group, luck = plane.regions["local"], random.Random(5)
        object_id = ObjectKey("demo", "Flipping", "one").id
        first, second = group.nodes
        await first.call("Flipping", "one", "flip", 0)
        generations, hashes = set(), []
        async with collecting(group.blobs, object_id, luck) as one, collecting(group.blobs, object_id, luck) as other:
            for at in range(FLIPS):
                value = luck.randrange(2)
                await second.call("Flipping", "one", "flip", value, key=f"flip {at}")
                if at == FLIPS // 2:
                    await first.crash()
                manifest = await present(group.blobs, object_id)
                if manifest.generation not in generations:
                    generations.add(manifest.generation)
                    hashes += [ref for ref in manifest.base[1:2] if ref not in hashes]
            deleted = len(one.deleted) + len(other.deleted)
        assert await second.call("Flipping", "one", "value") == value
        assert len(generations) > 6, "there were rotations"
        assert len({ref.hash for ref in hashes}) < len(hashes), "an old content came back under another key"
        assert deleted > 10, "there was garbage"
        await present(group.blobs, object_id)

    control(scenario, Flipping, nodes=2, worker=False, **SMALL)


def test_a_restore_beside_the_collector_ends_well(control: Callable[..., Any]) -> None:
    """Case 20: restores from the bucket alone, while rotations and the collector remove what they had begun to read."""

    async def scenario(plane: Any) -> None:
        group, luck = plane.regions["local"], random.Random(6)
        object_id = ObjectKey("demo", "Flipping", "one").id
        node = group.nodes[0]
        async with collecting(group.blobs, object_id, luck):
            for at in range(12):
                for _ in range(4):
                    await node.call("Flipping", "one", "flip", at)
                residency = node.residency("Flipping", "one")
                await node.node._residents.put_to_sleep(residency)
                await asyncio.to_thread(_wipe, node.root / "objects")
                await asyncio.to_thread(_wipe, node.root / "cache")
                assert await node.call("Flipping", "one", "value") == at
        await present(group.blobs, object_id)

    control(scenario, Flipping, nodes=1, worker=False, **SMALL)


def _wipe(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()


def test_the_workflow_collects_a_region(control: Callable[..., Any]) -> None:
    """Every object of the region is looked at, what is garbage goes, deleted objects leave a tombstone and no bytes."""

    async def scenario(plane: Any) -> None:
        group = plane.regions["local"]
        node = group.nodes[0]
        for at in range(24):
            await node.call("Flipping", f"f{at % 3}", "flip", at % 2)
        key = ObjectKey("demo", "Flipping", "f0")
        await node.node.delete(key, None, None)
        for name in ("f1", "f2"):
            await node.node._residents.put_to_sleep(node.residency("Flipping", name))

        async def buried() -> bool:
            return manifests.decode((await group.blobs.get(manifest_key(key.id))).data).deleted

        await plane.until(buried, "the tombstone manifest")
        handle = await plane.client.start_workflow(
            CollectGarbage.run, CollectRegion("local"), id="collect-local", task_queue=CONTROL_QUEUE
        )
        result: Collected = await handle.result()
        assert (result.objects, result.left) == (3, 0)
        assert result.deleted > 0
        assert result.freed_bytes > 0
        assert await handle.query(CollectGarbage.progress) == {
            "done": 16,
            "total": 16,
            "objects": 3,
            "deleted": result.deleted,
            "freed_bytes": result.freed_bytes,
        }
        assert not [listed async for listed in group.blobs.list(object_prefix(key.id))]
        for name in ("f1", "f2"):
            manifest = await present(group.blobs, ObjectKey("demo", "Flipping", name).id)
            is_garbage = judge(manifest)
            left = [listed.key async for listed in group.blobs.list(object_prefix(manifest.object_id))]
            assert not [key for key in left if is_garbage(key)]
        assert await plane.history_events(handle) < 200

    control(scenario, Flipping, nodes=1, **SMALL)
