"""The listening end: proves who dialled, hands on what is said and asked, sends replies in batches."""

from __future__ import annotations

import asyncio
from typing import Protocol

from domicile.node.wire.codec import Codec, Versions
from domicile.node.wire.framing import BadPeer, Body, frame
from domicile.node.wire.hello import Listening, Speaker, denial
from domicile.node.wire.limits import Limits
from domicile.node.wire.messages import Part, Question, Reply, weight
from domicile.node.wire.stream import Stream


class Receiver(Protocol):
    """What the server does with a connection."""

    def opened(self, connection: Accepted) -> None: ...

    def asked(self, connection: Accepted, number: int, question: Question) -> None:
        """To be answered by `connection.answer`, once."""
        ...

    def overloaded(self, connection: Accepted, number: int) -> None:
        """A request beyond the bounds: nothing of it was kept."""
        ...

    def closed(self, connection: Accepted, why: str) -> None: ...


class Accepted(Stream):
    """`speaker` is who dialled, None until it has proved itself."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, receiver: Receiver, listening: Listening, limits: Limits
    ) -> None:
        super().__init__(loop, limits)
        self._receiver, self._listening = receiver, listening
        self._codec: Codec | None = None
        self._sizes: dict[int, int] = {}
        self._unanswered = 0
        self._deaf = False
        self._take = self._hello
        self.versions: Versions = {}
        self.speaker: Speaker | None = None

    def answer(self, number: int, reply: Reply) -> None:
        """Send the reply with this turn's batch; to a connection that is gone it goes nowhere."""
        self._unanswered -= self._sizes.pop(number, 0)
        if self.ended is not None:
            return
        self._put(number, reply, weight(reply))
        if self._deaf and self._unanswered < self._limits.window:
            self._deaf = False
            assert self._transport is not None
            self._transport.resume_reading()

    @property
    def stranger(self) -> bool:
        return self.speaker is None

    def where(self) -> str:
        """The address it came from, for the log."""
        return str(self._transport.get_extra_info("peername")) if self._transport is not None else "nowhere"

    def _hello(self, body: Body) -> None:
        self._take = self._nothing_expected
        self._write(frame(self._listening.welcome(body)))
        self._take = self._proof

    def _proof(self, body: Body) -> None:
        self.speaker = self._listening.admit(body)
        self._codec = self._outbox.codec = self.versions[self.speaker.version]
        self._take = self._questions
        self._opened()
        self._receiver.opened(self)

    def _questions(self, body: Body) -> None:
        assert self._codec is not None
        for number, message in self._codec.questions(body):
            question = self._whole(number, message) if isinstance(message, Part) else message
            if question is None:
                continue
            if self._full():
                self._receiver.overloaded(self, number)
                continue
            if number in self._sizes:
                raise BadPeer(f"it used the number {number} twice")
            size = weight(question)
            self._sizes[number] = size
            self._unanswered += size
            self._receiver.asked(self, number, question)
        # Appends are held back by TCP, never refused: twice the window is more than a peer of ours sends.
        if self._appends() and self._unanswered > 2 * self._limits.window and not self._deaf:
            self._deaf = True
            assert self._transport is not None
            self._transport.pause_reading()

    def _whole(self, number: int, part: Part) -> Question | None:
        if not self._pieces.holds(number) and self._full():
            self._pieces.refuse(number)
            self._receiver.overloaded(self, number)
        encoded = self._pieces.add(number, part)
        assert self._codec is not None
        return None if encoded is None else self._codec.question(encoded)

    def _full(self) -> bool:
        held = self._unanswered + self._pieces.bytes + self._outbox.bytes
        return not self._appends() and (held > self._limits.held_max or len(self._sizes) >= self._limits.running_max)

    def _appends(self) -> bool:
        return self.speaker is not None and self.speaker.lane == "append"

    def _room(self) -> int:
        return self._limits.window

    def _overdue(self, now: float) -> str | None:
        if self._deaf:
            self._heard_at = now  # it is this end that does not read
        return super()._overdue(now)

    def _refuse(self, why: str) -> None:
        if not self._open:
            self._write(frame(denial(why)))
        self.end(why, gently=not self._open)

    def _lost(self, why: str) -> None:
        self._receiver.closed(self, why)
