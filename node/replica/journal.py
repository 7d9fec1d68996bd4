"""The one file every write to a replica goes to first: a ring of two halves, synced once for all that arrived together.

What is in it above the low mark is the truth about this node's copies (PROTOCOLS section 7). It is written full of
zeros once, so that a sync never waits for the file system to find blocks (storage facts 8). Records do not cross a
half's end. A half is entered only when the records of the one before the last are behind synced files: the low mark,
kept in one of two header blocks beside the copy id, so that a directory without its journal is another copy.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple
from zlib import crc32

from domicile.node.disk import Disk, JournalFile
from domicile.node.errors import Corrupt
from domicile.node.replica.journal_record import MAGIC, Change, Place, Record, decode, encode, size_of

BLOCK_BYTES = 4096
DATA_BEGIN = 2 * BLOCK_BYTES
BATCH_BYTES_MAX = 4 << 20
_HEADER = Struct(">4sB3x16sQQQQ")
_CRC = Struct(">I")
_MAGIC = b"DJHD"
_VERSION = 1


class Header(NamedTuple):
    """What one header block says. The valid one with the greater `turn` rules."""

    copy_id: bytes
    half_bytes: int
    turn: int
    low_offset: int
    low_sequence: int


class Mark(NamedTuple):
    """A point between two records: the absolute offset and the sequence number of the next."""

    offset: int
    sequence: int


def encode_header(header: Header) -> bytes:
    """One block."""
    body = _HEADER.pack(_MAGIC, _VERSION, *header)
    return (body + _CRC.pack(crc32(body))).ljust(BLOCK_BYTES, b"\0")


def decode_header(block: bytes) -> Header | None:
    """None for anything but a whole block of a known version."""
    body = block[: _HEADER.size]
    if len(block) < BLOCK_BYTES or _CRC.unpack_from(block, _HEADER.size)[0] != crc32(body):
        return None
    magic, version, *fields = _HEADER.unpack(body)
    return Header(*fields) if (magic, version) == (_MAGIC, _VERSION) else None


class Journal:
    """An open journal. `add` gathers a batch, `write` makes it durable; one batch at a time, from any one thread."""

    def __init__(self, file: JournalFile, header: Header) -> None:
        self._file = file
        self._header = header
        self._half = header.half_bytes
        self.low = Mark(header.low_offset, header.low_sequence)
        self.next = self.low
        self._batch: list[bytes | memoryview] = []
        self._batch_at = self.next.offset
        self._after = self.next
        self._unsynced = False
        self.writes = 0
        self.syncs = 0

    @staticmethod
    def exists(disk: Disk, path: str) -> bool:
        """Whether a journal that was ever finished is at `path`."""
        return bool(disk.size(path)) and _ruling(disk.read_at(path, 0, DATA_BEGIN)) is not None

    @classmethod
    def create(cls, disk: Disk, path: str, size: int, rng: random.Random) -> Journal:
        """A new one of about `size` bytes, under a new copy id. Raises OSError when the disk has no room for it."""
        half = (size - DATA_BEGIN) // 2 & ~7
        header = Header(rng.randbytes(16), half, 1, 0, 1)
        file = disk.open_journal(path, DATA_BEGIN + 2 * half)
        file.write(0, [bytes(DATA_BEGIN)], sync=True)
        file.write(BLOCK_BYTES, [encode_header(header)], sync=True)
        return cls(file, header)

    @classmethod
    def open(cls, disk: Disk, path: str) -> Journal:
        """One that exists; its size stays what it was made with. Call `replay` before anything else."""
        header = _ruling(disk.read_at(path, 0, DATA_BEGIN))
        if header is None:
            raise Corrupt(f"{path} is no journal")
        journal = cls(disk.open_journal(path, DATA_BEGIN + 2 * header.half_bytes), header)
        # What is read back below may be in the page cache only; what is answered from it must be on the platter.
        journal._file.sync()
        journal.lower(journal.low)
        return journal

    @property
    def copy_id(self) -> str:
        """Of the copies this journal stands for: 32 hex digits."""
        return self._header.copy_id.hex()

    @property
    def record_bytes_max(self) -> int:
        """A longer change is put into its file first, and only named here."""
        return min(1 << 20, self._half // 4)

    @property
    def checkpoint_due(self) -> bool:
        """Whether the half before the present one is still above the low mark."""
        return self.low.offset < self.next.offset // self._half * self._half

    def replay(self) -> Iterator[Record]:
        """The records above the low mark, in order; then `next` is where they end. Raises Corrupt when rot cut them."""
        at, run = self.low, 0
        lap_ends = self.low.offset // self._half * self._half + 2 * self._half
        while True:
            begun = at
            for found in self._records(at, run):
                yield found
                at, run = Mark(found.place.offset + found.size, found.place.sequence + 1), found.place.run
            following = Mark(-(-at.offset // self._half) * self._half, at.sequence)
            if following == begun or following.offset >= lap_ends or not self._at(following, run):
                break
            at = following
        self._refuse_rot(at)
        self.next = self._after = at
        self._batch_at = at.offset

    def _records(self, mark: Mark, run: int) -> Iterator[Record]:
        """From `mark` to the end of its half, or of what is whole and not of a run before `run`."""
        data = memoryview(self._read_half(mark.offset // self._half))
        at, sequence = mark.offset % self._half, mark.sequence
        lap = mark.offset - at
        while (record := decode(data, at)) is not None and record.place[:2] == (sequence, lap + at):
            if record.place.run < run:
                return
            yield record
            run = record.place.run
            at, sequence = at + record.size, sequence + 1

    def _at(self, mark: Mark, run: int) -> bool:
        return next(self._records(mark, run), None) is not None

    def _refuse_rot(self, end: Mark) -> None:
        """Only the last batch can be torn. A later one behind the end means that acked records became unreadable."""
        first = end.offset // self._half
        for half in (first, first + 1):
            data = self._read_half(half)
            at = data.find(MAGIC, end.offset % self._half if half == first else 0)
            while at >= 0:
                record = decode(memoryview(data), at)
                if (
                    record is not None
                    and record.place.offset == half * self._half + at > end.offset < record.place.batch
                ):
                    raise Corrupt(f"the journal is broken at offset {end.offset}, below what it had synced")
                at = data.find(MAGIC, at + 1)

    def _read_half(self, half: int) -> bytes:
        return self._file.read(DATA_BEGIN + half % 2 * self._half, self._half)

    def add(self, object_id: bytes, change: Change) -> int | None:
        """Gather one record for the next `write`: its sequence number, or None: no room in this batch (see `full`)."""
        after = self._after
        if self._batch and after.offset - self._batch_at > BATCH_BYTES_MAX:
            return None
        buffers = encode(Place(after.sequence, after.offset, self._batch_at, self._header.turn), object_id, change)
        size = size_of(buffers)
        assert size <= self._half, f"a record of {size} bytes"
        begin = after.offset
        if begin % self._half + size > self._half:
            begin = (begin // self._half + 1) * self._half
        if (begin != after.offset and self._batch) or not self._free(begin):
            return None
        if begin != after.offset:
            buffers = encode(Place(after.sequence, begin, begin, self._header.turn), object_id, change)
        if not self._batch:
            self._batch_at = begin
        self._batch += buffers
        self._after = Mark(begin + size, after.sequence + 1)
        return after.sequence

    def _free(self, offset: int) -> bool:
        """Whether the half of `offset` holds nothing above the low mark but what this lap put there."""
        return self.low.offset >= (offset // self._half - 1) * self._half

    @property
    def gathered(self) -> int:
        """Bytes of the batch."""
        return self._after.offset - self._batch_at if self._batch else 0

    def write(self, *, sync: bool) -> None:
        """Write the batch, with one sync for all of it. Raises OSError; then reopen before anything else."""
        buffers, self._batch = self._batch, []
        at = DATA_BEGIN + self._batch_at % (2 * self._half)
        self.writes += 1
        self.syncs += sync
        self._file.write(at, buffers, sync=sync and not self._unsynced)
        if sync and self._unsynced:
            self._file.sync()  # earlier records too: a hole before a synced record would hide it
        self._unsynced = not sync
        self.next = self._after
        self._batch_at = self.next.offset

    def lower(self, mark: Mark) -> None:
        """All below `mark` is behind synced files: durably, its space may be used again."""
        header = self._header._replace(turn=self._header.turn + 1, low_offset=mark.offset, low_sequence=mark.sequence)
        self._file.write(header.turn % 2 * BLOCK_BYTES, [encode_header(header)], sync=True)
        self._header, self.low = header, mark

    def close(self) -> None:
        self._file.close()


def _ruling(blocks: bytes) -> Header | None:
    found = [decode_header(blocks[at : at + BLOCK_BYTES]) for at in (0, BLOCK_BYTES)]
    return max((header for header in found if header is not None), key=lambda header: header.turn, default=None)
