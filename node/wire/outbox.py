"""What waits to be sent on a connection, and messages that arrive in pieces. Pure.

One batch per loop turn: `take` gives the body of the next frame. A message over `PIECE` travels in pieces. Where order
matters (`fair` False) they go one after the other; else a frame begins with one piece of the large and is filled up
with the small, so that a call waits for a large result only for the length of a frame.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from domicile.node.wire.codec import FIRST, Codec, Entry
from domicile.node.wire.framing import BadPeer
from domicile.node.wire.messages import OVERHEAD, Part

PIECE = 64 << 10
BATCH = 256 << 10
UNFINISHED_MAX = 4096


class Outbox:
    """Messages in order, under their numbers. `bytes` is about what waits, pieces under way included.

    `codec` is the version's, to be set before the first `take`.
    """

    def __init__(self, *, fair: bool) -> None:
        self.codec: Codec = FIRST
        self._fair = fair
        self._waiting: deque[tuple[int, Any, int]] = deque()
        self._large: deque[tuple[int, memoryview]] = deque()
        self._dropped: set[int] = set()
        self.bytes = 0

    def __bool__(self) -> bool:
        return self.bytes > 0

    def put(self, number: int, message: Any, size: int) -> None:
        self._waiting.append((number, message, size))
        self.bytes += size

    def drop(self, number: int) -> None:
        """Do not send what waits under this number, all of it still unsent."""
        self._dropped.add(number)

    def take(self, budget: int, *, force: bool = False) -> tuple[bytes, list[int]]:
        """The body of the next frame (empty: nothing may go), and the numbers of what begins in it.

        `budget` bounds the sizes of what begins; with `force` the first goes whatever its size.
        """
        entries: list[Entry] = []
        begun: list[int] = []
        room = BATCH
        while room > 0:
            if self._large and not (self._fair and entries and self._waiting):
                room -= self._piece(entries)
            elif not self._waiting:
                break
            else:
                number, message, size = self._waiting[0]
                if number in self._dropped:
                    self._dropped.remove(number)
                elif size > budget and (begun or not force):
                    break
                else:
                    budget -= size
                    begun.append(number)
                    room -= self._begin(number, message, size, entries)
                self._waiting.popleft()
                self.bytes -= size
        return (self.codec.encode(entries) if entries else b""), begun

    def _begin(self, number: int, message: Any, size: int, entries: list[Entry]) -> int:
        if size <= PIECE:
            entries.append((number, message))
            return size
        encoded = memoryview(self.codec.encode_one(message))
        self._large.append((number, encoded))
        self.bytes += len(encoded)
        return 0

    def _piece(self, entries: list[Entry]) -> int:
        number, rest = self._large.popleft()
        piece, rest = rest[:PIECE], rest[PIECE:]
        entries.append((number, Part(piece, not rest)))
        if rest and self._fair:
            self._large.append((number, rest))
        elif rest:
            self._large.appendleft((number, rest))
        self.bytes -= len(piece)
        return len(piece) + OVERHEAD


class Pieces:
    """Puts messages together again. `bytes` is what unfinished ones hold; over `each` for one it raises BadPeer."""

    def __init__(self, each: int) -> None:
        self._each = each
        self._open: dict[int, bytearray] = {}
        self._refused: set[int] = set()
        self.bytes = 0

    def holds(self, number: int) -> bool:
        """Whether this number has begun, refused or not."""
        return number in self._open or number in self._refused

    def refuse(self, number: int) -> None:
        """Keep nothing of what comes under this number."""
        self._refused.add(number)

    def add(self, number: int, part: Part) -> bytearray | None:
        """The whole encoded message, once its last piece is here and it was not refused."""
        if len(self._open) + len(self._refused) > UNFINISHED_MAX:
            raise BadPeer(f"over {UNFINISHED_MAX} messages begun and not finished")
        if number in self._refused:
            if part.last:
                self._refused.remove(number)
            return None
        held = self._open.setdefault(number, bytearray())
        if len(held) + len(part.piece) > self._each:
            raise BadPeer(f"a message over {self._each} bytes")
        held += part.piece
        self.bytes += len(part.piece)
        if not part.last:
            return None
        del self._open[number]
        self.bytes -= len(held)
        return held
