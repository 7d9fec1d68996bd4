"""What a replica knows of one object, and how a journal record changes it (PROTOCOLS sections 5 and 7). Pure.

The same `apply` runs when a record is written and when it is read back after a crash, so that both give one state.
"""

from __future__ import annotations

import msgspec
from blake3 import blake3
from msgspec.structs import replace

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
    Raised,
    Relabelled,
)
from domicile.placement.records import Epoch, Generation, Incarnation, Position

_MAGIC = b"DOMR"
_VERSION = 1
_HASH_BYTES = 16


class Held(msgspec.Struct, frozen=True, array_like=True):
    """A copy: `length` bytes of its generation's log are here, whole commits up to `committed`. `log` numbers its file.

    A position, told to anybody, is always at `committed`: half a transaction never counts.
    """

    generation: Generation
    start: int
    length: int
    committed: int
    base: BaseFile
    log: int


class Stub(msgspec.Struct, frozen=True, array_like=True):
    """What is remembered of a copy that was let go."""

    position: Position
    checksum: bytes


class Unfolded(msgspec.Struct, frozen=True, array_like=True):
    """A log file, `length` bytes, that has to be folded into the base before the base is what it is called.

    `birth`: into the birth image, which gives a new file.
    """

    log: int
    length: int
    birth: bool


class Handover(msgspec.Struct, frozen=True, array_like=True):
    """Files on their way to the object's own directory."""

    directory: str
    sidecar: bytes
    base: int
    log: int
    length: int


class State(msgspec.Struct, frozen=True, array_like=True):
    """One object at this replica. `files` is the highest file number ever given, so that none is used twice."""

    incarnation: Incarnation
    fence: Epoch
    held: Held | None = None
    stub: Stub | None = None
    unfolded: Unfolded | None = None
    handover: Handover | None = None
    files: int = 0

    @property
    def position(self) -> Position | None:
        """The copy's, at whole commits; None without a copy."""
        held = self.held
        return None if held is None else Position(self.incarnation, held.generation, held.committed)


NOTHING = State(Epoch(0, 0), Epoch(0, 0))


def apply(state: State | None, change: Change) -> State | None:
    """The state behind a record; the same state where the record does not concern it; None when nothing is left."""
    before = state or NOTHING
    if isinstance(change, Extended):
        return _extended(state, change)
    if isinstance(change, Raised):
        return _raised(before, change.incarnation, change.epoch)
    if isinstance(change, Relabelled):
        return _relabelled(before, change)
    if isinstance(change, Folded):
        return _folded(before, change)
    if isinstance(change, Based):
        return _based(before, change)
    if isinstance(change, LetGo):
        stub = Stub(change.position, change.checksum)
        return replace(before, fence=max(before.fence, change.epoch), held=None, stub=stub, unfolded=None)
    if isinstance(change, HandedOver):
        return _handed_over(before, change)
    if isinstance(change, Arrived):
        return replace(before, handover=None)
    assert isinstance(change, Gone)
    return None


def _extended(state: State | None, change: Extended) -> State | None:
    held = state.held if state is not None else None
    if state is None or held is None or (state.incarnation, held.generation) != (change.incarnation, change.generation):
        return state
    if change.offset > held.length or change.end <= held.length:
        return state
    held = Held(held.generation, held.start, change.end, max(held.committed, change.committed), held.base, held.log)
    fence = max(state.fence, change.epoch)
    return State(state.incarnation, fence, held, state.stub, state.unfolded, state.handover, state.files)


def _raised(state: State, incarnation: Incarnation, epoch: Epoch) -> State:
    fence = max(state.fence, epoch)
    if incarnation <= state.incarnation:
        return replace(state, fence=fence)
    return State(incarnation, fence, files=state.files)


def _relabelled(state: State, change: Relabelled) -> State:
    held = state.held
    if held is None or held.generation != change.generation or held.length < change.length:
        return state
    at = change.length
    held = Held(change.to, at, at, at, held.base, held.log)
    return replace(state, fence=max(state.fence, change.epoch), held=held)


def _folded(state: State, change: Folded) -> State:
    held = state.held
    if held is None or (held.generation, held.length) != (change.generation, change.length):
        return state
    return replace(
        state,
        fence=max(state.fence, change.epoch),
        held=Held(change.to, 0, 0, 0, change.base, change.log),
        unfolded=Unfolded(held.log, held.length, held.base.file == 0),
        files=max(state.files, change.base.file, change.log),
    )


def _based(state: State, change: Based) -> State:
    start = change.start
    held = Held(change.generation, start, start, start, change.base, change.log)
    fence = max(state.fence, change.epoch)
    return State(change.incarnation, fence, held, files=max(state.files, change.base.file, change.log))


def _handed_over(state: State, change: HandedOver) -> State:
    held = state.held
    stub = Stub(change.position, change.checksum)
    fence = max(state.fence, change.epoch)
    if held is None:
        return replace(state, fence=fence, stub=stub)
    handover = Handover(change.directory, change.sidecar, held.base.file, held.log, change.position.length)
    return replace(state, fence=fence, held=None, stub=stub, unfolded=None, handover=handover)


def files_of(state: State | None) -> frozenset[int]:
    """The numbers of the files this state needs; 0, which is no file, is never among them."""
    if state is None:
        return frozenset()
    numbers = set()
    if state.held is not None:
        numbers |= {state.held.base.file, state.held.log}
    if state.unfolded is not None:
        numbers.add(state.unfolded.log)
    if state.handover is not None:
        numbers |= {state.handover.base, state.handover.log}
    return frozenset(numbers - {0})


class Meta(msgspec.Struct, frozen=True, array_like=True):
    """One state as stored, with the sequence number of the last record it has in it; None: the object is gone."""

    object_id: bytes
    applied: int
    state: State | None


def encode_meta(meta: Meta) -> bytes:
    """magic ‖ version ‖ msgpack ‖ blake3 of all before, 16 bytes."""
    body = _MAGIC + bytes([_VERSION]) + _ENCODER.encode(meta)
    return body + blake3(body).digest(length=_HASH_BYTES)


def decode_meta(data: bytes) -> Meta | None:
    """None for anything but a whole one of a known version."""
    body, digest = data[:-_HASH_BYTES], data[-_HASH_BYTES:]
    if not body.startswith(_MAGIC + bytes([_VERSION])) or blake3(body).digest(length=_HASH_BYTES) != digest:
        return None
    try:
        return _DECODER.decode(body[len(_MAGIC) + 1 :])
    except msgspec.MsgspecError:
        return None


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Meta)
