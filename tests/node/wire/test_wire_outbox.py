"""Batches and pieces: order, fairness, bounds."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domicile.node.wire.codec import FIRST
from domicile.node.wire.framing import FRAME_MAX, BadPeer
from domicile.node.wire.messages import Ask, Part, weight
from domicile.node.wire.outbox import BATCH, PIECE, UNFINISHED_MAX, Outbox, Pieces

PLENTY = 1 << 40


def put(box: Outbox, number: int, size: int) -> Ask:
    message = Ask(str(number), bytes([number % 256]) * size)
    box.put(number, message, weight(message))
    return message


def sent(box: Outbox, budget: int = PLENTY) -> list[list[tuple[int, Any]]]:
    """All frames there are now, each no longer than a reader takes."""
    frames = []
    while body := box.take(budget)[0]:
        assert len(body) <= FRAME_MAX
        frames.append(FIRST.questions(body))
    return frames


def joined(frames: list[list[tuple[int, Any]]], each: int = PLENTY) -> list[tuple[int, Any]]:
    """What the reader makes of them, in the order in which it is whole."""
    pieces, whole = Pieces(each), []
    for number, message in (entry for frame in frames for entry in frame):
        encoded = pieces.add(number, message) if isinstance(message, Part) else None
        if encoded is not None:
            whole.append((number, FIRST.question(encoded)))
        elif not isinstance(message, Part):
            whole.append((number, message))
    assert pieces.bytes == 0
    return whole


SIZES = st.lists(st.sampled_from([0, 10, 4096, PIECE - 300, PIECE, PIECE + 1, 3 * PIECE, BATCH, 1 << 20]), max_size=12)


@given(SIZES)
def test_order_is_kept_where_it_matters(sizes: list[int]) -> None:
    """On an append stream messages become whole in the order in which they were put, large or small."""
    box = Outbox(fair=False)
    messages = [(number, put(box, number, size)) for number, size in enumerate(sizes)]
    assert joined(sent(box)) == messages
    assert box.bytes == 0
    assert not box


@given(SIZES)
def test_all_arrives_once_where_order_is_free(sizes: list[int]) -> None:
    """Elsewhere each message arrives once and whole, and small ones keep their order."""
    box = Outbox(fair=True)
    messages = [(number, put(box, number, size)) for number, size in enumerate(sizes)]
    whole = joined(sent(box))
    assert sorted(whole, key=lambda entry: entry[0]) == messages
    small = [number for number, message in whole if weight(message) <= PIECE]
    assert small == sorted(small)
    assert box.bytes == 0


def test_one_turn_is_one_frame() -> None:
    """What was put in one turn leaves in one frame, as long as a frame holds it."""
    box = Outbox(fair=False)
    for number in range(40):
        put(box, number, 4096)
    assert [len(frame) for frame in sent(box)] == [40]


def test_a_small_message_does_not_wait_for_a_large_one() -> None:
    """A call put behind a result of 10 MiB leaves in the next frame."""
    box = Outbox(fair=True)
    put(box, 1, 10 << 20)
    box.take(PLENTY)
    small = put(box, 2, 10)
    entries = FIRST.questions(box.take(PLENTY)[0])
    assert (2, small) in entries
    assert entries[0][0] == 1  # nor does the large one starve


def test_large_ones_take_turns() -> None:
    """Two large results travel side by side: the second, shorter, is whole first."""
    box = Outbox(fair=True)
    put(box, 1, 20 * PIECE)
    put(box, 2, 2 * PIECE)
    assert [number for number, _ in joined(sent(box))] == [2, 1]


def test_the_budget_bounds_what_begins() -> None:
    """What exceeds the budget stays; what is larger than any budget goes only when it is forced, alone."""
    box = Outbox(fair=False)
    sizes = [weight(put(box, number, 1000)) for number in range(3)]
    _, begun = box.take(sum(sizes[:2]))
    assert begun == [0, 1]
    assert box.take(sizes[2] - 1) == (b"", [])
    assert box.take(sizes[2] - 1, force=True)[1] == [2]


def test_what_is_dropped_is_not_sent() -> None:
    """A number given up before it began leaves no byte."""
    box = Outbox(fair=True)
    for number in range(3):
        put(box, number, 10)
    box.drop(1)
    assert [[number for number, _ in frame] for frame in sent(box)] == [[0, 2]]
    assert box.bytes == 0


def test_a_message_over_the_bound_is_cut_off() -> None:
    """Pieces that add up to more than a message may have are refused while they come, not when they are whole."""
    pieces = Pieces(100)
    assert pieces.add(1, Part(memoryview(bytes(100)), last=False)) is None
    with pytest.raises(BadPeer, match="over 100 bytes"):
        pieces.add(1, Part(memoryview(b"x"), last=True))


def test_messages_begun_and_not_finished_are_bounded() -> None:
    """A peer cannot make the reader remember any number of beginnings."""
    pieces = Pieces(100)
    for number in range(UNFINISHED_MAX + 1):
        pieces.add(number, Part(memoryview(b""), last=False))
    with pytest.raises(BadPeer, match="begun and not finished"):
        pieces.add(UNFINISHED_MAX + 1, Part(memoryview(b""), last=False))


def test_nothing_is_kept_of_what_was_refused() -> None:
    """The pieces of a refused number are counted nowhere, up to the last."""
    pieces = Pieces(100)
    pieces.refuse(1)
    assert pieces.add(1, Part(memoryview(bytes(90)), last=False)) is None
    assert pieces.bytes == 0
    assert pieces.holds(1)
    assert pieces.add(1, Part(memoryview(b"x"), last=True)) is None
    assert not pieces.holds(1)
