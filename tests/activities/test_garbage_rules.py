"""Which stored bytes are garbage (PROTOCOLS section 10, "CollectGarbage"): the rules, key by key."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from domicile.node import manifest as manifests
from domicile.node.chunks import ChunkRef, Segment, chunk_key, manifest_key, segment_key
from domicile.node.garbage import Piece, judge, piece_of
from domicile.node.manifest import Manifest
from domicile.placement.records import Birth, Epoch, Generation, ObjectKey

KEY = ObjectKey("demo", "Counter", "one")
LIFE = Epoch(1, 4)
HERE = Generation(Epoch(1, 9), 2)
OLDER, NEWER = Generation(Epoch(1, 9), 1), Generation(Epoch(1, 9), 3)
FENCE = Epoch(1, 12)
SIZE = 32 + 4 * 4120


def manifest(**changes: object) -> Manifest:
    """A manifest of generation `HERE`, fenced by a later owner, that names one old chunk and one segment."""
    born = manifests.birth(KEY, LIFE, Epoch(1, 9), Birth())
    content = {
        "generation": HERE,
        "epoch": FENCE,
        "seq": 7,
        "base": (ChunkRef(b"\1" * 32, OLDER),),
        "base_size": 4096,
        "segments": (Segment(Epoch(1, 9), HERE, 0, SIZE, b"\2" * 32),),
        "length": SIZE,
    }
    return replace(born, **{**content, **changes})


def chunk(generation: Generation, life: Epoch = LIFE, content: bytes = b"\3") -> str:
    return chunk_key(KEY.id, life, ChunkRef(content * 32, generation))


def segment(generation: Generation, end: int, writer: Epoch = FENCE, life: Epoch = LIFE) -> str:
    return segment_key(KEY.id, life, Segment(writer, generation, 0, end, b"\4" * 32))


@pytest.mark.parametrize(
    ("key", "garbage"),
    [
        (chunk(OLDER), True),
        (chunk(HERE), True),
        (chunk(NEWER), False),
        (chunk(OLDER, content=b"\1"), False),  # named
        (segment(OLDER, 1), True),
        (segment(HERE, SIZE), True),  # its own length covers it
        (segment(HERE, SIZE + 4120), False),  # on its way
        (segment(HERE, SIZE + 4120, writer=Epoch(1, 11)), True),  # by one who is fenced
        (segment(NEWER, 1), False),
        (segment(NEWER, 1, writer=Epoch(1, 11)), True),
        (segment_key(KEY.id, LIFE, Segment(Epoch(1, 9), HERE, 0, SIZE, b"\2" * 32)), False),  # named
        (chunk(NEWER, life=Epoch(1, 3)), True),  # a life that is over
        (chunk(OLDER, life=Epoch(1, 5)), False),  # one that has not shown itself
        (manifest_key(KEY.id), False),
        (f"{KEY.id}/lost/1.9/db", False),
        (f"{KEY.id}/{LIFE}/something", False),
    ],
)
def test_what_a_live_manifest_makes_garbage(key: str, garbage: bool) -> None:
    """Only what no later manifest can name goes; what is named, newer or unknown stays."""
    assert judge(manifest())(key) is garbage


def test_what_a_fork_names_stays() -> None:
    """The state that a failover began with is a root, whatever the manifest names by now."""
    old = manifest(base=(ChunkRef(b"\3" * 32, OLDER),), segments=(), tail=b"", length=0, start=0)
    assert judge(manifest())(chunk(OLDER))
    assert not judge(manifest(), old)(chunk(OLDER))
    assert judge(manifest(), old)(chunk(HERE))


def test_without_a_manifest_nothing_goes() -> None:
    """A birth puts its first segment before its first manifest."""
    assert not judge(None)(chunk(OLDER))
    assert not judge(None)(segment(HERE, 1))


def test_a_tombstone_frees_the_life_it_ended_and_no_other() -> None:
    """The next life has the tombstone's own incarnation, and may have put a segment before its first manifest."""
    stamp = manifests.Stamp(Epoch(1, 20), b"p" * 16)
    judged = judge(manifests.tombstone(manifest(), stamp, Epoch(1, 20)))
    assert judged(chunk(OLDER))
    assert judged(chunk(NEWER))
    assert judged(segment(HERE, SIZE + 4120))
    assert not judged(chunk(Generation(Epoch(1, 21), 0), life=Epoch(1, 20)))
    assert not judged(segment(Generation(Epoch(1, 21), 0), 1, writer=Epoch(1, 21), life=Epoch(1, 20)))


def test_what_a_copy_put_for_a_manifest_that_was_replaced_goes() -> None:
    """A standing copy is copied again and again: pieces of passes before are named by nobody any more."""
    fence = Epoch(3, 0)
    standing = manifest(epoch=fence, seq=7)
    judged = judge(standing)
    assert judged(chunk(Generation(fence, 6)))
    assert judged(chunk(Generation(fence, 7)))
    assert judged(segment(Generation(fence, 6), 1, writer=fence))
    assert judged(chunk(Generation(Epoch(2, 0), 99)))
    assert not judged(chunk(Generation(fence, 8))), "the next pass is about to name it"
    assert not judged(chunk(Generation(Epoch(4, 0), 1))), "a later copy is about to name it"


epochs = st.builds(Epoch, st.integers(0, 2**40), st.integers(0, 2**40))
generations = st.builds(Generation, epochs, st.integers(0, 999))


@given(epochs, generations, st.binary(min_size=32, max_size=32), epochs, st.integers(0, 2**40), st.integers(1, 2**20))
def test_keys_read_back_as_what_they_were_made_of(
    life: Epoch, generation: Generation, digest: bytes, writer: Epoch, start: int, length: int
) -> None:
    """The collector judges by keys alone: it reads in them what the store leg wrote."""
    assert piece_of(chunk_key(KEY.id, life, ChunkRef(digest, generation))) == Piece(life, generation)
    piece = Segment(writer, generation, start, start + length, digest)
    assert piece_of(segment_key(KEY.id, life, piece)) == Piece(life, generation, writer, start + length)
