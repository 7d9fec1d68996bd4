"""Permits for store flights: so many at once, some of them kept for flights a caller waits on (PROTOCOLS section 7)."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Permits:
    """`total` flights at once; those nobody waits on may use `total - reserved`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, total: int, reserved: int) -> None:
        self._loop = loop
        self._free = total
        self._reserved = reserved
        self._awaited: deque[asyncio.Future[None]] = deque()
        self._background: deque[asyncio.Future[None]] = deque()

    @asynccontextmanager
    async def one(self, *, awaited: bool) -> AsyncIterator[None]:
        """Hold one permit."""
        if self._free <= (0 if awaited else self._reserved):
            turn: asyncio.Future[None] = self._loop.create_future()
            (self._awaited if awaited else self._background).append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if not turn.cancelled():
                    self._give_back()
                raise
        else:
            self._free -= 1
        try:
            yield
        finally:
            self._give_back()

    def _give_back(self) -> None:
        self._free += 1
        for queue, kept in ((self._awaited, 0), (self._background, self._reserved)):
            while queue and self._free > kept:
                turn = queue.popleft()
                if not turn.done():
                    self._free -= 1
                    turn.set_result(None)
