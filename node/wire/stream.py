"""One peer connection as an asyncio protocol: what both ends share (PROTOCOLS section 7).

Everything said in one turn of the loop, and in the one after it, leaves in one frame by one write: under load the
second turn makes frames fewer and larger, and at rest it is over at once. Both ends send an empty frame when they have
been silent for a second, so a dead flow is noticed by either without an answer being due (field cases 45 and 98).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

from domicile.node.wire.framing import FRAME_MAX, KEEPALIVE, PREAMBLE, BadPeer, Body, FrameReader, frame
from domicile.node.wire.limits import Limits
from domicile.node.wire.outbox import Outbox, Pieces

WRITE_BUFFER = 256 << 10


class Stream(asyncio.BufferedProtocol):
    """Frames in, frames out, keepalives, back-pressure, one end. Subclasses say what a frame means.

    `ended` is why it ended, None while it lives.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, limits: Limits, *, fair: bool = True) -> None:
        self._loop, self._limits = loop, limits
        self._transport: asyncio.Transport | None = None
        self._reader = FrameReader()
        self._outbox = Outbox(fair=fair)
        self._pieces = Pieces(limits.message_max)
        self._take: Callable[[Body], None] = self._nothing_expected
        self._open = self._paused = self._flushing = self._told = False
        self._made_at = self._heard_at = self._wrote_at = loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self.ended: str | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self.ended is not None:
            self._transport.abort()  # it was given up before it came about
            return
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER)
        self._write(PREAMBLE)
        self._heard_at = self._loop.time()
        self._tick_at(self._heard_at)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.room()

    def buffer_updated(self, nbytes: int) -> None:
        self._heard_at = self._loop.time()
        self._reader.filled(nbytes)
        try:
            while self.ended is None and (body := self._reader.next()) is not None:
                if len(body):
                    self._take(body)
        except BadPeer as bad:
            self._refuse(str(bad))

    def eof_received(self) -> bool:
        self.end("the other end closed it")
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if self.ended is None:
            self.ended = f"the connection was lost: {exc or 'closed'}"
        self._over(self.ended)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._flush()

    def end(self, why: str, *, gently: bool = False) -> None:
        """Close it, once; `gently` lets what was put leave first."""
        if self.ended is not None:
            return
        if gently:
            self._flush()
        self.ended = why
        if self._transport is None:
            self._over(why)
        elif gently:
            self._transport.close()
            self._loop.call_later(self._limits.hello_secs, self._cut)  # if it does not read
        else:
            self._cut()

    def _cut(self) -> None:
        """A loop that gave up connecting has closed the transport behind our back, and never says it is lost."""
        assert self._transport is not None
        self._transport.abort()
        self._loop.call_soon(self._over, self.ended or "")

    def _opened(self) -> None:
        """The other end has proved itself: longer frames from here on."""
        self._open = True
        self._reader.limit = FRAME_MAX

    def _refuse(self, why: str) -> None:
        self.end(why)

    def _nothing_expected(self, body: Body) -> None:
        raise BadPeer("it spoke out of turn")

    def _put(self, number: int, message: Any, size: int) -> None:
        self._outbox.put(number, message, size)
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._gather)

    def _gather(self) -> None:
        self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        while self._open and self.ended is None and not self._paused and self._outbox:
            room = self._room()
            body, begun = self._outbox.take(room, force=room == self._limits.window)
            if not body:
                return
            self._begun(begun)
            self._write(frame(body))

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._wrote_at = self._loop.time()
            self._transport.write(data)

    def _tick_at(self, now: float) -> None:
        self._timer = self._loop.call_at(now + self._limits.ping_secs, self._tick, now + self._limits.ping_secs)

    def _tick(self, due: float) -> None:
        if self.ended is not None:
            return None
        now = self._loop.time()
        if now - due > self._limits.ping_secs:
            self._heard_at = now  # it was this process that stood still: what came meanwhile is yet to be read
        self._made_at += now - due  # nor is a proof late for what this end is late
        if (why := self._overdue(now)) is not None:
            return self._refuse(why)
        if self._open and now - self._wrote_at >= self._limits.ping_secs and not self._paused:
            self._write(KEEPALIVE)
        self._tick_at(now)
        return None

    def _overdue(self, now: float) -> str | None:
        if not self._open:
            late = now - self._made_at > self._limits.hello_secs
            return f"no proof within {self._limits.hello_secs:g} s" if late else None
        if now - self._heard_at > self._limits.dead_secs:
            return f"nothing heard for {self._limits.dead_secs:g} s"
        return None

    def _room(self) -> int:
        """How much may begin now, in bytes."""
        return self._limits.window

    def _begun(self, numbers: list[int]) -> None:
        """These are on their way from here on."""

    def _over(self, why: str) -> None:
        if not self._told:
            self._told = True
            if self._timer is not None:
                self._timer.cancel()
            self._lost(why)

    def _lost(self, why: str) -> None:
        """It is over; called once."""
