"""A database from the bucket alone (PROTOCOLS section 10): what a manifest names, fetched, verified, put together."""

from __future__ import annotations

import asyncio

from blake3 import blake3

from domicile.node.blobs.base import Blobs
from domicile.node.branches import as_file
from domicile.node.chunks import chunk_key, segment_key
from domicile.node.errors import Corrupt
from domicile.node.manifest import Manifest
from domicile.node.sqlite.birth import IMAGE
from domicile.node.sqlite.checksum import checksum

FETCHES_PARALLEL = 8

Named = tuple[str, int, bytes]
"""(key, length, blake3 hash)."""


def named_blobs(manifest: Manifest) -> list[Named]:
    """The chunks in order, then the segments in order."""
    object_id, incarnation = manifest.object_id, manifest.incarnation
    chunks = [
        (chunk_key(object_id, incarnation, ref), manifest.image.length_of(at), ref.hash)
        for at, ref in enumerate(manifest.base)
    ]
    segments = [(segment_key(object_id, incarnation, s), s.end - s.start, s.hash) for s in manifest.segments]
    return chunks + segments


def put_together(manifest: Manifest, pieces: list[bytes]) -> bytes:
    """The database as a file. `pieces` are those of `named_blobs`. Raises Corrupt."""
    chunks, segments = pieces[: len(manifest.base)], pieces[len(manifest.base) :]
    log = b"".join(segments) + manifest.tail_log
    if checksum(manifest.seed, log) != manifest.checksum:
        raise Corrupt(f"object {manifest.object_id}: its log does not have the manifest's checksum")
    return as_file(b"".join(chunks) or IMAGE, log)


async def restore(blobs: Blobs, manifest: Manifest) -> bytes:
    """Raises BlobMissing, BlobUnavailable, Corrupt."""
    at_once = asyncio.Semaphore(FETCHES_PARALLEL)

    async def one(key: str, length: int, digest: bytes) -> bytes:
        async with at_once:
            data = (await blobs.get(key)).data
        if len(data) != length or blake3(data).digest() != digest:
            raise Corrupt(f"{key} has the wrong content")
        return data

    pieces = await asyncio.gather(*(one(*named) for named in named_blobs(manifest)))
    return await asyncio.to_thread(put_together, manifest, list(pieces))
