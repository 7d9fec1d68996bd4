"""A register file: two slots, written in turn in place, so that a new value costs one sync of its own bytes.

The newest slot that has its checksum is the value; a write goes to the other one, so a crash in its middle leaves the
value as it was. Replacing a file by rename costs four times as much (a journal commit for each of three inodes).

A torn slot and a rotten one look alike. So a mark is written, unsynced, after each slot that is known to be on the
disk: a slot at or below the mark that fails its checksum has rotted, and that is `Corrupt`, never the older value. A
mark that a crash loses leaves the rot of that one slot unseen.

    0     magic, 8 bytes · slot capacity, u64
    512   mark: sequence u64 · blake3 of it, 8 bytes
    4096  slot 0, then slot 1, each `capacity` long: sequence u64 · length u64 · blake3 of both and the data · data
"""

from __future__ import annotations

import os
from struct import Struct
from typing import NamedTuple

from blake3 import blake3

from domicile.node.errors import Corrupt

DATA_BYTES_MAX = 64 << 10
_MAGIC = b"DOMREG1\n"
_HEAD_BYTES = 4096
_MARK_AT = 512
_CAPACITY_MIN = 8 << 10
_READ_AT_ONCE = 64 << 10  # head and slots of most registers
_WORD = Struct("<Q")
_SLOT = Struct("<QQ32s")
_MARK = Struct("<Q8s")


class Value(NamedTuple):
    """The present value, its sequence number, from 1, a tag no other value of the register has, and the slots' size."""

    sequence: int
    data: bytes
    tag: str
    capacity: int


def blank(data: bytes, sequence: int) -> bytes:
    """A whole register file that holds `data`, with slots at least twice as long as it."""
    capacity = _CAPACITY_MIN
    while capacity < 2 * (_SLOT.size + len(data)):
        capacity *= 2
    head = (_MAGIC + _WORD.pack(capacity)).ljust(_HEAD_BYTES, b"\0")
    slots = [bytes(capacity), bytes(capacity)]
    slot = _SLOT.pack(sequence, len(data), _slot_check(sequence, data)) + data
    slots[sequence % 2] = slot.ljust(capacity, b"\0")
    return head + b"".join(slots)


def read(fd: int, where: str) -> Value | None:
    """The value; None in a file that a crash left before its first value was whole. Raises Corrupt, naming `where`."""
    file = memoryview(os.pread(fd, _READ_AT_ONCE, 0))
    head = bytes(file[:_HEAD_BYTES])
    size = _HEAD_BYTES + 2 * _capacity(head)
    if len(file) == _READ_AT_ONCE and os.fstat(fd).st_size == size:
        file = memoryview(os.pread(fd, size + 1, 0))
    found = _newest(file, _capacity(head)) if head.startswith(_MAGIC) and len(file) == size else None
    marked = _marked(head)
    if marked > (found.sequence if found else 0):
        raise Corrupt(f"{where}: value {marked} was stored and no longer has its checksum")
    return found


def tag_of(data: bytes, sequence: int) -> str:
    """The tag under which `read` will give this value."""
    return _slot_check(sequence, data).hex()


def fits(value: Value, data: bytes) -> bool:
    """Whether the data has room in the slots of the file that holds this value."""
    return _SLOT.size + len(data) <= value.capacity


def overwrite(fd: int, present: Value, data: bytes) -> str:
    """Put `data` after the present value; durable when it returns; gives the new tag."""
    sequence = present.sequence + 1
    check = _slot_check(sequence, data)
    slot = _SLOT.pack(sequence, len(data), check) + data
    assert len(slot) <= present.capacity
    written = os.pwritev(fd, [slot], _HEAD_BYTES + sequence % 2 * present.capacity, os.RWF_DSYNC)
    if written != len(slot):
        raise OSError(f"only {written} bytes of {len(slot)} were written")
    mark(fd, sequence)
    return check.hex()


def mark(fd: int, sequence: int) -> None:
    """Say that this value is on the disk."""
    os.pwrite(fd, _MARK.pack(sequence, _mark_check(sequence)), _MARK_AT)


def _newest(file: memoryview, capacity: int) -> Value | None:
    slots = [(*_SLOT.unpack_from(file, at), at) for at in (_HEAD_BYTES, _HEAD_BYTES + capacity)]
    for sequence, length, check, at in sorted(slots, reverse=True):
        if sequence and length <= capacity - _SLOT.size:
            data = bytes(file[at + _SLOT.size : at + _SLOT.size + length])
            if _slot_check(sequence, data) == check:
                return Value(sequence, data, check.hex(), capacity)
    return None


def _slot_check(sequence: int, data: bytes) -> bytes:
    hasher = blake3(_WORD.pack(sequence) + _WORD.pack(len(data)))
    hasher.update(data)
    return hasher.digest()


def _capacity(head: bytes) -> int:
    return int.from_bytes(head[len(_MAGIC) : len(_MAGIC) + 8], "little")


def _marked(head: bytes) -> int:
    if len(head) < _MARK_AT + _MARK.size:
        return 0
    sequence, check = _MARK.unpack_from(head, _MARK_AT)
    return sequence if check == _mark_check(sequence) else 0


def _mark_check(sequence: int) -> bytes:
    return blake3(b"mark" + _WORD.pack(sequence)).digest(length=8)
