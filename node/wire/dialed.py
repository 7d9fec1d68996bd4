"""The dialing end: numbers questions, keeps their futures, counts what is in flight."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import get_args

from domicile.node.errors import PeerBusy, PeerGone
from domicile.node.wire.codec import Codec, Versions
from domicile.node.wire.framing import BadPeer, Body, frame
from domicile.node.wire.hello import Dialing, Lane, Speaker, denial, denied
from domicile.node.wire.limits import Limits
from domicile.node.wire.messages import Answered, Part, Question, Reply
from domicile.node.wire.stream import Stream

ANSWERED = get_args(Answered)


Heard = Callable[[Reply | PeerGone | PeerBusy], None]
"""Is told the reply, or why there is none: once, perhaps before `put` returns."""


class Pending:
    """A question that has no reply yet. `sent`: some of it was handed to the connection."""

    __slots__ = ("copy_id", "heard", "said_at", "sent", "size")

    def __init__(self, heard: Heard, size: int, copy_id: str, said_at: float) -> None:
        self.heard, self.size, self.copy_id, self.said_at = heard, size, copy_id, said_at
        self.sent = False


class Dialed(Stream):
    """Questions may be put from the start; they leave, in order, when the other end has proved itself.

    `speaker` is who answered, None until then. `on_open(self)` and `on_end(self, why)` are called once each.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, dialing: Dialing, lane: Lane, limits: Limits) -> None:
        super().__init__(loop, limits, fair=lane != "append")
        self._dialing, self._lane = dialing, lane
        self._codec: Codec | None = None
        self._numbers = itertools.count(1)
        self._pending: dict[int, Pending] = {}
        self._in_flight = 0
        self._queued = limits.queued if lane == "append" else limits.held_max
        self.versions: Versions = {}
        self.speaker: Speaker | None = None
        self.on_open: Callable[[Dialed], None] = lambda _: None
        self.on_end: Callable[[Dialed, str], None] = lambda *_: None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._take = self._welcomed
        self._write(frame(self._dialing.hello))

    def put(self, question: Question, size: int, heard: Heard, copy_id: str = "") -> int:
        """Its number. `size`: its weight. With a `copy_id` it is said only to the node that has that copy."""
        number = next(self._numbers)
        if self.ended is not None:
            heard(PeerGone(self.ended, sent=False))
        elif self._outbox and self._outbox.bytes + size > self._queued:
            heard(PeerBusy(f"{self._outbox.bytes} bytes wait for this peer already"))
        elif self.speaker is not None and copy_id not in ("", self.speaker.copy_id):
            heard(_another(self.speaker, copy_id))
        else:
            self._pending[number] = Pending(heard, size, copy_id, self._loop.time())
            self._put(number, question, size)
        return number

    def give_up(self, number: int, why: str) -> None:
        """Wait no longer for this number's reply; unsent, it is not sent."""
        pending = self._pending.pop(number, None)
        if pending is not None:
            self._settle(number, pending, PeerGone(why, sent=pending.sent))

    def _welcomed(self, body: Body) -> None:
        self.speaker, proof = self._dialing.proof(body)
        self._codec = self._outbox.codec = self.versions[self.speaker.version]
        self._take = self._replies
        self._opened()
        self._write(frame(proof))
        for number, pending in [*self._pending.items()]:
            if pending.copy_id not in ("", self.speaker.copy_id):
                del self._pending[number]
                self._settle(number, pending, _another(self.speaker, pending.copy_id))
        self.on_open(self)
        self._flush()

    def _replies(self, body: Body) -> None:
        for number, reply in self._read(body):
            whole = self._whole(number, reply) if isinstance(reply, Part) else reply
            if whole is None:
                continue
            if self._lane == "append" and not isinstance(whole, ANSWERED):
                raise BadPeer(f"it answered with {type(whole).__name__}")
            pending = self._pending.pop(number, None)
            if pending is None:
                continue  # given up
            self._in_flight -= pending.size
            pending.heard(whole)
        if self._outbox and not self._flushing:
            self._flush()  # the window has moved

    def _read(self, body: Body) -> list[tuple[int, Reply | Part]]:
        assert self._codec is not None
        try:
            return self._codec.replies(body)
        except BadPeer:
            if (why := denied(body)) is not None:  # our welcome crossed with its patience
                raise BadPeer(f"it denied us: {why}") from None
            raise

    def _whole(self, number: int, part: Part) -> Reply | None:
        if number not in self._pending and not self._pieces.holds(number):
            self._pieces.refuse(number)
        encoded = self._pieces.add(number, part)
        assert self._codec is not None
        return None if encoded is None else self._codec.reply(encoded)

    def _room(self) -> int:
        return self._limits.window - self._in_flight if self._lane == "append" else self._limits.window

    def _begun(self, numbers: list[int]) -> None:
        for number in numbers:
            pending = self._pending[number]
            pending.sent = True
            self._in_flight += pending.size

    def _overdue(self, now: float) -> str | None:
        if self._lane == "append" and self._pending:
            oldest = next(iter(self._pending.values()))
            if now - oldest.said_at > self._limits.answer_secs:
                return f"no answer for {self._limits.answer_secs:g} s"
        return super()._overdue(now)

    def _refuse(self, why: str) -> None:
        if not self._open:
            self._write(frame(denial(why)))  # so that its log says it too
        self.end(why, gently=not self._open)

    def _lost(self, why: str) -> None:
        pending, self._pending = self._pending, {}
        for each in pending.values():
            each.heard(PeerGone(why, sent=each.sent))
        self.on_end(self, why)

    def _settle(self, number: int, pending: Pending, error: PeerGone) -> None:
        if pending.sent:
            self._in_flight -= pending.size
        else:
            self._outbox.drop(number)
        pending.heard(error)


def _another(speaker: Speaker, copy_id: str) -> PeerGone:
    return PeerGone(f"copy {copy_id} is gone: {speaker.copy_id} answers there", sent=False)


def settle(future: asyncio.Future[Reply], heard: Reply | PeerGone | PeerBusy) -> None:
    """A `Heard` for whoever would rather await it."""
    if future.done():
        return
    if isinstance(heard, PeerGone | PeerBusy):
        future.set_exception(heard)
        future.exception()  # not everybody looks at it
    else:
        future.set_result(heard)
