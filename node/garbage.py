"""Which of an object's stored bytes are garbage, and their removal (PROTOCOLS section 10, "CollectGarbage").

Read the manifest, *then* list: of what the manifest does not name, a key may go only if no manifest that follows can
name it. A key that has left the manifest never comes back, and keys carry the generation that put them, so that can be
told from the key alone. What is not a chunk or a segment (the manifest itself, lost branches, history) is not judged.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from domicile.node import manifest as manifests
from domicile.node.blobs.base import Blobs
from domicile.node.chunks import chunk_key, fork_key, manifest_key, object_prefix, segment_key
from domicile.node.errors import BlobMissing
from domicile.node.manifest import Manifest
from domicile.placement.records import Epoch, Generation, Incarnation

_EPOCH = r"(\d+)\.(\d+)"
_PIECE = re.compile(rf"[0-9a-f]{{64}}/{_EPOCH}/{_EPOCH}\.(\d+)/(?:{_EPOCH}-(\d+)-(\d+)-)?[0-9a-f]{{64}}")
COPIED = 0  # the version in the epoch of what a copy between regions puts: no claim has it


@dataclass(frozen=True, slots=True)
class Piece:
    """A chunk or a segment, by its key: whose life and generation put it. `writer` and `end` are a segment's."""

    incarnation: Incarnation
    generation: Generation
    writer: Epoch | None = None
    end: int = 0


@dataclass(frozen=True, slots=True)
class Collected:
    """What became of one object's pieces."""

    kept: int
    deleted: int
    freed_bytes: int


async def collect(blobs: Blobs, object_id: str, *, past_incidents: bool = True) -> Collected:
    """Read the manifest, then its fork if it has one, then list, then delete what is garbage by them.

    Without `past_incidents` an object that has open ones is left as it is: a lost branch may yet be compared with what
    it grew from. Raises BlobUnavailable, Corrupt. Stopped anywhere it has deleted garbage only.
    """
    manifest = await _manifest(blobs, manifest_key(object_id))
    if manifest is None or (manifest.incidents and not past_incidents):
        return Collected(0, 0, 0)
    is_garbage = judge(manifest, await _manifest(blobs, fork_key(object_id)))
    kept = deleted = freed = 0
    async for listed in blobs.list(object_prefix(object_id)):
        if is_garbage(listed.key):
            await blobs.delete(listed.key)
            deleted, freed = deleted + 1, freed + listed.size
        else:
            kept += 1
    return Collected(kept, deleted, freed)


async def _manifest(blobs: Blobs, key: str) -> Manifest | None:
    try:
        return manifests.decode((await blobs.get(key)).data, key)
    except BlobMissing:
        return None


def piece_of(key: str) -> Piece | None:
    """What the key says; None for one that is neither a chunk's nor a segment's."""
    match = _PIECE.fullmatch(key)
    if match is None:
        return None
    numbers = [int(number) for number in match.groups() if number is not None]
    incarnation, generation = Epoch(*numbers[:2]), Generation(Epoch(*numbers[2:4]), numbers[4])
    if len(numbers) == 5:
        return Piece(incarnation, generation)
    return Piece(incarnation, generation, Epoch(*numbers[5:7]), numbers[8])


def judge(manifest: Manifest | None, fork: Manifest | None = None) -> Callable[[str], bool]:
    """Whether a listed key is garbage, by a manifest read *before* the listing; None: there was none.

    Without a manifest nothing is: a birth's first pieces come before it. `fork`: what else is a root, read after the
    manifest; it named what a manifest before this one did.
    """
    if manifest is None:
        return lambda _: False
    named = _named(manifest) | (_named(fork) if fork is not None else frozenset())

    def is_garbage(key: str) -> bool:
        piece = piece_of(key)
        return piece is not None and key not in named and _is_past(piece, manifest)

    return is_garbage


def _named(manifest: Manifest) -> frozenset[str]:
    object_id, incarnation = manifest.object_id, manifest.incarnation
    chunks = {chunk_key(object_id, incarnation, ref) for ref in manifest.base}
    return frozenset(chunks | {segment_key(object_id, incarnation, segment) for segment in manifest.segments})


def _is_past(piece: Piece, manifest: Manifest) -> bool:
    """Whether no manifest that can follow names it, this one not naming it.

    A tombstone is of the life that follows the one it ended: all of the ended life goes, and what the next has put
    before its first manifest stays. What a copy between regions put is of (the copy's fence, the seq of its manifest):
    it can be named by that put alone, and by those that replace it.
    """
    if piece.incarnation != manifest.incarnation:
        return piece.incarnation < manifest.incarnation
    if manifest.deleted:
        return False
    if piece.generation.epoch.version == COPIED:
        return piece.generation <= Generation(manifest.epoch, manifest.seq)
    if piece.writer is None:
        return piece.generation <= manifest.generation
    covered = piece.generation == manifest.generation and piece.end <= manifest.length
    return piece.generation < manifest.generation or covered or piece.writer < manifest.epoch
