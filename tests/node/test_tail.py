"""The tail that the manifest carries, as it grows from flight to flight."""

from __future__ import annotations

import random
import zlib
from pathlib import Path

import pytest

from domicile.node import manifest as manifests
from domicile.node.disk import SystemDisk
from domicile.node.log import BaseShape, Log
from domicile.node.tail import Tail
from domicile.placement.records import Epoch, Generation, Position

FRAME = 24 + 4096
BORN = Epoch(1, 7)
POSITION = Position(Epoch(0, 0), Generation(BORN, 0), 0)


class Shipped:
    """A log on a disk, and the tail of it."""

    def __init__(self, folder: Path, data: bytes) -> None:
        (folder / "wal").write_bytes(data)
        self.data = data
        self.log = Log(SystemDisk(), str(folder / "wal"), "ab" * 32, POSITION, BaseShape(), 0)
        self.tail = Tail(self.log)

    def stands(self, start: int, end: int) -> bytes:
        """The tail for [start, end), which says what the log says."""
        tail = self.tail.of(start, end)
        assert tail is not None
        log = tail if len(tail) == end - start else zlib.decompress(tail)
        assert log == self.data[start:end]
        return tail


def frames(count: int, pages: int = 1) -> bytes:
    """A log of small writes that change a few pages in turn."""
    rng = random.Random(count)
    contents = [rng.randbytes(1000) for _ in range(pages)]
    return bytes(32) + b"".join(
        rng.randbytes(24) + contents[at % pages] + at.to_bytes(8, "big") + bytes(3088) for at in range(count)
    )


def length(count: int) -> int:
    return 32 + count * FRAME


@pytest.mark.parametrize("pages", [1, 3])
def test_it_grows_by_what_is_new(tmp_path: Path, pages: int) -> None:
    """However many frames a flight carries, the tail is one stream that stands for all of them; pages that were written
    before are not deflated anew."""
    shipped = Shipped(tmp_path, frames(60, pages))
    ends = [length(count) for count in (3, 6, 9, 15, 16, 30, 31, 32, 60)]
    for end in ends:
        tail = shipped.stands(0, end)
    assert len(tail) < 16 << 10
    once = Tail(shipped.log).of(0, ends[-1])
    assert once is not None
    assert len(tail) < 3 * len(once)


def test_a_flight_reads_what_is_new_and_as_much_before(tmp_path: Path) -> None:
    """A long tail costs a flight no more than a short one: what lies further back may be gone."""
    shipped = Shipped(tmp_path, frames(60))
    shipped.stands(0, length(40))
    (tmp_path / "wal").write_bytes(bytes(length(30)) + shipped.data[length(30) :])
    shipped.stands(0, length(50))
    shipped.stands(0, length(50))


def test_another_segment_or_another_base_is_another_tail(tmp_path: Path) -> None:
    """What was deflated goes on in what stands for the same log from the same place, and nowhere else."""
    shipped = Shipped(tmp_path, frames(60))
    shipped.stands(0, length(40))
    shipped.stands(length(20), length(45))
    shipped.stands(length(20), length(60))
    shipped.stands(0, length(50))
    shipped.log.rotate(BaseShape(), Generation(BORN, 1))
    shipped.data = frames(59, 2)
    (tmp_path / "wal").write_bytes(shipped.data)
    shipped.stands(0, length(59))


def test_an_end_before_the_last_one_is_deflated_from_the_start(tmp_path: Path) -> None:
    """A tail that goes further than what is asked for is no beginning of it."""
    shipped = Shipped(tmp_path, frames(60))
    shipped.stands(0, length(40))
    shipped.stands(0, length(20))


def test_what_does_not_deflate_stays_as_it_is(tmp_path: Path) -> None:
    """A birth's frames deflate to a tenth. What does not deflate is a tail up to 16 KiB; what is too long is none."""
    rng = random.Random(1)
    most = manifests.TAIL_BYTES_MAX
    few = Shipped(tmp_path, bytes(32) + b"".join(rng.randbytes(24) + b"row".ljust(4096, b"\0") for _ in range(3)))
    assert len(few.stands(0, length(3))) < length(3) / 10
    assert few.stands(0, 0) == b""
    noise = Shipped(tmp_path, rng.randbytes(most + 1))
    assert noise.stands(0, most) == noise.data[:most]
    assert noise.tail.of(0, most + 1) is None
    zeros = Shipped(tmp_path, bytes(manifests.TAIL_LOG_MAX + 1))
    assert zeros.tail.of(0, manifests.TAIL_LOG_MAX + 1) is None
    assert len(zeros.stands(0, manifests.TAIL_LOG_MAX)) < most


def test_what_stops_to_deflate_leaves_the_tail(tmp_path: Path) -> None:
    """The next flight then begins behind a segment."""
    noise = random.Random(2).randbytes(12 * FRAME)
    shipped = Shipped(tmp_path, frames(20) + noise)
    shipped.stands(0, length(20))
    assert shipped.tail.of(0, length(32)) is None
    shipped.stands(0, length(20))
    shipped.stands(length(29), length(32))
