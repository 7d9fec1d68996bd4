"""The copy pass over two embedded stores and two directories: any failure anywhere, and it is finished by the next."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from blake3 import blake3

from domicile.activities.copy_content import read_register
from domicile.activities.copying import CopyPass, TargetOpenError
from domicile.activities.object_rows import read_rows
from domicile.activities.world import RegionWorld
from domicile.node import manifest as manifests
from domicile.node.blobs.base import Blob, Listed, Precondition
from domicile.node.blobs.file import FileBlobs
from domicile.node.chunks import ChunkRef, Segment, chunk_key, manifest_key, segment_key
from domicile.node.clock import SystemClock
from domicile.node.errors import BlobUnavailable
from domicile.node.manifest import Manifest
from domicile.node.sqlite.checksum import checksum
from domicile.node.sqlite.wal import length_of
from domicile.placement.embedded import EmbeddedStore
from domicile.placement.keys import Keys
from domicile.placement.records import (
    FIRST_INCARNATION,
    AlarmRow,
    Birth,
    Deleted,
    DeletedRow,
    Epoch,
    Forwarded,
    GateRow,
    Generation,
    InstanceRow,
    LeaseRow,
    LeaseState,
    ObjectKey,
    Released,
    encode,
)
from domicile.placement.store import Delete, Put
from domicile.workflows.copy_values import CopyOrder, CopyProgress

PROJECT, TERM = "acme", 7


class Bucket:
    """A directory; fails at the `fails_at`th request from now, before it or after it happened."""

    def __init__(self, root: Path) -> None:
        self.quiet = FileBlobs(str(root), SystemClock())
        self.asked = 0
        self.fails_at = 0
        self.before: Callable[[str], Awaitable[None]] | None = None

    async def get(self, key: str) -> Blob:
        self._count()
        if self.before is not None:
            await self.before(key)
        return await self.quiet.get(key)

    async def put(self, key: str, data: bytes, condition: Precondition = None) -> str:
        tag = await self.quiet.put(key, data, condition)
        self._count()
        return tag

    async def delete(self, key: str) -> None:
        await self.quiet.delete(key)

    async def list(self, prefix: str) -> AsyncIterator[Listed]:
        async for listed in self.quiet.list(prefix):
            yield listed

    async def close(self) -> None:
        await self.quiet.close()

    def _count(self) -> None:
        self.asked += 1
        if self.asked == self.fails_at:
            raise BlobUnavailable("cut off here", maybe=True)


class Side:
    """One region."""

    def __init__(self, root: Path, name: str) -> None:
        root.mkdir()
        self.clock = SystemClock()
        self.keys = Keys("domicile", name)
        self.store = EmbeddedStore(str(root / "placement.db"), self.clock.monotonic)
        self.blobs = Bucket(root / "blobs")
        self.world = RegionWorld.of(self.keys, self.store, self.blobs, _no_nodes, self.clock)

    async def close(self) -> None:
        await self.blobs.close()
        await self.store.close()

    async def gate(self, *, is_open: bool) -> None:
        await self.store.write([], [Put(self.keys.gate_project(PROJECT), encode(GateRow(is_open, 1)))])

    async def put_object(self, name: str, version: int, chunk: bytes) -> Manifest:
        """An object asleep: one chunk, one segment, its manifest, its rows, an alarm."""
        key = ObjectKey(PROJECT, "Lot", name)
        generation = Generation(Epoch(1, 10), version)
        log = version.to_bytes(8, "big") + bytes(length_of(2) - 8)
        ref = ChunkRef(blake3(chunk).digest(), generation)
        segment = Segment(Epoch(1, 10), generation, 0, len(log), blake3(log).digest())
        born = manifests.birth(key, FIRST_INCARNATION, Epoch(1, 10), Birth())
        base = msgspec.structs.replace(born, base=(ref,), base_size=len(chunk), generation=generation)
        manifest = msgspec.structs.replace(
            base,
            seq=version,
            put_id=version.to_bytes(16, "big"),
            length=len(log),
            segments=(segment,),
            checksum=checksum(base.seed, log),
            members=("copy-a",),
            quorum=1,
        )
        await self.blobs.quiet.put(chunk_key(key.id, FIRST_INCARNATION, ref), chunk)
        await self.blobs.quiet.put(segment_key(key.id, FIRST_INCARNATION, segment), log)
        tag = await self.blobs.quiet.put(manifest_key(key.id), manifests.encode(manifest))
        await self.row(key, Released(manifest.position, manifest.checksum, tag, ("copy-a",), 1), due=1_000 + version)
        return manifest

    async def row(self, key: ObjectKey, state: LeaseState, *, due: int = 0) -> None:
        row = LeaseRow(key.scope, key.cls, key.name, FIRST_INCARNATION, state, 1)
        writes = [Put(self.keys.lease(key.id), encode(row))]
        if isinstance(state, Deleted):
            writes.append(Put(self.keys.deleted(key), encode(DeletedRow(key.id, FIRST_INCARNATION, 1))))
        else:
            writes.append(Put(self.keys.instance(key), encode(InstanceRow(key.id, 5))))
        if due:
            alarm = encode(AlarmRow(key.scope, key.cls, key.name, FIRST_INCARNATION, due))
            writes += [Put(self.keys.alarm(due, key.id), alarm), Put(self.keys.alarm_of(key.id), alarm)]
        await self.store.write([], writes)

    async def content(self, name: str) -> tuple[Any, ...]:
        """Everything that a restore would have, read back by the keys the manifest names."""
        key = ObjectKey(PROJECT, "Lot", name)
        manifest = (await read_register(self.blobs.quiet, key.id)).manifest
        assert manifest is not None
        pieces = [await self.blobs.quiet.get(chunk_key(key.id, manifest.incarnation, ref)) for ref in manifest.base]
        pieces += [await self.blobs.quiet.get(segment_key(key.id, manifest.incarnation, s)) for s in manifest.segments]
        return manifest.position, manifest.checksum, *(piece.data for piece in pieces)


async def _no_nodes(*asked: Any) -> bytes:
    raise AssertionError("a copy asks no node")


def a_pass(source: Side, target: Side, since: int = 0) -> CopyPass:
    order = CopyOrder(PROJECT, source.world.name, target.world.name, TERM, since=since)
    return CopyPass(source.world, target.world, order, source.clock, random.Random(4))


async def whole(source: Side, target: Side, since: int = 0) -> CopyProgress:
    return await a_pass(source, target, since).run(CopyProgress(), 10**6, lambda progress: None)


@pytest.fixture
def sides(tmp_path: Path) -> Callable[..., None]:
    """`sides(scenario)` runs `async def scenario(source, target)`."""

    def go(scenario: Callable[[Side, Side], Awaitable[None]]) -> None:
        async def main() -> None:
            source, target = Side(tmp_path / "a", "a"), Side(tmp_path / "b", "b")
            await source.gate(is_open=False)
            try:
                await scenario(source, target)
            finally:
                await source.close()
                await target.close()

        asyncio.run(main())

    return go


def test_a_pass_that_is_cut_off_anywhere_is_finished_by_the_next(sides: Callable[..., None]) -> None:
    """Wherever a request to a bucket fails, with its effect or without, the next pass makes both regions equal, and the
    one after that finds nothing to do."""

    async def scenario(source: Side, target: Side) -> None:
        cuts = 0
        for round_ in range(1, 24):
            for name in ("x", "y"):
                await source.put_object(name, round_, bytes([round_]) * 3000)
            side = (source, target)[round_ % 2]
            side.blobs.asked, side.blobs.fails_at = 0, round_ // 2 + 1
            try:
                await whole(source, target)
            except BlobUnavailable:
                cuts += 1
            side.blobs.fails_at = 0
            await whole(source, target)
            again = await whole(source, target)
            assert (again.differing, again.unclean, again.bytes, again.failing) == (0, 0, 0, [])
            for name in ("x", "y"):
                assert await target.content(name) == await source.content(name)
        assert cuts >= 6

    sides(scenario)


def test_what_was_copied_is_told_by_the_rows_alone(sides: Callable[..., None]) -> None:
    """A pass over what has not changed asks neither bucket anything; one object changed is one object copied."""

    async def scenario(source: Side, target: Side) -> None:
        for at in range(100):
            await source.put_object(f"o{at}", 1, b"c" * 1000)
        first = await whole(source, target)
        assert (first.objects, first.differing) == (100, 100)
        source.blobs.asked = target.blobs.asked = 0
        assert (await whole(source, target)).differing == 0
        assert (source.blobs.asked, target.blobs.asked) == (0, 0)
        await source.put_object("o7", 2, b"c" * 1000)
        second = await whole(source, target)
        assert second.differing == 1
        assert second.bytes == length_of(2), "its chunk was there: the log alone is new"

    sides(scenario)


def test_a_pass_since_another_looks_at_what_changed(sides: Callable[..., None]) -> None:
    """Going by the version of a pass that left nothing out, the next one reads heads of rows in the source, and finds
    each change since: another release, a deletion, an alarm, a birth; after one that left something out it may not."""

    async def scenario(source: Side, target: Side) -> None:
        for name in ("same", "released", "gone", "armed"):
            await source.put_object(name, 1, b"c" * 1000)
        first = await whole(source, target)
        assert first.next_since == first.version > 0
        await source.put_object("released", 2, b"d" * 1000)
        await source.put_object("born", 1, b"e")
        gone, armed = (ObjectKey(PROJECT, "Lot", name) for name in ("gone", "armed"))
        await source.row(gone, Deleted())
        await source.store.write([], [Delete(source.keys.instance(gone))])
        alarm = encode(AlarmRow(armed.scope, armed.cls, armed.name, FIRST_INCARNATION, 7))
        await source.store.write([], [Put(source.keys.alarm_of(armed.id), alarm)])
        seen: list[str] = []
        read = target.store.read

        async def noting(keys: Any) -> Any:
            seen.extend(keys)
            return await read(keys)

        target.store.read = noting  # type: ignore[method-assign]
        second = await whole(source, target, since=first.next_since)
        assert second.differing == 4
        assert target.keys.lease(ObjectKey(PROJECT, "Lot", "same").id) not in seen
        for name in ("same", "released", "armed", "born"):
            assert await target.content(name) == await source.content(name)
        assert CopyProgress(version=9, given_up=1).next_since == 0
        assert (await whole(source, target)).differing == 0

    sides(scenario)


def test_what_the_source_lacks_becomes_a_deletion(sides: Callable[..., None]) -> None:
    """Deletions come with their rows and a tombstone; what the target has and the source never had is deleted too, its
    alarm with it; an object placed in the target by itself stays as it is."""

    async def scenario(source: Side, target: Side) -> None:
        keys = {name: ObjectKey(PROJECT, "Lot", name) for name in ("gone", "stray", "own")}
        for name in keys:
            await target.put_object(name, 1, b"old")
        await target.store.write([], [Put(target.keys.gate_object(keys["own"].id), encode(GateRow(True, 3)))])
        await source.row(keys["own"], Forwarded("b", 3))
        await source.row(keys["gone"], Deleted("why"))
        done = await whole(source, target)
        assert done.differing == 2
        gone, stray, own = await read_rows(target.world, list(keys.values()))
        (there,) = await read_rows(source.world, [keys["gone"]])
        assert gone.epoch_of_deletion == there.epoch_of_deletion
        assert gone.state == Deleted("why")
        assert isinstance(stray.state, Deleted)
        for rows in (gone, stray):
            assert (rows.instance, rows.alarm.row) == (None, None)
            assert rows.deleted is not None
            manifest = (await read_register(target.blobs, rows.key.id)).manifest
            assert manifest is not None
            assert manifest.deleted
            assert manifest.incarnation == rows.epoch_of_deletion
        assert isinstance(own.state, Released)
        assert (await whole(source, target)).differing == 0

    sides(scenario)


def test_nothing_is_copied_over_an_open_gate(sides: Callable[..., None]) -> None:
    """A target that takes claims of the project is refused before anything is put there."""

    async def scenario(source: Side, target: Side) -> None:
        await source.put_object("x", 1, b"c")
        await target.gate(is_open=True)
        with pytest.raises(TargetOpenError):
            await whole(source, target)
        assert [listed.key async for listed in target.blobs.list("")] == []

    sides(scenario)


def test_blobs_that_go_under_the_copy_are_looked_for_anew(sides: Callable[..., None]) -> None:
    """Case 20: a rotation and the collector take a chunk away between the manifest's reading and its own: the copy goes
    on with the manifest that is there now; one that is really lost is named and holds up no other."""

    async def scenario(source: Side, target: Side) -> None:
        old = await source.put_object("x", 1, b"before")
        lost = chunk_key(old.object_id, FIRST_INCARNATION, old.base[0])

        async def rotate(key: str) -> None:
            if key == lost:
                source.blobs.before = None
                await source.put_object("x", 2, b"after")
                await source.blobs.delete(lost)

        source.blobs.before = rotate
        done = await whole(source, target)
        assert (done.failing, done.differing) == ([], 1)
        assert await target.content("x") == await source.content("x")
        broken = await source.put_object("broken", 1, b"lost for good")
        await source.put_object("fine", 1, b"fine")
        await source.blobs.delete(chunk_key(broken.object_id, FIRST_INCARNATION, broken.base[0]))
        done = await whole(source, target)
        assert len(done.failing) == 1
        assert "acme/Lot/broken" in done.failing[0]
        assert await target.content("fine") == await source.content("fine")

    sides(scenario)


def test_a_slice_goes_on_where_the_last_one_ended(sides: Callable[..., None]) -> None:
    """Bounded steps over a listing add up to one pass; what is told carries no names, however long they are (case
    125)."""

    async def scenario(source: Side, target: Side) -> None:
        for at in range(150):
            await source.put_object(f"{at:03}" + "n" * 240, 1, b"c")
        passing, progress, told = a_pass(source, target), CopyProgress(), []
        while not progress.done:
            progress = await passing.run(progress, 50, told.append)
            assert len(msgspec.json.encode(progress)) < 1000
        assert (progress.objects, progress.differing) == (150, 150)
        assert len(told) >= 4

    sides(scenario)
