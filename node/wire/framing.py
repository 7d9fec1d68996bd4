"""Frames: how bytes on a peer connection are cut into messages (PROTOCOLS section 7).

    preamble  b"domicile", once, first thing in each direction
    frame     length of the body (4 bytes, big-endian) · crc32 of the body (4) · body; an empty body is a keepalive

Pure: bytes in, bytes out. The checksum finds what TCP's lets through; who may speak is `hello.py`'s business.
"""

from __future__ import annotations

import struct
from zlib import crc32

PREAMBLE = b"domicile"
HEADER = struct.Struct(">II")
HELLO_MAX = 4096
"""Longest body before the speaker has proved itself, in bytes."""
FRAME_MAX = 1 << 20
"""Longest body after that. What is longer travels as `Part`s."""

Body = bytes | memoryview


class BadPeer(Exception):
    """The other end broke the protocol, or may not speak here; the connection ends. Never leaves `wire`."""


def frame(body: bytes) -> bytes:
    """One frame."""
    return HEADER.pack(len(body), crc32(body)) + body


KEEPALIVE = frame(b"")


class FrameReader:
    """Cuts a stream that arrives in any pieces into frame bodies. Holds at most one unfinished frame.

    `feed` what arrived, then take bodies with `next` until it gives None. A body may be a view of what was fed: use it
    before the next `feed`. `limit` may be raised between frames.
    """

    def __init__(self, limit: int = HELLO_MAX) -> None:
        self.limit = limit
        self._buffer: bytes | bytearray = b""
        self._at = 0
        self._preamble = True

    def feed(self, data: bytes) -> None:
        if self._at == len(self._buffer):
            self._buffer = data
        else:
            # A view of a bytearray would forbid it to grow: `next` copies out of one.
            rest = self._buffer if isinstance(self._buffer, bytearray) else bytearray(self._buffer)
            del rest[: self._at]
            rest += data
            self._buffer = rest
        self._at = 0

    def next(self) -> Body | None:
        """The next body; None when it has not all arrived. Raises BadPeer."""
        if self._preamble and not self._past_preamble():
            return None
        start = self._at + HEADER.size
        if len(self._buffer) < start:
            return None
        length, checksum = HEADER.unpack_from(self._buffer, self._at)
        if length > self.limit:
            raise BadPeer(f"a frame of {length} bytes, over the bound of {self.limit}")
        end = start + length
        if len(self._buffer) < end:
            return None
        self._at = end
        body = memoryview(self._buffer)[start:end]
        if crc32(body) != checksum:
            raise BadPeer("a frame does not have its checksum")
        return bytes(body) if isinstance(self._buffer, bytearray) else body

    def _past_preamble(self) -> bool:
        head = bytes(self._buffer[: len(PREAMBLE)])
        if not PREAMBLE.startswith(head):
            raise BadPeer(f"it does not speak our protocol: it began with {head!r}")
        if len(head) < len(PREAMBLE):
            return False
        self._at = len(PREAMBLE)
        self._preamble = False
        return True
