"""A base as 1 MiB chunks and a log as segments: their keys, and fetching a base (PROTOCOLS section 7).

**A key is reused only if the manifest being replaced names it; a key that has left the manifest never comes back.**
So the generation that put a chunk is part of its key, and the collector may delete by generation without a race.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

import msgspec
from blake3 import blake3

from domicile.node.blobs.base import Blobs
from domicile.node.chunk_cache import ChunkCache
from domicile.node.errors import BlobMissing, Corrupt
from domicile.node.sqlite.wal import CHUNK_BYTES
from domicile.placement.records import Epoch, Generation, Incarnation

FETCHES_PARALLEL = 8
LOST, SERVED = "lost.db", "served.db"  # what an incident keeps: the branch, and what was served instead
MANIFESTS = "manifests/"  # all in one place: a birth makes no folder, and every object of a store can be listed


class ChunkRef(msgspec.Struct, frozen=True, array_like=True):
    """One chunk of a base: its blake3 hash, 32 bytes, and the generation under which it was put."""

    hash: bytes
    generation: Generation


class Segment(msgspec.Struct, frozen=True, array_like=True):
    """A piece of the log, bytes [start, end): who wrote it, under which generation, and its blake3 hash, 32 bytes."""

    writer: Epoch
    generation: Generation
    start: int
    end: int
    hash: bytes


@dataclass(frozen=True, slots=True)
class Base:
    """What a base is made of: `size` in bytes, its chunks in order. No chunks: the birth image."""

    object_id: str
    incarnation: Incarnation
    refs: tuple[ChunkRef, ...]
    size: int

    def length_of(self, index: int) -> int:
        """Bytes of one chunk: all but the last are full."""
        return min(CHUNK_BYTES, self.size - index * CHUNK_BYTES)


def object_prefix(object_id: str) -> str:
    """All chunks and segments of one object."""
    return f"{object_id}/"


def incarnation_prefix(object_id: str, incarnation: Incarnation) -> str:
    """All chunks and segments of one life of an object."""
    return f"{object_id}/{incarnation}/"


def manifest_key(object_id: str) -> str:
    """The one register of an object, over all its lives."""
    return MANIFESTS + object_id


def chunk_key(object_id: str, incarnation: Incarnation, ref: ChunkRef) -> str:
    """`<object>/<incarnation>/<generation that put it>/<hash>`."""
    return f"{object_id}/{incarnation}/{ref.generation}/{ref.hash.hex()}"


def segment_key(object_id: str, incarnation: Incarnation, segment: Segment) -> str:
    """`<object>/<incarnation>/<generation>/<writer's epoch>-<from>-<to>-<hash>`."""
    piece = f"{segment.writer}-{segment.start}-{segment.end}-{segment.hash.hex()}"
    return f"{object_id}/{incarnation}/{segment.generation}/{piece}"


def fork_key(object_id: str) -> str:
    """The manifest an object had when its project failed over to this region: a root, until that is settled."""
    return f"forks/{object_id}"


def lost_key(object_id: str, epoch: Epoch, part: str) -> str:
    """What an incident keeps in the store, apart from what is collected: `lost/<object>/<epoch>/<part>`."""
    return f"lost/{object_id}/{epoch}/{part}"


def chunks_of(size: int) -> int:
    """How many chunks a base of `size` bytes has."""
    return -(-size // CHUNK_BYTES)


def next_refs(hashes: Sequence[bytes], replaced: Sequence[ChunkRef], generation: Generation) -> tuple[ChunkRef, ...]:
    """The refs of a new base. The chunks to put are those not in `replaced`.

    A chunk that the replaced manifest names (in this incarnation) keeps its key; any other gets one of `generation`.
    """
    named = {ref.hash: ref for ref in replaced}
    return tuple(named.get(digest) or ChunkRef(digest, generation) for digest in hashes)


def hash_chunks(read: Callable[[int, int], bytes], size: int, which: Collection[int] | None = None) -> dict[int, bytes]:
    """Index to hash, of all chunks of a base of `size` bytes or of those in `which`. `read` takes (offset, length)."""
    hashes = {}
    for index in range(chunks_of(size)) if which is None else sorted(which):
        length = min(CHUNK_BYTES, size - index * CHUNK_BYTES)
        data = read(index * CHUNK_BYTES, length)
        assert len(data) == length > 0, f"chunk {index}: read {len(data)} bytes of {length}"
        hashes[index] = blake3(data).digest()
    return hashes


async def fetch_chunk(blobs: Blobs, cache: ChunkCache | None, base: Base, index: int) -> bytes:
    """One chunk, verified, from the cache or the store.

    Raises BlobMissing and Corrupt, which name object and key, and BlobUnavailable.
    """
    ref = base.refs[index]
    if cache is not None and (data := cache.get(ref.hash)) is not None:
        return data
    key = chunk_key(base.object_id, base.incarnation, ref)
    try:
        data = (await blobs.get(key)).data
    except BlobMissing:
        raise BlobMissing(f"object {base.object_id}: chunk {index} of its base is missing: {key}") from None
    if len(data) != base.length_of(index) or blake3(data).digest() != ref.hash:
        raise Corrupt(f"object {base.object_id}: chunk {index} of its base has the wrong content: {key}")
    if cache is not None:
        cache.put(ref.hash, data)
    return data


async def fetch_base(
    blobs: Blobs,
    cache: ChunkCache | None,
    base: Base,
    place: Callable[[int, bytes], None],
    which: Collection[int] | None = None,
) -> None:
    """Fetch the base's chunks (or those in `which`), at most 8 at once, and give each to `place(index, data)`.

    Chunks arrive in any order. The first failure ends the rest and is raised: see `fetch_chunk`.
    """
    lacking = iter(range(len(base.refs)) if which is None else sorted(which))
    many = min(FETCHES_PARALLEL, len(base.refs))
    tasks = [asyncio.ensure_future(_fetch_some(blobs, cache, base, place, lacking)) for _ in range(many)]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _fetch_some(
    blobs: Blobs,
    cache: ChunkCache | None,
    base: Base,
    place: Callable[[int, bytes], None],
    lacking: Iterator[int],
) -> None:
    for index in lacking:
        place(index, await fetch_chunk(blobs, cache, base, index))
