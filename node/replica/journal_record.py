"""What a replica's journal says, as values and as bytes (PROTOCOLS section 7, "The journal is the truth").

A record is one change of one copy: header ‖ crc32 ‖ payload ‖ zeros up to eight bytes. The header carries the record's
sequence number and its own absolute offset, so that what an earlier lap of the ring left behind is no record here, and
where its batch began: everything before that was synced when this was written.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple
from zlib import crc32

import msgspec

from domicile.placement.records import Epoch, Generation, Incarnation, Position

MAGIC = b"DJRN"
VERSION = 1
_HEAD = Struct(">4sBB2xIQQQQ32s")
_CRC = Struct(">I")
HEADER_BYTES = _HEAD.size + _CRC.size
_EXTENDED = Struct(">QQQQQQQQQQ?7x")
_KIND_EXTENDED, _KIND_OTHER = 1, 2


class Extended(NamedTuple):
    """Log bytes [offset, end) of a generation. `frames` is empty when they lie synced in the log file itself.

    `committed` is the length up to the last whole commit in them, or before them.
    """

    incarnation: Incarnation
    epoch: Epoch
    generation: Generation
    offset: int
    end: int
    committed: int
    frames: bytes | memoryview


class BaseFile(msgspec.Struct, frozen=True, array_like=True):
    """A base: its chunks' hashes, its size in bytes, the number of its file (0: the birth image, which has none)."""

    hashes: tuple[bytes, ...] = ()
    size: int = 0
    file: int = 0


class Raised(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """The fence is at `epoch`, in the life `incarnation`; a copy of an earlier life is void."""

    incarnation: Incarnation
    epoch: Epoch


class Relabelled(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """The copy of `generation` is `to` at exactly `length`; what it had beyond is cut."""

    epoch: Epoch
    generation: Generation
    length: int
    to: Generation


class Folded(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """The log of `generation`, `length` bytes, is folded into `base`, which is `to` at 0 with a log file of its own."""

    epoch: Epoch
    generation: Generation
    length: int
    to: Generation
    base: BaseFile
    log: int


class Based(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """Staged files, synced, are the copy: `generation` at its start."""

    incarnation: Incarnation
    epoch: Epoch
    generation: Generation
    start: int
    base: BaseFile
    log: int


class LetGo(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """The copy left the disk; this stub stays. `epoch` raises the fence."""

    epoch: Epoch
    position: Position
    checksum: bytes


class HandedOver(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """This node is home: the copy's files move to `directory`, where `sidecar` will name them; a stub stays."""

    epoch: Epoch
    position: Position
    checksum: bytes
    directory: str
    sidecar: bytes


class Arrived(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """What was handed over has arrived; its files are another's from here on."""


class Gone(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """The object was deleted: copy, stub and fence are gone."""


Other = Raised | Relabelled | Folded | Based | LetGo | HandedOver | Arrived | Gone
Change = Extended | Other


class Place(NamedTuple):
    """Where a record stands: its sequence number, its absolute offset, where its batch began, and whose it is.

    `run` grows with every opening of the journal: what a torn batch left behind its tear does not follow upon what a
    later opening wrote in its place.
    """

    sequence: int
    offset: int
    batch: int
    run: int


class Record(NamedTuple):
    """One record. `size` is what it takes in the journal, in bytes."""

    place: Place
    object_id: bytes
    change: Change
    size: int


def encode(place: Place, object_id: bytes, change: Change) -> list[bytes | memoryview]:
    """The record's bytes as buffers; their lengths add up to a multiple of eight."""
    if isinstance(change, Extended):
        kind, payload = _KIND_EXTENDED, [_encode_extended(change), change.frames]
    else:
        kind, payload = _KIND_OTHER, [_ENCODER.encode(change)]
    length = sum(map(len, payload))
    head = _HEAD.pack(MAGIC, VERSION, kind, length, *place, object_id)
    buffers: list[bytes | memoryview] = [head + _CRC.pack(_sum(head, payload)), *payload]
    if padding := -length % 8:
        buffers.append(bytes(padding))
    return buffers


def size_of(buffers: Sequence[bytes | memoryview]) -> int:
    """Bytes a record takes."""
    return sum(map(len, buffers))


def decode(data: memoryview, at: int) -> Record | None:
    """The record that begins at `data[at]`, or None: there is no whole one of a known version."""
    if len(data) - at < HEADER_BYTES:
        return None
    head = data[at : at + _HEAD.size]
    magic, version, kind, length, *place, object_id = _HEAD.unpack(head)
    begin = at + HEADER_BYTES
    if magic != MAGIC or version != VERSION or length > len(data) - begin:
        return None
    payload = data[begin : begin + length]
    if _CRC.unpack_from(data, at + _HEAD.size)[0] != _sum(head, [payload]):
        return None
    change: Change = _decode_extended(payload) if kind == _KIND_EXTENDED else _DECODER.decode(payload)
    size = HEADER_BYTES + length + -length % 8
    return Record(Place(*place), object_id, change, size)


def _sum(head: bytes | memoryview, payload: Sequence[bytes | memoryview]) -> int:
    total = crc32(head)
    for piece in payload:
        total = crc32(piece, total)
    return total


def _encode_extended(change: Extended) -> bytes:
    generation = change.generation
    lengths = (change.offset, change.end, change.committed)
    return _EXTENDED.pack(
        *change.incarnation, *change.epoch, *generation.epoch, generation.counter, *lengths, not change.frames
    )


def _decode_extended(payload: memoryview) -> Extended:
    fields = _EXTENDED.unpack_from(payload)
    generation = Generation(Epoch(*fields[4:6]), fields[6])
    offset, end, committed = fields[7:10]
    frames = payload[_EXTENDED.size :]
    return Extended(Epoch(*fields[:2]), Epoch(*fields[2:4]), generation, offset, end, committed, frames)


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Other)
