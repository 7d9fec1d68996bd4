"""The rules by which a replica answers, alone: every state, every message, no disk."""

from __future__ import annotations

import struct
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from domicile.node.replica.journal_record import Based, BaseFile, Extended, Folded, Gone, LetGo, Raised, Relabelled
from domicile.node.replica.rules import Work, Write, at_stake, commit_end, decide, fence_answer, raised
from domicile.node.replica.state import Held, Meta, State, Stub, apply, decode_meta, encode_meta, files_of
from domicile.node.wire.messages import Append, Elsewhere, Fence, FencedBy, Fold, Holds, NewBase, Relabel
from domicile.placement.records import Epoch, Generation, Position

OBJECT = bytes(32)
FRAME = 24 + 4096
EPOCHS = st.integers(1, 4).map(lambda version: Epoch(1, version))
LIVES = st.integers(0, 2).map(lambda version: Epoch(0, version))
GENERATIONS = st.builds(Generation, EPOCHS, st.integers(0, 2))
LENGTHS = st.integers(0, 4).map(lambda frames: 32 + frames * FRAME if frames else 0)
SUMS = st.sampled_from([b"same", b"othr"])


def frame(commit: bool) -> bytes:
    return struct.pack(">II16x", 1, int(commit)) + bytes(4096)


@st.composite
def states(draw: Any) -> State | None:
    """Every kind of state: nothing, a fence alone, a copy, a stub."""
    kind = draw(st.sampled_from(["nothing", "fence", "copy", "stub"]))
    if kind == "nothing":
        return None
    life, generation = draw(LIVES), draw(GENERATIONS)
    fence = max(draw(EPOCHS), generation.epoch)
    if kind == "fence":
        return State(life, fence)
    if kind == "stub":
        return State(life, fence, stub=Stub(Position(life, generation, draw(LENGTHS)), b"sum"))
    start, committed, length = sorted(draw(st.lists(LENGTHS, min_size=3, max_size=3)))
    return State(life, fence, Held(generation, start, length, committed, BaseFile(), 1), files=1)


@st.composite
def messages(draw: Any) -> Any:
    """Anything an owner, or a former one, might say."""
    life, epoch, generation, length = draw(LIVES), draw(EPOCHS), draw(GENERATIONS), draw(LENGTHS)
    kind = draw(st.sampled_from([Append, Relabel, Fold, NewBase]))
    checksum = draw(SUMS)
    if kind is Append:
        count = draw(st.integers(0, 3))
        frames = b"".join(frame(draw(st.booleans())) for _ in range(count))
        if length == 0 and frames:
            frames = bytes(32) + frames
        return Append(OBJECT, life, epoch, generation, length, checksum, frames)
    to = draw(GENERATIONS)
    if kind is Relabel:
        return Relabel(OBJECT, life, epoch, generation, length, checksum, to)
    if kind is Fold:
        return Fold(OBJECT, life, epoch, generation, length, checksum, to, (), 0, ())
    return NewBase(OBJECT, life, epoch, generation, length, checksum, (), 0)


def outcome(state: State | None, message: Any) -> tuple[Any, State | None]:
    verdict = decide(state, message, lambda length: b"same")
    return verdict, apply(state, verdict.change) if isinstance(verdict, Write) else state


@given(states(), messages())
def test_an_epoch_below_the_fence_changes_nothing(state: State | None, message: Any) -> None:
    """Whatever it says, and whatever is held: it is told the fence."""
    verdict, after = outcome(state, message)
    if state is not None and (message.epoch < state.fence or message.incarnation < state.incarnation):
        assert isinstance(verdict, FencedBy)
        assert verdict.epoch >= state.fence
        assert after == state
    else:
        assert not isinstance(verdict, FencedBy)


@given(states(), messages())
def test_fences_and_positions_only_grow(state: State | None, message: Any) -> None:
    """No record lowers a fence, or a position of the same life; what is acked is exactly what is held then."""
    verdict, after = outcome(state, message)
    if state is None or after is None:
        return
    assert after.fence >= state.fence
    if state.position is not None and after.incarnation == state.incarnation:
        assert after.position is not None
        assert after.position >= state.position
    said = verdict.answer if isinstance(verdict, Write) else verdict
    if isinstance(said, Holds):
        assert after.position == Position(said.incarnation, said.generation, said.length)
        assert after.fence >= message.epoch


@given(states(), messages())
def test_nothing_is_taken_where_checksums_differ(state: State | None, message: Any) -> None:
    """Bytes, generations and bases that do not agree with the owner's are never built upon."""
    verdict = decide(state, message, lambda length: b"mine")
    if not isinstance(verdict, Write):
        return
    assert isinstance(verdict.change, Raised)
    held = state.held if state is not None else None
    assert held is not None
    assert held.generation == getattr(message, "to", message.generation)


@given(states(), messages())
def test_a_generation_is_changed_only_from_exactly_there(state: State | None, message: Any) -> None:
    """A relabel needs all of the laid length and leaves exactly it; a fold needs exactly its length, whole."""
    verdict, after = outcome(state, message)
    held = state.held if state is not None else None
    if isinstance(verdict, Write) and isinstance(verdict.change, Relabelled):
        assert held is not None
        assert after is not None
        assert after.held is not None
        assert (held.generation, held.length >= message.length) == (message.generation, True)
        assert (after.held.generation, after.held.start, after.held.length) == (message.to, *[message.length] * 2)
    if verdict is Work.FOLD:
        assert held is not None
        assert (held.generation, held.length, held.committed) == (message.generation, *[message.length] * 2)
    if isinstance(verdict, Write) and isinstance(verdict.change, Extended):
        assert held is not None
        assert (held.generation, held.length) == (message.generation, verdict.change.offset)


@given(states(), messages())
def test_the_same_again_gives_the_same(state: State | None, message: Any) -> None:
    """A message that was taken is answered alike when it arrives twice, and changes nothing the second time."""
    verdict, after = outcome(state, message)
    if isinstance(verdict, Write) and isinstance(verdict.answer, Holds):
        again, then = outcome(after, message)
        assert (again, then) == (verdict.answer, after)


@given(states(), st.builds(Fence, st.just(OBJECT), LIVES, EPOCHS))
def test_a_fence_is_up_before_it_is_answered(state: State | None, fence: Fence) -> None:
    """What the record leaves refuses every lower epoch; a missing copy is no answer, a stub says that it is one."""
    change = raised(state, fence)
    after = apply(state, change) if change is not None else state
    answer = fence_answer("me", after, fence, lambda length: b"s%d" % length)
    assert after is not None
    if answer.fenced is not None:
        assert answer.fenced > fence.epoch or fence.incarnation < after.incarnation
        assert answer.position is None
        return
    assert after.fence >= fence.epoch
    assert after.incarnation == fence.incarnation
    assert answer.stub == (after.held is None and after.stub is not None)
    if after.held is not None:
        assert (answer.position, answer.checksum) == (after.position, b"s%d" % after.held.committed)


@given(st.lists(st.booleans(), max_size=6), st.integers(0, 3))
def test_the_last_whole_commit_is_found(commits: list[bool], before: int) -> None:
    """The length behind the last frame that ends a transaction, or none."""
    offset = 32 + before * FRAME
    frames = b"".join(frame(each) for each in commits)
    ends = [offset + (i + 1) * FRAME for i, commit in enumerate(commits) if commit]
    assert commit_end(memoryview(frames), offset) == (ends[-1] if ends else 0)


def test_only_what_was_written_before_an_incident_is_at_stake() -> None:
    """A tail above the served position of an open incident is kept; what its own owner wrote since is not."""
    life, before = Epoch(0, 0), Generation(Epoch(1, 1), 0)
    takeover, length = Epoch(1, 5), 32 + 3 * FRAME
    held = State(life, Epoch(1, 1), Held(before, 0, length, length, BaseFile(), 1))
    served = Position(life, before, 32 + FRAME)
    assert at_stake(held, served.length, [(takeover, served)]) == [takeover]
    assert at_stake(held, 0, [(takeover, Position(life, before, length))]) == []
    assert at_stake(held, length, [(takeover, served)]) == []
    since = State(life, takeover, Held(Generation(takeover, 0), 0, length, length, BaseFile(), 1))
    assert at_stake(since, 0, [(takeover, served)]) == []
    assert at_stake(None, 0, [(takeover, served)]) == []


def test_records_that_do_not_concern_a_state_leave_it() -> None:
    """The journal's records are applied only to the generation they name."""
    life, mine, other = Epoch(0, 0), Generation(Epoch(1, 1), 0), Generation(Epoch(1, 2), 0)
    state = State(life, Epoch(1, 1), Held(mine, 0, 4152, 4152, BaseFile(), 1), files=1)
    for change in (
        Extended(life, Epoch(1, 1), other, 4152, 8272, 8272, b"x"),
        Extended(life, Epoch(1, 1), mine, 8272, 9000, 9000, b"x"),
        Relabelled(Epoch(1, 2), other, 4152, Generation(Epoch(1, 3), 0)),
        Folded(Epoch(1, 1), mine, 8272, Generation(Epoch(1, 1), 1), BaseFile(), 2),
    ):
        assert apply(state, change) == state


def test_files_of_a_state_are_those_it_needs() -> None:
    """What is removed behind a checkpoint is never what a durable state names."""
    life, generation = Epoch(0, 0), Generation(Epoch(1, 1), 0)
    state = apply(None, Based(life, Epoch(1, 1), generation, 0, BaseFile((b"h",), 4096, 1), 2))
    assert files_of(state) == {1, 2}
    state = apply(state, Folded(Epoch(1, 1), generation, 0, Generation(Epoch(1, 1), 1), BaseFile((b"i",), 4096, 1), 3))
    assert files_of(state) == {1, 2, 3}
    position = Position(life, Generation(Epoch(1, 1), 1), 0)
    assert files_of(apply(state, LetGo(Epoch(1, 1), position, b"sum"))) == set()
    assert apply(state, Gone()) is None


def test_a_state_has_golden_bytes() -> None:
    """What was stored is read by the next version; anything torn is no state."""
    life, generation = Epoch(0, 0), Generation(Epoch(1, 2), 3)
    held = Held(generation, 32, 8272, 4152, BaseFile((b"h" * 4,), 4096, 5), 6)
    meta = Meta(b"o" * 4, 7, State(life, Epoch(8, 9), held, Stub(Position(life, generation, 1), b"s"), files=6))
    data = encode_meta(meta)
    assert data.hex() == STATE_GOLDEN
    assert decode_meta(data) == meta
    assert decode_meta(data[:-1]) is None
    assert decode_meta(b"DOMR\x02" + data[5:]) is None
    assert decode_meta(b"") is None


STATE_GOLDEN = (
    "444f4d520193c4046f6f6f6f079792000092080996929201020320cd2050cd10389391c40468686868cd100005069293"
    "920000929201020301c40173c0c00662f42b509feba5f7e60fa33a289cb295"
)


def test_a_gap_is_told_where_the_copy_is() -> None:
    """An append beyond what is held, or to another generation, changes nothing and learns the position."""
    life, generation = Epoch(0, 0), Generation(Epoch(1, 1), 0)
    state = State(life, Epoch(1, 1), Held(generation, 0, 4152, 4152, BaseFile(), 1))
    at = Elsewhere(Position(life, generation, 4152))
    for generation_said, offset in ((generation, 8272), (Generation(Epoch(1, 1), 1), 4152)):
        append = Append(OBJECT, life, Epoch(1, 1), generation_said, offset, b"same", frame(True))
        assert decide(state, append, lambda length: b"same") == at
