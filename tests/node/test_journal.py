"""The replicas' journal: its bytes, its ring, and which of its records count after a crash."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from domicile.node.disk import SystemDisk
from domicile.node.errors import Corrupt
from domicile.node.replica.journal import DATA_BEGIN, Header, Journal, decode_header, encode_header
from domicile.node.replica.journal_record import (
    Arrived,
    Based,
    BaseFile,
    Change,
    Extended,
    Folded,
    Gone,
    HandedOver,
    LetGo,
    Place,
    Raised,
    Relabelled,
    decode,
    encode,
)
from domicile.placement.records import Epoch, Generation, Position

OBJECT = bytes(range(32))
E1, E2 = Epoch(1, 2), Epoch(3, 4)
G1, G2 = Generation(E1, 5), Generation(E2, 0)
AT = Position(E1, G1, 4152)

CHANGES: dict[str, Change] = {
    "extended": Extended(E1, E2, G1, 32, 40, 36, b"frames.."),
    "extended in its file": Extended(E1, E2, G1, 32, 40, 36, b""),
    "raised": Raised(E1, E2),
    "relabelled": Relabelled(E2, G1, 4152, G2),
    "folded": Folded(E2, G1, 4152, G2, BaseFile((b"h" * 32,), 4096, 3), 4),
    "based": Based(E1, E2, G2, 4152, BaseFile((b"h" * 32,), 4096, 3), 4),
    "let go": LetGo(E2, AT, b"c" * 16),
    "handed over": HandedOver(E2, AT, b"c" * 16, "/d/o", b"sidecar"),
    "arrived": Arrived(),
    "gone": Gone(),
}

GOLDEN: dict[str, str] = {
    "extended": (
        "444a524e0101000000000060000000000000000700000000000010000000000000000fa0000000000000000300010203"
        "0405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1ff83dbf0800000000000000010000000000000002"
        "000000000000000300000000000000040000000000000001000000000000000200000000000000050000000000000020"
        "0000000000000028000000000000002400000000000000006672616d65732e2e"
    ),
    "extended in its file": (
        "444a524e0101000000000058000000000000000700000000000010000000000000000fa0000000000000000300010203"
        "0405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1fb0da4acb00000000000000010000000000000002"
        "000000000000000300000000000000040000000000000001000000000000000200000000000000050000000000000020"
        "000000000000002800000000000000240100000000000000"
    ),
    "raised": (
        "444a524e0102000000000008000000000000000700000000000010000000000000000fa0000000000000000300010203"
        "0405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1fa6f3d3ce9301920102920304"
    ),
    "relabelled": (
        "444a524e0102000000000012000000000000000700000000000010000000000000000fa0000000000000000300010203"
        "0405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1fd409180695029203049292010205cd1038929203"
        "0400000000000000"
    ),
    "folded": (
        "444a524e010200000000003b000000000000000700000000000010000000000000000fa0000000000000000300010203"
        "0405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1fbaab52f397039203049292010205cd1038929203"
        "04009391c4206868686868686868686868686868686868686868686868686868686868686868cd100003040000000000"
    ),
    "based": (
        "444a524e0102000000000039000000000000000700000000000010000000000000000fa0000000000000000300010203"
        "0405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1ff635753c97049201029203049292030400cd1038"
        "9391c4206868686868686868686868686868686868686868686868686868686868686868cd1000030400000000000000"
    ),
    "let go": (
        "444a524e0102000000000023000000000000000700000000000010000000000000000fa0000000000000000300010203"
        "0405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f42aa10e89405920304939201029292010205cd10"
        "38c410636363636363636363636363636363630000000000"
    ),
    "handed over": (
        "444a524e0102000000000031000000000000000700000000000010000000000000000fa0000000000000000300010203"
        "0405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f9fcf1ad09606920304939201029292010205cd10"
        "38c41063636363636363636363636363636363a42f642f6fc4077369646563617200000000000000"
    ),
    "arrived": (
        "444a524e0102000000000002000000000000000700000000000010000000000000000fa0000000000000000300010203"
        "0405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1fc98fd0cc9107000000000000"
    ),
    "gone": (
        "444a524e0102000000000002000000000000000700000000000010000000000000000fa0000000000000000300010203"
        "0405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f5930cd5d9108000000000000"
    ),
}


def bytes_of(change: Change) -> bytes:
    return b"".join(bytes(buffer) for buffer in encode(Place(7, 4096, 4000, 3), OBJECT, change))


@pytest.mark.parametrize("name", CHANGES)
def test_records_have_golden_bytes(name: str) -> None:
    """What an earlier version wrote is read by the next: a record's bytes never change."""
    change = CHANGES[name]
    data = bytes_of(change)
    assert data.hex() == GOLDEN[name]
    assert len(data) % 8 == 0
    found = decode(memoryview(data), 0)
    assert found is not None
    assert (found.place, found.object_id, found.size) == (Place(7, 4096, 4000, 3), OBJECT, len(data))
    assert found.change == change


def test_the_header_has_golden_bytes() -> None:
    """The copy id, the low mark and the size of a half are found where they were put."""
    block = encode_header(Header(b"i" * 16, 1 << 20, 3, 4096, 17))
    assert block[:60].hex() == HEADER_GOLDEN
    assert len(block) == 4096
    assert decode_header(block) == Header(b"i" * 16, 1 << 20, 3, 4096, 17)
    assert decode_header(block[:10] + b"x" + block[11:]) is None
    assert decode_header(bytes(4096)) is None


HEADER_GOLDEN = (
    "444a484401000000696969696969696969696969696969690000000000100000000000000000000300000000000010000000"
    "0000000000110a25009c"
)


@given(st.data())
def test_a_torn_record_is_no_record(data: st.DataObject) -> None:
    """Any byte changed, or the end missing: there is no record."""
    change = Extended(E1, E2, G1, 32, 40, 36, data.draw(st.binary(min_size=1, max_size=50)))
    whole = bytes_of(change)
    end = len(whole) - (-(80 + 88 + len(change.frames)) % 8)
    at = data.draw(st.integers(0, end - 1))
    if at not in (6, 7):  # two bytes of no meaning, but under the checksum as well
        torn = whole[:at] + bytes([whole[at] ^ data.draw(st.integers(1, 255))]) + whole[at + 1 :]
        assert decode(memoryview(torn), 0) is None
    assert decode(memoryview(whole[:at]), 0) is None


def create(path: Path, kib: int = 64) -> Journal:
    return Journal.create(SystemDisk(), str(path), kib << 10, random.Random(1))


def reopen(path: Path) -> tuple[Journal, list[int]]:
    journal = Journal.open(SystemDisk(), str(path))
    return journal, [int(bytes(r.change.frames)[:8]) for r in journal.replay() if isinstance(r.change, Extended)]


def entry(number: int, size: int = 8) -> Extended:
    return Extended(E1, E2, G1, 0, size, size, b"%08d" % number + bytes(max(0, size - 8)))


def test_a_new_journal_is_whole_on_the_disk(tmp_path: Path) -> None:
    """All of it is written, not reserved, and it has an id of its own."""
    journal = create(tmp_path / "j")
    stat = (tmp_path / "j").stat()
    assert stat.st_size == 64 << 10
    assert stat.st_blocks * 512 >= stat.st_size
    assert len(journal.copy_id) == 32
    copy_id = journal.copy_id
    journal.close()
    again, found = reopen(tmp_path / "j")
    assert (again.copy_id, found) == (copy_id, [])
    again.close()


def test_what_was_never_finished_is_no_journal(tmp_path: Path) -> None:
    """A crash while the zeros were written leaves nothing that counts."""
    (tmp_path / "j").write_bytes(bytes(32 << 10))
    assert not Journal.exists(SystemDisk(), str(tmp_path / "j"))
    assert not Journal.exists(SystemDisk(), str(tmp_path / "other"))


def test_a_half_is_entered_only_when_it_is_free(tmp_path: Path) -> None:
    """Records above the low mark are never written over: the journal has no room until the mark rises."""
    journal = create(tmp_path / "j")
    number = 0
    while journal.add(OBJECT, entry(number, 3000)) is not None or journal.gathered:
        if journal.gathered:
            journal.write(sync=True)
            number += 1
    assert journal.checkpoint_due
    _, found = reopen(tmp_path / "j")
    assert found == list(range(number))
    journal.lower(journal.next)
    assert journal.add(OBJECT, entry(number, 3000)) is not None
    journal.write(sync=True)
    journal.close()
    assert reopen(tmp_path / "j")[1] == [number]


@settings(max_examples=40)
@given(st.lists(st.tuples(st.sampled_from(["add", "write", "lower", "reopen"]), st.integers(8, 5000)), max_size=120))
def test_the_ring_gives_back_what_is_above_the_low_mark(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]
) -> None:
    """However it is used, the records since the low mark come back in order, once each, and no others."""
    path = tmp_path_factory.mktemp("j") / "j"
    journal, number = create(path), 0
    written: list[int] = []
    gathered: list[int] = []
    for step, size in steps:
        if step == "add":
            if journal.add(OBJECT, entry(number, size)) is not None:
                gathered.append(number)
                number += 1
        elif step == "write" and gathered:
            journal.write(sync=bool(size % 2))
            written, gathered = written + gathered, []
        elif step == "lower" and not gathered:
            journal.lower(journal.next)
            written = []
        elif step == "reopen":
            journal.close()
            journal, found = reopen(path)
            assert found == written
            gathered = []
    journal.close()


def torn(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(b"\xff" * 16)


def test_a_torn_last_batch_ends_the_journal(tmp_path: Path) -> None:
    """Field case 15: what follows a torn record of the last batch is nothing, and the next record takes its place."""
    path = tmp_path / "j"
    journal = create(path)
    for batch in ((1, 2), (3, 4, 5)):
        for number in batch:
            assert journal.add(OBJECT, entry(number, 1000))
        journal.write(sync=True)
    journal.close()
    size = len(bytes_of(entry(1, 1000)))
    torn(path, DATA_BEGIN + 3 * size + 200)
    journal, found = reopen(path)
    assert found == [1, 2, 3]
    assert journal.add(OBJECT, entry(9, 1000))
    journal.write(sync=True)
    journal.close()
    assert reopen(path)[1] == [1, 2, 3, 9]


def test_rot_below_what_was_synced_is_named(tmp_path: Path) -> None:
    """A record that a later batch proves to have been synced cannot be torn: the copy does not pretend to be whole."""
    path = tmp_path / "j"
    journal = create(path)
    for number in range(4):
        journal.add(OBJECT, entry(number, 1000))
        journal.write(sync=True)
    journal.close()
    torn(path, DATA_BEGIN + 200)
    with pytest.raises(Corrupt):
        reopen(path)


def test_one_write_and_one_sync_a_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many records, however many buffers: one system call, which syncs."""
    journal = create(tmp_path / "j", kib=16 << 10)
    calls: list[int] = []
    real = os.pwritev

    def counted(fd: int, buffers: list[bytes], offset: int, flags: int) -> int:
        calls.append(flags)
        return int(real(fd, buffers, offset, flags))

    monkeypatch.setattr("os.pwritev", counted)
    for number in range(800):
        assert journal.add(OBJECT, entry(number, 4000))
    journal.write(sync=True)
    assert len(calls) == 1
    assert calls[0] == os.RWF_DSYNC
    journal.close()
