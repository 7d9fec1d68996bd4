"""The manifest: its bytes, and that no step from one to the next breaks its invariants."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import msgspec
import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from domicile.node import manifest as manifests
from domicile.node.chunks import Base, ChunkRef, Segment
from domicile.node.errors import Corrupt
from domicile.node.manifest import Manifest, Reach, Stamp
from domicile.node.sqlite.checksum import checksum
from domicile.node.sqlite.wal import CHUNK_BYTES, length_of
from domicile.placement.records import FIRST_INCARNATION, Birth, Epoch, Generation, ObjectKey, Position

KEY = ObjectKey("acme", "Lot", "42/ü")
BORN, NEXT, LATER = Epoch(1, 7), Epoch(1, 9), Epoch(2, 11)


def stamp(epoch: Epoch, number: int) -> Stamp:
    return Stamp(epoch, number.to_bytes(16, "big"))


def born() -> Manifest:
    return manifests.birth(KEY, FIRST_INCARNATION, BORN, Birth(("copy-a", "copy-b", "copy-c"), 2))


def log(frames: int) -> bytes:
    return b"\x5a" * length_of(frames)


def reach(manifest: Manifest, generation: Generation, start: int, frames: int) -> Reach:
    return Reach(generation, start, length_of(frames), checksum(manifest.seed, log(frames)))


def full() -> Manifest:
    """A manifest with everything in it."""
    first = manifests.extended(
        born(),
        stamp(BORN, 1),
        reach(born(), Generation(BORN, 0), 0, 2),
        segment=Segment(BORN, Generation(BORN, 0), 0, length_of(2), b"\1" * 32),
        tail=b"",
    )
    taken = manifests.fenced(first, stamp(NEXT, 2), rename=True)
    base = Base(KEY.id, FIRST_INCARNATION, (ChunkRef(b"\2" * 32, Generation(NEXT, 1)),), 40960)
    empty = msgspec.structs.replace(taken, base=base.refs, base_size=base.size)
    piece = Segment(NEXT, Generation(NEXT, 1), 0, length_of(1), b"\3" * 32)
    rotated = manifests.rotated(
        taken,
        stamp(NEXT, 3),
        reach(empty, Generation(NEXT, 1), 0, 3),
        base,
        segment=piece,
        tail=log(3)[length_of(1) :],
    )
    incident = (NEXT, Position(FIRST_INCARNATION, Generation(BORN, 0), length_of(2)))
    return manifests.with_incidents(manifests.with_members(rotated, ("copy-d",), 1), (incident,))


BORN_BYTES = (
    "444f4d4d01de0015a96f626a6563745f6964d940653338343130646134636462613231333234313464626638626630616231"
    "36633236663464383138313761386461306331653332383134643738653836396166a573636f7065a461636d65a3636c73a3"
    "4c6f74a46e616d65a534322fc3bcab696e6361726e6174696f6e920000a565706f6368920107a373657100a67075745f6964"
    "c400aa67656e65726174696f6e9292010700a5737461727400a66c656e67746800a8636865636b73756dc410f5de8b0bc403"
    "e97f2c37b2c184481d8ba46261736590a9626173655f73697a6500a9706167655f73697a65cd1000a87365676d656e747390"
    "a47461696cc400a76d656d6265727393a6636f70792d61a6636f70792d62a6636f70792d63a671756f72756d02a9696e6369"
    "64656e747390a764656c65746564c2868d9f2e81be753d78f1fc1f763344e31fa3f65221ebc267dad4756c5ae9d8aa"
)


def test_golden_bytes() -> None:
    """Manifests are stored: what is written today is read for ever."""
    data = manifests.encode(full())
    assert data[:5] == b"DOMM\x01"
    assert blake3(data).hexdigest() == "a3e91a8715e52ce3ccd7c7a9bdc6928295f52a443b98bbd1403597ffd0f2cba1"
    assert manifests.encode(born()).hex() == BORN_BYTES


def deflated() -> Manifest:
    """One whose tail stands for more log than it has bytes."""
    tail = zlib.compress(log(60), level=1)
    assert len(tail) < 2000
    return manifests.extended(
        born(), stamp(BORN, 1), reach(born(), Generation(BORN, 0), 0, 60), segment=None, tail=tail
    )


def test_a_tail_that_deflates_stands_for_more_log() -> None:
    """Sixty writes of one page ride in the manifest, deflated, under a version of its own."""
    stored = manifests.encode(deflated())
    assert stored[:5] == b"DOMM\x02"
    read = manifests.decode(stored)
    assert (read.shipped, read.tail_log) == (0, log(60))
    assert zlib.decompress(read.tail) == log(60)
    later = manifests.fenced(read, stamp(NEXT, 2), rename=True)
    assert manifests.decode(manifests.encode(later)).tail_log == log(60)


@pytest.mark.parametrize(
    "tail", [b"no zlib", zlib.compress(log(59)), zlib.compress(log(61)), zlib.compress(log(60))[:-1]]
)
def test_a_tail_of_another_length_is_corrupt(tail: bytes) -> None:
    """What a tail says it stands for is all of it, and no more is inflated."""
    wrong = msgspec.structs.replace(deflated(), tail=tail)
    with pytest.raises(Corrupt, match="tail"):
        _ = manifests.decode(manifests.encode(wrong)).tail_log


@pytest.mark.parametrize("make", [born, full, deflated, lambda: manifests.tombstone(full(), stamp(LATER, 9), LATER)])
def test_what_was_written_is_read(make: Callable[[], Manifest]) -> None:
    """Encoding and decoding give back the same manifest."""
    assert manifests.decode(manifests.encode(make())) == make()


@settings(deadline=None)
@given(at=st.integers(0, 10**5), bit=st.integers(0, 7), cut=st.booleans())
def test_no_damage_goes_unseen(at: int, bit: int, cut: bool) -> None:
    """A flipped bit or a missing end anywhere is Corrupt, with the key in the text."""
    data = bytearray(manifests.encode(full()))
    at %= len(data)
    if cut:
        del data[at:]
    else:
        data[at] ^= 1 << bit
    with pytest.raises(Corrupt, match="some/manifest"):
        manifests.decode(bytes(data), "some/manifest")


def sealed(version: int, body: bytes) -> bytes:
    data = b"DOMM" + bytes([version]) + body
    return data + blake3(data).digest()


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "no manifest"),
        (b"<html>" * 20, "no manifest"),
        (sealed(3, b"\x80"), "version 3 is unknown"),
        (sealed(1, b"\x80"), "cannot be read"),
        (sealed(1, b"\xc1"), "cannot be read"),
        (sealed(1, msgspec.msgpack.encode(msgspec.structs.replace(full(), length=5))), "contradicts itself"),
        (sealed(1, msgspec.msgpack.encode(msgspec.structs.replace(full(), tail=b""))), "segments reach"),
        (sealed(1, msgspec.msgpack.encode(deflated())), "segments reach"),
        (sealed(2, msgspec.msgpack.encode(full())), "segments reach"),
        (sealed(1, msgspec.msgpack.encode(msgspec.structs.replace(full(), base=()))), "0 chunks for a base"),
        (sealed(1, msgspec.msgpack.encode(msgspec.structs.replace(full(), epoch=BORN))), "newer than the fence"),
        (sealed(1, msgspec.msgpack.encode(msgspec.structs.replace(full(), members=("a", "a")))), "members"),
        (sealed(1, msgspec.msgpack.encode(msgspec.structs.replace(full(), deleted=True))), "tombstone"),
    ],
)
def test_what_cannot_be_a_manifest_says_why(data: bytes, says: str) -> None:
    """Another format, an unknown version and a manifest that contradicts itself are told apart."""
    with pytest.raises(Corrupt, match=says):
        manifests.decode(data)


def test_birth_is_section_fives() -> None:
    """Before any put: seq 0, the birth claim's epoch and generation, length 0, members and Q of the lease row."""
    made = born()
    assert (made.seq, made.epoch, made.generation, made.start) == (0, BORN, Generation(BORN, 0), 0)
    assert made.position == Position(FIRST_INCARNATION, Generation(BORN, 0), 0)
    assert (made.members, made.quorum) == (("copy-a", "copy-b", "copy-c"), 2)
    assert made.checksum == checksum(made.seed, b"")


def test_a_fence_changes_the_epoch_alone() -> None:
    """Step 4 of a takeover: content, members and Q stay; the name only changes where it was asked for."""
    before = full()
    kept = manifests.fenced(before, stamp(LATER, 7), rename=False)
    named = manifests.fenced(before, stamp(LATER, 7), rename=True)
    assert changed(before, kept) == {"epoch", "seq", "put_id"}
    assert changed(before, named) == {"epoch", "seq", "put_id", "generation", "start"}
    assert (named.generation, named.start, named.length) == (Generation(LATER, 0), before.length, before.length)
    again = manifests.fenced(kept, stamp(LATER, 8), rename=True)
    assert (again.epoch, again.seq, again.generation) == (LATER, before.seq + 2, Generation(LATER, 0))


def changed(one: Manifest, other: Manifest) -> set[str]:
    return {name for name in one.__struct_fields__ if getattr(one, name) != getattr(other, name)}


def test_a_rename_keeps_the_checksum_true() -> None:
    """The generation's name is no part of the seed, the base is."""
    before = full()
    assert manifests.fenced(before, stamp(LATER, 7), rename=True).seed == before.seed
    assert msgspec.structs.replace(before, base_size=40961).seed != before.seed


def test_a_tombstone_keeps_nothing() -> None:
    """A deleted object's manifest has the delete's incarnation, no content, no members and no incidents."""
    grave = manifests.tombstone(full(), stamp(LATER, 9), LATER)
    assert grave.deleted
    assert (grave.incarnation, grave.epoch, grave.generation) == (LATER, LATER, Generation(LATER, 0))
    assert (grave.seq, grave.length, grave.base, grave.segments, grave.tail) == (full().seq + 1, 0, (), (), b"")
    assert (grave.members, grave.quorum, grave.incidents) == ((), 0, ())
    assert grave.object_id == KEY.id


def extend(manifest: Manifest, frames: int, **changes: object) -> Manifest:
    to = reach(manifest, manifest.generation, manifest.start, frames)._replace(**changes)
    return manifests.extended(
        manifest, stamp(manifest.epoch, 99), to, segment=None, tail=log(frames)[manifest.shipped :]
    )


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: extend(full(), 2),
        lambda: extend(full(), 4, start=length_of(1)),
        lambda: extend(full(), 4, generation=Generation(BORN, 0)),
        lambda: extend(full(), 4, generation=Generation(LATER, 0)),
        lambda: extend(full(), 4, checksum=b"short"),
        lambda: extend(full(), 4, length=length_of(4) - 1),
        lambda: extend(full(), 6),
        lambda: manifests.fenced(full(), stamp(BORN, 99), rename=False),
        lambda: manifests.fenced(full(), stamp(NEXT, 99), rename=True),
        lambda: manifests.fenced(full(), Stamp(LATER, full().put_id), rename=False),
        lambda: manifests.with_members(manifests.fenced(full(), stamp(LATER, 9), rename=False), ("z",), 1),
        lambda: manifests.with_members(full(), ("z", "z"), 1),
        lambda: manifests.tombstone(full(), stamp(LATER, 9), FIRST_INCARNATION),
    ],
)
def test_no_step_breaks_an_invariant(wrong: Callable[[], Manifest]) -> None:
    """Shrinking, going back, cutting into the log, too long a tail, an older epoch: refused before it is sent."""
    with pytest.raises(AssertionError):
        wrong()


def test_a_gap_between_segments_is_refused() -> None:
    """Segments cover the log from its first byte without a gap or an overlap."""
    for start in (0, length_of(1) - 1, length_of(1) + 1, length_of(2)):
        piece = Segment(NEXT, Generation(NEXT, 1), start, length_of(5), b"\4" * 32)
        to = reach(full(), full().generation, 0, 5)
        with pytest.raises(AssertionError):
            manifests.extended(full(), stamp(NEXT, 9), to, segment=piece, tail=b"")


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.tuples(st.sampled_from(["tail", "segment", "take", "fence", "rotate"]), st.integers(1, 3)), max_size=12)
)
def test_any_history_stays_whole(steps: list[tuple[str, int]]) -> None:
    """Through any sequence of steps positions never go back, seq grows by one, and every value survives its bytes."""
    current, epoch = born(), BORN
    frames = 0
    for number, (step, more) in enumerate(steps, 1):
        before = current
        if step in ("take", "fence"):
            epoch = Epoch(epoch.term, epoch.version + 1)
            current = manifests.fenced(before, stamp(epoch, number), rename=step == "take")
        elif step == "rotate":
            frames = 0
            generation = Generation(epoch, before.generation.counter + 1)
            base = Base(KEY.id, FIRST_INCARNATION, (ChunkRef(bytes([number]) * 32, generation),) * 2, CHUNK_BYTES + 9)
            empty = msgspec.structs.replace(before, base=base.refs, base_size=base.size)
            current = manifests.rotated(before, stamp(epoch, number), reach(empty, generation, 0, 0), base)
        else:
            current = grown(before, stamp(epoch, number), frames := frames + more, whole=step == "segment")
        assert current.seq == before.seq + 1 == number
        assert current.position >= before.position
        assert current.checksum == checksum(current.seed, log(frames))
        assert manifests.decode(manifests.encode(current)) == current


def grown(manifest: Manifest, by: Stamp, frames: int, *, whole: bool) -> Manifest:
    """The next manifest of an owner whose log has so many frames, all shipped or with as much tail as fits."""
    generation = manifest.generation
    start = manifest.start
    if generation.epoch < by.epoch:
        generation, start = Generation(by.epoch, 0), manifest.length
    rest = log(frames)[manifest.shipped :]
    segment, tail = None, rest
    if whole or len(rest) > manifests.TAIL_BYTES_MAX:
        segment, tail = Segment(by.epoch, generation, manifest.shipped, length_of(frames), blake3(rest).digest()), b""
    return manifests.extended(manifest, by, reach(manifest, generation, start, frames), segment=segment, tail=tail)
