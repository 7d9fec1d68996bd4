"""The manifest of a copy: the source's content under keys of the target's own (PROTOCOLS section 10, MoveProject).

A copy is at the source's position, generation and checksum, with no members and Q 0. Its keys are the target's: **a key
is reused only if the target's manifest being replaced, by tag, names it; a key that has left that manifest never comes
back**, since somebody may be about to delete it. So what has to be put gets a generation that this register never had
before: (the copy's fence, the seq of the manifest that names it). Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from domicile.node import manifest as manifests
from domicile.node.chunks import ChunkRef, Segment, chunk_key, segment_key
from domicile.node.manifest import Manifest, Stamp
from domicile.placement.records import FIRST_INCARNATION, Birth, Epoch, Generation, ObjectKey


class TermTooLowError(Exception):
    """The copy's term does not exceed an epoch that one of the two regions has already seen."""


@dataclass(frozen=True, slots=True)
class Blob:
    """One blob to be copied: its key in the source and in the target, its length and its blake3 hash."""

    source: str
    target: str
    length: int
    hash: bytes


@dataclass(frozen=True, slots=True)
class CopiedManifest:
    """What to put, and the blobs that have to be there before."""

    manifest: Manifest
    blobs: tuple[Blob, ...]


def fence(term: int) -> Epoch:
    """The epoch of everything a copy of this term puts: below every claim's under a later gate's term."""
    return Epoch(term, 0)


def copied(source: Manifest, replaced: Manifest | None, term: int, put_id: bytes) -> CopiedManifest:
    """`replaced` is what the target has under the tag that the put will be conditioned on. Raises TermTooLowError."""
    epoch = fence(term)
    seen = max(source.epoch, replaced.epoch if replaced is not None else epoch)
    if seen > epoch or source.epoch >= epoch:
        raise TermTooLowError(f"object {source.object_id}: epoch {seen} has been seen, the copy's is {epoch}")
    seq = replaced.seq + 1 if replaced is not None else 1
    lineage = Generation(epoch, seq)
    kept = replaced if replaced is not None and replaced.incarnation == source.incarnation else None
    base, chunks = _base(source, kept, lineage)
    segments, pieces = _segments(source, kept, lineage)
    manifest = msgspec.structs.replace(
        source, epoch=epoch, seq=seq, put_id=put_id, base=base, segments=segments, members=(), quorum=0
    )
    return CopiedManifest(manifest, (*chunks, *pieces))


def buried(key: ObjectKey, replaced: Manifest | None, term: int, incarnation: Epoch, put_id: bytes) -> Manifest:
    """The tombstone manifest of an object that was deleted in the source. `incarnation`: the deletion's epoch."""
    before = replaced if replaced is not None else manifests.birth(key, FIRST_INCARNATION, Epoch(0, 0), Birth())
    return manifests.tombstone(before, Stamp(max(fence(term), incarnation, before.epoch), put_id), incarnation)


def _base(source: Manifest, kept: Manifest | None, lineage: Generation) -> tuple[tuple[ChunkRef, ...], list[Blob]]:
    named = {ref.hash: ref for ref in kept.base} if kept is not None else {}
    refs, blobs = [], {}
    for at, ref in enumerate(source.base):
        target = named.get(ref.hash) or ChunkRef(ref.hash, lineage)
        refs.append(target)
        if ref.hash not in named:
            blobs[ref.hash] = Blob(
                chunk_key(source.object_id, source.incarnation, ref),
                chunk_key(source.object_id, source.incarnation, target),
                source.image.length_of(at),
                ref.hash,
            )
    return tuple(refs), list(blobs.values())


def _segments(source: Manifest, kept: Manifest | None, lineage: Generation) -> tuple[tuple[Segment, ...], list[Blob]]:
    named = {(s.start, s.end, s.hash): s for s in kept.segments} if kept is not None else {}
    segments, blobs = [], []
    for segment in source.segments:
        target = named.get((segment.start, segment.end, segment.hash))
        if target is None:
            target = Segment(lineage.epoch, lineage, segment.start, segment.end, segment.hash)
            blobs.append(
                Blob(
                    segment_key(source.object_id, source.incarnation, segment),
                    segment_key(source.object_id, source.incarnation, target),
                    segment.end - segment.start,
                    segment.hash,
                )
            )
        segments.append(target)
    return tuple(segments), blobs
