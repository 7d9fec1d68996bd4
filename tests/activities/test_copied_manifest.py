"""The manifest of a copy: the source's content, under keys that no collector of the target can be about to delete."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from domicile.activities.copied_manifest import TermTooLowError, buried, copied, fence
from domicile.activities.expiring import left_behind
from domicile.node import manifest as manifests
from domicile.node.chunks import ChunkRef, Segment, chunk_key, segment_key
from domicile.node.garbage import judge
from domicile.node.manifest import Manifest
from domicile.node.sqlite.checksum import checksum
from domicile.node.sqlite.wal import CHUNK_BYTES, length_of
from domicile.placement.records import FIRST_INCARNATION, Birth, Epoch, Generation, ObjectKey

KEY = ObjectKey("acme", "Lot", "42")
HASHES = [bytes([at]) * 32 for at in range(1, 5)]


def source(version: int, chunks: list[int], frames: int) -> Manifest:
    """As the source's bucket has it after that many rotations: these chunks, one segment of log."""
    generation = Generation(Epoch(1, 10), version)
    refs = tuple(ChunkRef(HASHES[at], Generation(Epoch(1, 10), version)) for at in chunks)
    born = manifests.birth(KEY, FIRST_INCARNATION, Epoch(1, 10), Birth())
    empty = msgspec.structs.replace(born, base=refs, base_size=len(refs) * CHUNK_BYTES, generation=generation)
    length = length_of(frames) if frames else 0
    segment = Segment(Epoch(1, 10), generation, 0, length, bytes([frames]) * 32)
    return msgspec.structs.replace(
        empty,
        seq=version + 1,
        put_id=bytes([version]) * 16,
        length=length,
        segments=(segment,) if frames else (),
        checksum=checksum(empty.seed, bytes(length)),
        members=("copy-a", "copy-b"),
        quorum=2,
    )


def keys_of(manifest: Manifest) -> set[str]:
    chunks = {chunk_key(KEY.id, manifest.incarnation, ref) for ref in manifest.base}
    return chunks | {segment_key(KEY.id, manifest.incarnation, segment) for segment in manifest.segments}


def test_a_copy_is_the_sources_content_with_no_members() -> None:
    """Position, checksum and base are the source's; members are none and Q is 0; the fence is the copy's term."""
    found = source(3, [0, 1, 0], 2)
    plan = copied(found, None, 7, b"p" * 16)
    made = plan.manifest
    assert (made.position, made.checksum, made.seed) == (found.position, found.checksum, found.seed)
    assert [ref.hash for ref in made.base] == [ref.hash for ref in found.base]
    assert (made.members, made.quorum, made.epoch, made.seq) == ((), 0, Epoch(7, 0), 1)
    assert manifests.decode(manifests.encode(made)) == made
    assert {blob.target for blob in plan.blobs} == keys_of(made)
    assert {blob.source for blob in plan.blobs} == keys_of(found)


def test_what_the_replaced_manifest_names_is_not_copied_again() -> None:
    """A second copy moves what is new, and goes on naming the rest under the keys it has."""
    first = copied(source(1, [0, 1, 2], 2), None, 7, b"p" * 16).manifest
    plan = copied(source(2, [0, 3, 2], 2), first, 7, b"q" * 16)
    assert [blob.hash for blob in plan.blobs] == [HASHES[3]]
    assert plan.manifest.base[0] == first.base[0]
    assert plan.manifest.segments == first.segments


@pytest.mark.parametrize("term", [0, 1])
def test_a_copys_term_exceeds_what_either_region_has_seen(term: int) -> None:
    """A copy whose fence is not above the source's epoch, or is below the target's, is refused."""
    with pytest.raises(TermTooLowError):
        copied(source(1, [0], 1), None, term, b"p" * 16)
    with pytest.raises(TermTooLowError):
        copied(source(1, [0], 1), copied(source(1, [0], 1), None, 9, b"p" * 16).manifest, 8, b"q" * 16)


steps = st.lists(
    st.one_of(
        st.tuples(st.just("copy"), st.lists(st.integers(0, 3), max_size=4), st.integers(0, 3)),
        st.tuples(st.just("left"), st.just([]), st.just(0)),
        st.tuples(st.just("buried"), st.just([]), st.just(0)),
        st.tuples(st.just("move"), st.just([]), st.just(0)),
    ),
    max_size=12,
)


@given(steps)
def test_no_collector_deletes_what_a_later_copy_names(history: list[tuple[str, list[int], int]]) -> None:
    """However copies, expiries and deletions follow each other: a key that has left the target's manifest never comes
    back, and what a collector would delete by any earlier manifest no later one names."""
    register: Manifest | None = None
    earlier: list[Manifest] = []
    gone: set[str] = set()
    term, version = 2, 0
    for kind, chunks, frames in history:
        version += 1
        put_id = version.to_bytes(16, "big")
        if kind == "move":
            term += 1
            continue
        if kind == "left":
            if register is None or register.deleted:
                continue
            following = left_behind(register, put_id)
        elif kind == "buried":
            incarnation = Epoch(1, 100 + version)
            if register is not None and register.incarnation >= incarnation:
                continue
            following = buried(KEY, register, term, incarnation, put_id)
        else:
            found = source(version, chunks, frames)
            if register is not None and register.incarnation > found.incarnation:
                found = msgspec.structs.replace(found, incarnation=register.incarnation)
            following = copied(found, register, term, put_id).manifest
        now = keys_of(following)
        assert not now & gone
        for manifest in earlier:
            assert not any(judge(manifest)(key) for key in now - keys_of(manifest))
        if register is not None:
            assert following.seq == register.seq + 1
            gone |= keys_of(register) - now
        earlier.append(following)
        register = following
        assert following.epoch <= max(fence(term), following.incarnation)
        manifests.encode(following)
