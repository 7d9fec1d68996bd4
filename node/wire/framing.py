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
BUFFER = 256 << 10

Body = bytes | bytearray | memoryview


class BadPeer(Exception):
    """The other end broke the protocol, or may not speak here; the connection ends. Never leaves `wire`."""


def frame(body: bytes) -> bytes:
    """One frame."""
    return HEADER.pack(len(body), crc32(body)) + body


KEEPALIVE = frame(b"")


class FrameReader:
    """Cuts a stream that arrives in any pieces into frame bodies, inside one buffer that the socket is read into.

    Fill what `room` gives and say how much with `filled`, then take bodies with `next` until it gives None. A body is a
    view: use it before the next `room`. The buffer grows only for a frame within `limit`, which may be raised between
    frames.
    """

    def __init__(self, limit: int = HELLO_MAX) -> None:
        self.limit = limit
        self._view = memoryview(bytearray(BUFFER))
        self._start = self._end = 0
        self._wanted = len(PREAMBLE)
        self._preamble = True

    def room(self) -> memoryview:
        """Where the next bytes go."""
        held = self._end - self._start
        if held == 0:
            self._start = self._end = 0
        elif len(self._view) - self._end < BUFFER // 4 or len(self._view) - self._start < self._wanted:
            view = self._view
            if self._wanted > len(view) - BUFFER // 4:
                view = memoryview(bytearray(self._wanted + BUFFER))
            view[:held] = bytes(self._view[self._start : self._end])
            self._view, self._start, self._end = view, 0, held
        return self._view[self._end :]

    def filled(self, count: int) -> None:
        """So many bytes were put into `room`."""
        self._end += count

    def next(self) -> memoryview | None:
        """The next body; None when it has not all arrived. Raises BadPeer."""
        if self._preamble and not self._past_preamble():
            return None
        start = self._start + HEADER.size
        if self._end < start:
            self._wanted = HEADER.size
            return None
        length, checksum = HEADER.unpack_from(self._view, self._start)
        if length > self.limit:
            raise BadPeer(f"a frame of {length} bytes, over the bound of {self.limit}")
        self._wanted = HEADER.size + length
        if self._end < start + length:
            return None
        self._start = start + length
        body = self._view[start : start + length]
        if crc32(body) != checksum:
            raise BadPeer("a frame does not have its checksum")
        return body

    def _past_preamble(self) -> bool:
        head = bytes(self._view[self._start : min(self._end, self._start + len(PREAMBLE))])
        if not PREAMBLE.startswith(head):
            raise BadPeer(f"it does not speak our protocol: it began with {head!r}")
        if len(head) < len(PREAMBLE):
            return False
        self._start += len(PREAMBLE)
        self._preamble = False
        return True
