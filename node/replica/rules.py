"""What a replica does with a message, by its state alone (PROTOCOLS sections 5 and 7). Pure.

Four rules, each of them a lost write without it: an epoch below the fence is refused; within a generation a copy only
grows, and only where both ends' checksums agree; a copy changes its generation only to exactly the new one's start;
what is answered is what the copy holds in whole commits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import NamedTuple

from domicile.node.replica.journal_record import Change, Extended, Raised, Relabelled
from domicile.node.replica.state import Held, State
from domicile.node.sqlite.checksum import base_hash, checksum, seed
from domicile.node.sqlite.wal import FRAME_HEADER, LOG_HEADER, PAGE_BYTES
from domicile.node.wire.messages import (
    Answered,
    Append,
    Elsewhere,
    Fence,
    FenceAnswer,
    FencedBy,
    Fold,
    Holds,
    Incident,
    NewBase,
    Relabel,
    Unable,
)
from domicile.placement.records import Epoch, Incarnation

FRAME_BYTES = FRAME_HEADER + PAGE_BYTES

Message = Append | Relabel | Fold | NewBase
ChecksumAt = Callable[[int], bytes]


class Write(NamedTuple):
    """One record, and what is answered once it is durable."""

    change: Change
    answer: Answered


class Work(Enum):
    """What takes longer than a record: the object's later messages wait for it, but for STAGE.

    SAVE keeps first what an incident may want; WAIT is for a birth whose claim is being looked up.
    """

    FOLD = auto()
    STAGE = auto()
    SAVE = auto()
    WAIT = auto()


Verdict = Answered | Write | Work


def decide(state: State | None, message: Message, checksum_at: ChecksumAt) -> Verdict:
    """The answer to `message`, or what to do for it. `checksum_at` is asked for lengths up to `held.length` only.

    A copy whose checksum differs where lengths agree is no copy of that log: it is said to be nothing, and a base may
    take its place.
    """
    refused = _refused(state, message.incarnation, message.epoch)
    if refused is not None:
        return refused
    if isinstance(message, NewBase):
        return _new_base(state, message, checksum_at)
    if state is None or state.held is None or state.incarnation != message.incarnation:
        return Work.STAGE if isinstance(message, Fold) else Elsewhere(None)
    if isinstance(message, Append):
        return _append(state, state.held, message, checksum_at)
    if isinstance(message, Relabel):
        return _relabel(state, state.held, message, checksum_at)
    return _fold(state, state.held, message, checksum_at)


def _refused(state: State | None, incarnation: Incarnation, epoch: Epoch) -> FencedBy | None:
    if state is None:
        return None
    if epoch < state.fence:
        return FencedBy(state.fence)
    # The object's next life began with its deletion's epoch: whoever speaks of an earlier one is of before that.
    return FencedBy(max(state.fence, state.incarnation)) if incarnation < state.incarnation else None


def _append(state: State, held: Held, message: Append, checksum_at: ChecksumAt) -> Verdict:
    if held.generation != message.generation or message.offset > held.length:
        return Elsewhere(state.position)
    end = message.offset + len(message.frames)
    if not is_whole(message.offset) or not is_whole(end):
        return Unable("an append is not of whole frames")
    if checksum_at(message.offset) != message.checksum:
        return Elsewhere(None)
    if end <= held.length:
        return _standing(state, held, message.epoch)
    frames = memoryview(message.frames)[held.length - message.offset :]
    committed = commit_end(frames, held.length) or held.committed
    change = Extended(message.incarnation, message.epoch, held.generation, held.length, end, committed, frames)
    return Write(change, Holds(state.incarnation, held.generation, committed))


def _relabel(state: State, held: Held, message: Relabel, checksum_at: ChecksumAt) -> Verdict:
    if held.generation == message.to:
        return _standing(state, held, message.epoch)
    if held.generation != message.generation or held.length < message.length or message.to <= held.generation:
        return Elsewhere(state.position)
    if checksum_at(message.length) != message.checksum:
        return Elsewhere(None)
    change = Relabelled(message.epoch, held.generation, message.length, message.to)
    return Write(change, Holds(state.incarnation, message.to, message.length))


def _fold(state: State, held: Held, message: Fold, checksum_at: ChecksumAt) -> Verdict:
    if held.generation == message.to:
        return _standing(state, held, message.epoch)
    if message.to < held.generation:
        return Elsewhere(state.position)
    if held.generation == message.generation and held.length == held.committed == message.length:
        return Work.FOLD if checksum_at(message.length) == message.checksum else Work.STAGE
    return Work.STAGE


def _new_base(state: State | None, message: NewBase, checksum_at: ChecksumAt) -> Verdict:
    held = state.held if state is not None and state.incarnation == message.incarnation else None
    if state is None or held is None or held.generation < message.generation:
        return Work.STAGE
    if held.generation > message.generation:
        return Elsewhere(state.position)
    agrees = held.length >= message.start and checksum_at(message.start) == message.checksum
    return _standing(state, held, message.epoch) if agrees else Work.STAGE


def _standing(state: State, held: Held, epoch: Epoch) -> Verdict:
    """Nothing to do but to say what is held, and to raise the fence if this is a newer owner's first word."""
    answer = Holds(state.incarnation, held.generation, held.committed)
    return Write(Raised(state.incarnation, epoch), answer) if epoch > state.fence else answer


def as_base(message: NewBase | Fold) -> NewBase:
    """A rotation as a base, for a copy that cannot fold: the next generation from its start."""
    if isinstance(message, NewBase):
        return message
    object_id, incarnation = message.object_id, message.incarnation
    at_start = checksum(seed(object_id.hex(), incarnation, base_hash(message.hashes, message.size)), b"")
    owner = (object_id, incarnation, message.epoch)
    return NewBase(*owner, message.to, 0, at_start, message.hashes, message.size, message.incidents)


def raised(state: State | None, fence: Fence) -> Raised | None:
    """The record a fence needs, if it needs one: it is refused, or stands already."""
    if state is None:
        return Raised(fence.incarnation, fence.epoch)
    if fence.epoch < state.fence or fence.incarnation < state.incarnation:
        return None
    if fence.epoch == state.fence and fence.incarnation == state.incarnation:
        return None
    return Raised(fence.incarnation, fence.epoch)


def fence_answer(copy_id: str, state: State | None, fence: Fence, checksum_at: ChecksumAt) -> FenceAnswer:
    """What a fence is answered, `state` being the durable one behind it."""
    if state is None:
        return FenceAnswer(copy_id, None, None)
    if fence.epoch < state.fence or fence.incarnation < state.incarnation:
        return FenceAnswer(copy_id, max(state.fence, state.incarnation), None)
    held, position = state.held, state.position
    if held is not None and position is not None:
        digest = checksum_at(held.committed)
        base = held.base
        return FenceAnswer(copy_id, None, position, digest, False, base.hashes, base.size, held.start)
    if state.stub is not None:
        return FenceAnswer(copy_id, None, state.stub.position, state.stub.checksum, True)
    return FenceAnswer(copy_id, None, None)


def at_stake(state: State | None, kept: int, incidents: Sequence[Incident]) -> list[Epoch]:
    """The open incidents above whose served position a change would lose something.

    `kept` is the length of the copy's own log that stays: 0 when another copy takes its place. Only what owners before
    the incident's takeover wrote can be missing from what it served.
    """
    position = state.position if state is not None else None
    if position is None or position.length <= kept:
        return []
    return [
        epoch
        for epoch, served in incidents
        if position.incarnation == served.incarnation and position.generation.epoch < epoch and position > served
    ]


def is_whole(length: int) -> bool:
    """Whether a log of this length ends with a whole frame."""
    return length == 0 or (length > LOG_HEADER and (length - LOG_HEADER) % FRAME_BYTES == 0)


def commit_end(frames: memoryview, offset: int) -> int:
    """The length up to the last commit among these frames, which begin at `offset` of the log; 0: none ends in them."""
    at = len(frames) - FRAME_BYTES
    while at >= 0:
        if bytes(frames[at + 4 : at + 8]) != b"\0\0\0\0":
            return offset + at + FRAME_BYTES
        at -= FRAME_BYTES
    return 0
