"""What the product's replica makes of a copy: its own `decide` and `apply`, asked about every message an owner sends.

Staging and folding take files and time; here they are done at once, to what the messages name: exactly the start of
the owner's generation.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from domicile.node.replica import rules as replica_rules
from domicile.node.replica import state as replica_state
from domicile.node.replica.journal_record import BaseFile
from domicile.node.replica.rules import Message, Work, Write
from domicile.node.replica.state import Held, Stub
from domicile.node.sqlite.checksum import base_hash, checksum, seed
from domicile.node.takeover import asking
from domicile.node.wire.messages import Append, Fence, Fold, Holds, NewBase, Relabel
from domicile.placement.records import FIRST_INCARNATION, Generation
from smallworlds.copies import BIRTH, KEY, Copy, Register, copy_of, epoch, frames_in, log_bytes, manifest_of

OBJECT = bytes.fromhex(KEY.id)
FRESH = -1
"""The fence of a replica that knows nothing: neither copy nor stub."""
NEWEST = 99
"""An owner whom no fence refuses."""


@cache
def delivered(e: int, full: Copy, source: Generation, fence: int, copy: Copy | None) -> tuple[tuple[int, Copy], ...]:
    """Every (fence, copy) that one message of owner `e` may make of a replica's. `full`: with all it may yet write."""
    state = _state(fence, copy)
    found: dict[tuple[int, Copy], None] = {}
    for message in _messages(e, full, source, copy):
        verdict = replica_rules.decide(state, message, _of(copy or BIRTH))
        if verdict in (Work.STAGE, Work.FOLD, Work.WAIT):
            found[max(fence, e), _cut(full, full.start)] = None
        elif isinstance(verdict, Write):
            changed = replica_state.apply(state, verdict.change)
            assert changed is not None
            became = _copy(changed, full, copy)
            if became is not None and became is not copy:
                found[changed.fence.version, became] = None
    return tuple(found)


@cache
def says(e: int, owned: Copy, fence: int, copy: Copy) -> bool:
    """Whether a replica whose answers were lost answers owner `e`'s empty append with what it has."""
    state = _state(fence, copy)
    verdict = replica_rules.decide(state, _append(e, owned, owned.generation, len(copy.log), len(copy.log)), _of(copy))
    answer = verdict.answer if isinstance(verdict, Write) else verdict
    return isinstance(answer, Holds) and answer.generation == owned.generation


@cache
def answers(value: Register, fence: int, copy: Copy | None) -> bool:
    """Whether what a replica says to a claimant's fence is an answer, by the product, under this manifest."""
    newest = Fence(OBJECT, FIRST_INCARNATION, epoch(NEWEST))
    said = replica_rules.fence_answer("r", _state(fence, copy), newest, _of(copy or BIRTH))
    return asking.counts(said, "r", manifest_of(value))


def _messages(e: int, full: Copy, source: Generation, copy: Copy | None) -> Iterator[Message]:
    """All that an owner may say to a copy that stands where this one does; a message may be cut short anywhere."""
    held = len(copy.log) if copy is not None else 0
    if copy is not None and copy.folded == full.folded:
        for to in range(held + 1, len(full.log) + 1):
            yield _append(e, full, full.generation, held, to)
    taken_over = e > 0 and full.generation == Generation(epoch(e), 0)
    if taken_over and copy is not None and copy.folded == full.folded:
        for to in range(held + 1, full.start + 1):
            yield _append(e, full, source, held, to)
    start = log_bytes(full.start - full.folded)
    if taken_over:
        at = _checksum(full, start)
        yield Relabel(OBJECT, FIRST_INCARNATION, epoch(e), source, start, at, full.generation)
    if full.generation.counter and copy is not None and copy.folded <= full.start:
        before = copy_of(Generation(epoch(e), full.generation.counter - 1), copy.folded, 0, full.log[: full.start])
        yield Fold(
            OBJECT,
            FIRST_INCARNATION,
            epoch(e),
            before.generation,
            len(before.wal),
            before.checksum,
            full.generation,
            full.base,
            full.folded,
            (0,),
        )
    yield NewBase(
        OBJECT, FIRST_INCARNATION, epoch(e), full.generation, start, _checksum(full, start), full.base, full.folded
    )


def _append(e: int, owned: Copy, generation: Generation, start: int, end: int) -> Append:
    at, to = log_bytes(start - owned.folded), log_bytes(end - owned.folded)
    return Append(OBJECT, FIRST_INCARNATION, epoch(e), generation, at, _checksum(owned, at), owned.wal[at:to])


def _state(fence: int, copy: Copy | None) -> replica_state.State | None:
    if fence == FRESH:
        return None
    if copy is None:
        return replica_state.State(FIRST_INCARNATION, epoch(fence), None, Stub(BIRTH.position, BIRTH.checksum))
    start, length = log_bytes(max(0, copy.start - copy.folded)), len(copy.wal)
    base = BaseFile(copy.base, copy.folded, 1 if copy.folded else 0)
    return replica_state.State(FIRST_INCARNATION, epoch(fence), Held(copy.generation, start, length, length, base, 1))


def _copy(state: replica_state.State, full: Copy, copy: Copy | None) -> Copy | None:
    """The copy that a state of the product says; its frames are the ones it had, then the ones it was sent."""
    if state.held is None or copy is None:
        return copy
    log = copy.log + full.log[len(copy.log) :]
    length = copy.folded + frames_in(state.held.length)
    start = copy.folded + frames_in(state.held.start)
    return copy_of(state.held.generation, copy.folded, start, log[:length])


def _of(copy: Copy) -> replica_rules.ChecksumAt:
    return lambda length: _checksum(copy, length)


def _checksum(copy: Copy, length: int) -> bytes:
    return checksum(seed(KEY.id, FIRST_INCARNATION, base_hash(copy.base, copy.folded)), copy.wal[:length])


def _cut(copy: Copy, length: int) -> Copy:
    return copy_of(copy.generation, copy.folded, copy.start, copy.log[:length])
