"""The manifest's tail as it grows: a flight deflates what is new, and not all of the tail again (docs/decisions/0010).

A deflated tail is one zlib stream. Whoever made it can make it longer: all but its ending stays, and what is new
follows, as blocks that refer back to what came just before. Small writes change the same few pages again and again, and
those deflate to a hundredth; even the few frames that a birth writes do to a tenth, which makes its register a third as
long. What does not deflate stays as it is.
"""

from __future__ import annotations

import zlib

from domicile.node import manifest as manifests
from domicile.node.log import Log

_HEAD = b"\x78\x01"
_LAST_BLOCK = b"\x03\x00"  # nothing, and the last one
_ENDING = len(_LAST_BLOCK) + 4
_AT_ONCE = 32 << 10


class Tail:
    """Of one residency. Remembers the last one it made: what was committed stays, whether its flight landed or not."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._stands_for = (-1, 0)  # of the log after so many rotations, from where
        self._end = 0
        self._deflated = b""

    def of(self, start: int, end: int) -> bytes | None:
        """What stands for the log's bytes [start, end) behind the last segment; None when there is no room for it."""
        size = end - start
        deflated = self._grown(start, end) if 0 < size <= manifests.TAIL_LOG_MAX else None
        if deflated is not None and len(deflated) < size:
            return deflated
        return self._log.read(start, end) if size <= manifests.TAIL_BYTES_MAX else None

    def _grown(self, start: int, end: int) -> bytes | None:
        known, out, check = start, bytearray(_HEAD), 1
        if self._stands_for == (self._log.rotations, start) and self._end <= end:
            known, out = self._end, bytearray(self._deflated[:-_ENDING])
            check = int.from_bytes(self._deflated[-4:], "big")
        before = max(start, known - (end - known))  # a write changes the pages that those before it changed
        read = memoryview(self._log.read(before, end))
        seen, fresh = read[: known - before], read[known - before :]
        deflater = zlib.compressobj(1, wbits=-zlib.MAX_WBITS, zdict=seen)
        for at in range(0, len(fresh), _AT_ONCE):
            out += deflater.compress(fresh[at : at + _AT_ONCE])
            if len(out) > manifests.TAIL_BYTES_MAX:  # what does not deflate shows so early
                return None
        out += deflater.flush(zlib.Z_SYNC_FLUSH) + _LAST_BLOCK + zlib.adler32(fresh, check).to_bytes(4, "big")
        if len(out) > manifests.TAIL_BYTES_MAX:
            return None
        self._stands_for, self._end, self._deflated = (self._log.rotations, start), end, bytes(out)
        return self._deflated
