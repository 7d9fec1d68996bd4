"""Frames on the wire: golden bytes, any cut of the stream, and what is no frame."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from domicile.node.wire.framing import FRAME_MAX, HELLO_MAX, KEEPALIVE, PREAMBLE, BadPeer, FrameReader, frame


def read(reader: FrameReader, data: bytes) -> list[bytes]:
    """The bodies that are whole once `data` has arrived, as a socket delivers it."""
    found = []
    while data:
        fill(reader, data[:65_536])  # as much as there is always room for
        data = data[65_536:]
        while (body := reader.next()) is not None:
            found.append(bytes(body))
    return found


def fill(reader: FrameReader, data: bytes) -> None:
    room = reader.room()
    assert len(room) >= len(data)
    room[: len(data)] = data
    reader.filled(len(data))


def test_frames_have_these_bytes() -> None:
    """The preamble, a frame and a keepalive are written as they were in the first version."""
    assert PREAMBLE == b"domicile"
    assert frame(b"hello").hex() == "00000005" + "3610a686" + b"hello".hex()
    assert KEEPALIVE.hex() == "0000000000000000"


@given(st.lists(st.binary(max_size=200), max_size=8), st.lists(st.integers(1, 90), min_size=1, max_size=20))
def test_a_stream_may_arrive_in_any_pieces(bodies: list[bytes], cuts: list[int]) -> None:
    """However the bytes are cut, the same bodies come out, in order, each as soon as its last byte is there."""
    stream = PREAMBLE + b"".join(map(frame, bodies))
    ends = [len(PREAMBLE) + sum(len(frame(body)) for body in bodies[: i + 1]) for i in range(len(bodies))]
    reader, found, at, turn = FrameReader(), [], 0, 0
    while at < len(stream):
        size = cuts[turn % len(cuts)]
        found += read(reader, stream[at : at + size])
        at, turn = min(len(stream), at + size), turn + 1
        assert len(found) == sum(end <= at for end in ends)
    assert found == bodies


@given(st.binary(min_size=1, max_size=60), st.integers(0, 1 << 30), st.integers(1, 255))
def test_a_changed_byte_is_noticed(body: bytes, place: int, change: int) -> None:
    """No frame with one byte changed gives a body."""
    stream = bytearray(frame(body))
    stream[place % len(stream)] ^= change
    with contextlib.suppress(BadPeer):
        assert read(FrameReader(), PREAMBLE + bytes(stream)) == []


@pytest.mark.parametrize("limit", [HELLO_MAX, FRAME_MAX])
def test_a_frame_over_the_bound_is_refused_by_its_head(limit: int) -> None:
    """Eight bytes that announce too much end it: nothing is gathered for them."""
    reader = FrameReader(limit)
    with pytest.raises(BadPeer, match="over the bound"):
        read(reader, PREAMBLE + (limit + 1).to_bytes(4, "big") + bytes(4))
    assert read(FrameReader(limit), PREAMBLE + frame(bytes(limit))) == [bytes(limit)]


@pytest.mark.parametrize("garbage", [b"GET / HTTP/1.1\r\n", b"\x16\x03\x01", b"domicilf", b"d0"])
def test_another_protocol_is_refused_at_its_first_bytes(garbage: bytes) -> None:
    """What does not begin with the preamble is not waited for."""
    with pytest.raises(BadPeer, match="does not speak our protocol"):
        read(FrameReader(), garbage)


def test_the_bound_may_grow_between_frames() -> None:
    """A longer frame right behind the last short one, in the same bytes, is read under the new bound."""
    reader = FrameReader(16)
    fill(reader, PREAMBLE + frame(b"short") + frame(bytes(1000)))
    assert reader.next() == b"short"
    reader.limit = 1000
    assert reader.next() == bytes(1000)


@example([FRAME_MAX, 262_136, 70_000, 5, 70_000, 0], 9)
@given(st.lists(st.sampled_from([0, 5, 70_000, 200_000, 262_136, 300_000, FRAME_MAX]), max_size=6), st.integers(1, 9))
def test_frames_of_any_length_fit_the_buffer(sizes: list[int], seed: int) -> None:
    """Short and long frames in any order, cut anywhere: there is always room, and every body is right."""
    bodies = [bytes([seed + i]) * size for i, size in enumerate(sizes)]
    stream = PREAMBLE + b"".join(map(frame, bodies))
    reader, found, step = FrameReader(FRAME_MAX), [], 7919 * seed
    for at in range(0, len(stream), step):
        found += read(reader, stream[at : at + step])
    assert found == bodies
