"""Scrub's walk over one region (PROTOCOLS section 10): the bucket re-hashed, copies proven, a sample restored."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import apsw
import msgspec
from blake3 import blake3
from temporalio import activity

from domicile.activities.collecting import object_ids
from domicile.activities.copy_content import read_register
from domicile.activities.pace import Pace
from domicile.activities.refusals import cut
from domicile.activities.restoring import named_blobs, put_together
from domicile.activities.world import RegionWorld, World
from domicile.errors import DomicileError
from domicile.node.control.scrub_messages import CopyProof, ProveCopy
from domicile.node.errors import BlobMissing, Corrupt, PeerBusy, PeerGone
from domicile.node.manifest import Manifest
from domicile.placement.records import NodeRow
from domicile.workflows.scrub import Scrubbed, ScrubShard

OBJECTS_AT_ONCE = 4
BLOBS_AT_ONCE = 8
ASK_SECS = 30.0
LOOKS_MAX = 5


class ScrubbingActivities:
    """Run where the region's bucket and nodes are near."""

    def __init__(self, world: World) -> None:
        self._world = world

    def steps(self) -> Sequence[Callable[..., Any]]:
        """The activities."""
        return (self.scrub_shard,)

    @activity.defn(name="scrub-shard")
    async def scrub_shard(self, asked: ScrubShard) -> Scrubbed:
        """Every object whose id begins with the shard's digit. Heartbeats carry what is done, and the last object."""
        region = await self._world.region(asked.region)
        details = activity.info().heartbeat_details
        after, done = (details[0], Scrubbed(**details[1])) if details else ("", Scrubbed())
        nodes = {node.copy_id: node for node in await region.nodes() if node.copy_id and node.peer}
        scrubber = Scrubber(region, nodes, Pace(self._world.clock, asked.mb_per_sec))
        batch: list[str] = []
        async for object_id in object_ids(region.blobs, asked.shard, after):
            batch.append(object_id)
            if len(batch) == OBJECTS_AT_ONCE:
                done, batch = await self._batch(scrubber, batch, asked.sample, done), []
        return await self._batch(scrubber, batch, asked.sample, done)

    async def _batch(self, scrubber: Scrubber, batch: list[str], sample: float, done: Scrubbed) -> Scrubbed:
        for one in await asyncio.gather(*(scrubber.scrub(object_id, sample) for object_id in batch)):
            for problem in one.problems:
                self._world.log.error("scrub.problem", problem=problem)
            done = done.plus(one)
        if batch:
            activity.heartbeat(batch[-1], asdict(done))
        return done


class Scrubber:
    """Reads objects of one region back. `nodes`: by copy id."""

    def __init__(self, region: RegionWorld, nodes: Mapping[str, NodeRow], pace: Pace) -> None:
        self._region = region
        self._nodes = nodes
        self._pace = pace
        self._at_once = asyncio.Semaphore(BLOBS_AT_ONCE)

    async def scrub(self, object_id: str, sample: float) -> Scrubbed:
        """One object, as its manifest names it now; one that changes meanwhile is looked at anew. Raises
        BlobUnavailable."""
        for _ in range(LOOKS_MAX):
            try:
                found = await read_register(self._region.blobs, object_id)
                if found.manifest is None or found.manifest.deleted:
                    return Scrubbed(objects=1)
                scrubbed = await self._scrubbed(found.manifest, restore=is_sampled(object_id, sample))
            except Corrupt as error:
                return _problems(Scrubbed(objects=1), [str(error)])
            if not scrubbed.problems_in_all or (await read_register(self._region.blobs, object_id)).tag == found.tag:
                return scrubbed
        return Scrubbed(objects=1)  # it changes faster than it can be read, so it lives

    async def _scrubbed(self, manifest: Manifest, *, restore: bool) -> Scrubbed:
        pieces = await asyncio.gather(*(self._blob(*blob) for blob in named_blobs(manifest)))
        problems = [problem for _, problem in pieces if problem]
        done = Scrubbed(objects=1, blobs=len(pieces), bytes=sum(len(data) for data, _ in pieces))
        image = b""
        if restore and not problems:
            image, problem = await asyncio.to_thread(restored, manifest, [data for data, _ in pieces])
            problems += [problem] if problem else []
            done = replace(done, restored=1)
        proofs = await asyncio.gather(*(self._copy(manifest, copy, image=bool(image)) for copy in manifest.members))
        for copy, proof in zip(manifest.members, proofs, strict=True):
            if proof is not None and proof.held:
                done = replace(done, copies=done.copies + 1)
                problems += [f"copy {copy}: {why}" for why in _faults(proof, manifest, image)]
        return _problems(done, [f"object {manifest.object_id}: {problem}" for problem in problems])

    async def _blob(self, key: str, length: int, digest: bytes) -> tuple[bytes, str]:
        """(its bytes, what is wrong with it). Raises BlobUnavailable."""
        async with self._at_once:
            await self._pace.take(length)
            try:
                data = (await self._region.blobs.get(key)).data
            except BlobMissing:
                return b"", f"{key} is missing"
        return data, "" if len(data) == length and blake3(data).digest() == digest else f"{key} has other content"

    async def _copy(self, manifest: Manifest, copy: str, *, image: bool) -> CopyProof | None:
        """What the member proves; None: it is away, or busy with its copy, which is no fault."""
        node = self._nodes.get(copy)
        if node is None:
            return None
        asked = ProveCopy(manifest.object_id, manifest.incarnation, manifest.generation, manifest.length, image)
        try:
            answer = await self._region.ask(node, "copy-prove", msgspec.msgpack.encode(asked), ASK_SECS)
        except (PeerGone, PeerBusy, DomicileError):
            return None
        return msgspec.msgpack.decode(answer, type=CopyProof)


def is_sampled(object_id: str, share: float) -> bool:
    """Whether it is one of the share of objects that are restored: by its id, so that another share adds to it."""
    return int(object_id[-8:], 16) < share * 2**32


def restored(manifest: Manifest, pieces: list[bytes]) -> tuple[bytes, str]:
    """(blake3 of the database that the bucket's bytes alone make, what is wrong with it)."""
    try:
        file = put_together(manifest, pieces)
    except Corrupt as error:
        return b"", str(error)
    connection = apsw.Connection(":memory:")
    try:
        connection.deserialize("main", file)
        said = [str(row[0]) for row in connection.execute("PRAGMA integrity_check(3)")]
    except apsw.Error as error:
        said = [str(error)]
    finally:
        connection.close(True)
    return blake3(file).digest(), "" if said == ["ok"] else f"the restored database is broken: {'; '.join(said)}"


def _faults(proof: CopyProof, manifest: Manifest, image: bytes) -> list[str]:
    if proof.why:
        return [proof.why]
    if proof.checksum != manifest.checksum:
        return ["its log differs from the bucket's"]
    return ["its database differs from the one restored from the bucket"] if image and proof.image != image else []


def _problems(done: Scrubbed, problems: Sequence[str]) -> Scrubbed:
    return replace(done, problems_in_all=len(problems), problems=[cut(problem) for problem in problems])
