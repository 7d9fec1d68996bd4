"""Copying what one object is made of: chunks and segments, then the manifest that names them (PROTOCOLS section 10)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass

from blake3 import blake3

from domicile.activities.copied_manifest import Blob, buried, copied
from domicile.activities.pace import Pace
from domicile.node import manifest as manifests
from domicile.node.blobs.base import ABSENT, Absent, Blobs
from domicile.node.chunks import manifest_key
from domicile.node.errors import BlobMissing, BlobUnavailable, Corrupt, PreconditionFailed
from domicile.node.manifest import Manifest
from domicile.placement.records import Epoch, ObjectKey

TRANSFERS_PARALLEL = 32
PUT_ID_BYTES = 16

Tag = str | Absent


class OvertakenError(Exception):
    """Source or target changed while the object was copied: look at it anew."""


@dataclass(frozen=True, slots=True)
class Registered:
    """What an object's register has: None and ABSENT where there is none."""

    manifest: Manifest | None
    tag: Tag


async def read_register(blobs: Blobs, object_id: str) -> Registered:
    """Raises Corrupt, BlobUnavailable."""
    key = manifest_key(object_id)
    try:
        blob = await blobs.get(key)
    except BlobMissing:
        return Registered(None, ABSENT)
    return Registered(manifests.decode(blob.data, key), blob.tag)


class ContentCopy:
    """Copies between two buckets, a bounded number of blobs at once. `term` as in CopyOrder."""

    def __init__(self, source: Blobs, target: Blobs, term: int, rng: random.Random, pace: Pace) -> None:
        self._source = source
        self._target = target
        self._term = term
        self._rng = rng
        self._pace = pace
        self._at_once = asyncio.Semaphore(TRANSFERS_PARALLEL)
        self.bytes = 0

    async def copy(self, found: Registered, replaced: Registered) -> tuple[Manifest, str]:
        """Everything `found` names, then its manifest over `replaced`; gives what stands in the target.

        Raises OvertakenError, TermTooLowError, BlobMissing, Corrupt, BlobUnavailable.
        """
        assert found.manifest is not None
        plan = copied(found.manifest, replaced.manifest, self._term, self._put_id())
        try:
            await self._transfer_all(plan.blobs)
        except BlobMissing:
            if (await read_register(self._source, found.manifest.object_id)).tag != found.tag:
                raise OvertakenError(f"object {found.manifest.object_id}: its blobs were replaced") from None
            raise
        return plan.manifest, await self._put(plan.manifest, replaced.tag)

    async def bury(self, key: ObjectKey, replaced: Registered, incarnation: Epoch) -> None:
        """The tombstone manifest of a deletion, unless one as new is there. Raises as `copy`."""
        if replaced.manifest is None or replaced.manifest.incarnation < incarnation:
            tombstone = buried(key, replaced.manifest, self._term, incarnation, self._put_id())
            await self._put(tombstone, replaced.tag)

    async def _put(self, manifest: Manifest, tag: Tag) -> str:
        key, data = manifest_key(manifest.object_id), manifests.encode(manifest)
        try:
            return await self._target.put(key, data, tag)
        except PreconditionFailed:
            raise OvertakenError(f"object {manifest.object_id}: its manifest in the target was replaced") from None
        except BlobUnavailable as error:
            if not error.maybe:
                raise
            standing = await read_register(self._target, manifest.object_id)
            if standing.manifest is None or standing.manifest.put_id != manifest.put_id:
                raise  # it may land yet; whoever goes on is conditioned on what stands then
            assert isinstance(standing.tag, str)
            return standing.tag

    async def _transfer_all(self, blobs: Sequence[Blob]) -> None:
        tasks = [asyncio.ensure_future(self._transfer(blob)) for blob in blobs]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _transfer(self, blob: Blob) -> None:
        async with self._at_once:
            await self._pace.take(blob.length)
            data = (await self._source.get(blob.source)).data
            if len(data) != blob.length or blake3(data).digest() != blob.hash:
                raise Corrupt(f"{blob.source} has the wrong content")
            await self._target.put(blob.target, data)
            self.bytes += blob.length

    def _put_id(self) -> bytes:
        return self._rng.randbytes(PUT_ID_BYTES)
