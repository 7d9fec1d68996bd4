"""One client connection: bytes in, whole requests out, answers in their order (field cases 100 and 101).

What is being read, and whether something is being answered, are two things. Reading is in one phase at a time:

    WAITING   no byte of the next request has come
    HEAD      its head is arriving
    BODY      its head is whole, its body is arriving; when that is whole too the request is taken, and WAITING again
    OVER      no further request is taken; what still arrives is thrown away

A taken request is answered by the connection's one task, at once or after those before it. While nothing is answered a
phase has a deadline, which the server looks at every tick. The app sees whole requests only, and nothing that began is
cancelled when its client goes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from enum import Enum, auto
from typing import TYPE_CHECKING, cast

import httptools

from domicile.errors import BadRequest, DomicileError
from domicile.node.http import wire
from domicile.node.http.body import too_large
from domicile.node.http.exchange import Exchange, Request
from domicile.node.problems import Header, HeadTooLarge, Reply, RequestTimeout

if TYPE_CHECKING:
    from domicile.node.http.server import HttpServer

PIPELINED_MAX = 64
CHUNKING_OVERHEAD = 8  # raw bytes a byte of body may cost: a chunk of one byte is six


class Phase(Enum):
    """What is being read; see the module's head."""

    WAITING = auto()
    HEAD = auto()
    BODY = auto()
    OVER = auto()


class Connection(asyncio.Protocol):
    """See the module's head. Made by `HttpServer` for every socket accepted."""

    def __init__(self, server: HttpServer) -> None:
        self.server = server
        self.lost = False
        self.gone: asyncio.Future[None] | None = None  # made by an exchange that waits for the client to go
        self.deadline: float | None = None
        self.transport: asyncio.Transport
        self._phase = Phase.WAITING
        self._timed: Phase | None = None  # the phase the deadline is for
        self._parser = httptools.HttpRequestParser(self)
        self._queue: deque[Request] = deque()
        self._task: asyncio.Task[None] | None = None
        self._writable: asyncio.Future[None] | None = None
        self._half_closed = self._paused = False
        self._raw_bytes = 0
        self._target = b""
        self._headers: list[Header] = []
        self._body = bytearray()

    # What the transport says.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's are not of that class
        self._await(Phase.WAITING, self.server.limits.head_secs)
        self.server.joined(self)

    def data_received(self, data: bytes) -> None:
        self._raw_bytes += len(data)
        if self._phase is Phase.OVER:
            if self._raw_bytes > self.server.limits.body_bytes_max:
                self.transport.abort()  # whoever sends that much does not mean to read an answer
            return
        try:
            self._parser.feed_data(data)
            self._check_raw_bytes()
        except httptools.HttpParserUpgrade:
            pass  # the request was taken as the last, and is answered over HTTP/1.1
        except httptools.HttpParserCallbackError as error:
            if not isinstance(error.__context__, DomicileError):
                raise
            self.refuse(error.__context__)
        except httptools.HttpParserError:
            self.refuse(BadRequest("this is not HTTP/1.1"))
        except DomicileError as error:
            self.refuse(error)
        if self._queue:
            self._paused = True
            self.transport.pause_reading()
        elif self._task is None:
            self._watch()

    def eof_received(self) -> bool:
        self._half_closed, self._phase = True, Phase.OVER
        return self._task is not None  # what was asked is still answered

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self._phase = Phase.OVER
        self.server.left(self)
        for waiter in (self._writable, self.gone):
            _wake(waiter)

    def pause_writing(self) -> None:
        self._writable = self.server.loop.create_future()
        self.deadline = self.server.loop.time() + self.server.limits.write_secs

    def resume_writing(self) -> None:
        waiter, self._writable = self._writable, None
        self.deadline = None
        _wake(waiter)

    # What the parser says. What these raise comes out of `feed_data` as the context of a callback error.

    def on_message_begin(self) -> None:
        if len(self._queue) >= PIPELINED_MAX:
            raise BadRequest(f"at most {PIPELINED_MAX} requests may be pipelined")
        self._target = b""
        self._headers = []
        if self._body:
            self._body = bytearray()
        self._reads(Phase.HEAD)

    def on_url(self, piece: bytes) -> None:
        self._target += piece

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._phase is Phase.HEAD:  # and not a trailer
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self._reads(Phase.BODY)
        names = dict(self._headers)
        if b"host" not in names and self._parser.get_http_version() == "1.1":
            raise BadRequest("a request has a Host header")
        length = names.get(b"content-length", b"0")
        if length.isdigit() and int(length[:20]) > self.server.limits.body_bytes_max:
            raise too_large(self.server.limits.body_bytes_max)
        if names.get(b"expect", b"").lower() == b"100-continue" and self._task is None:
            self.transport.write(wire.CONTINUE)

    def on_body(self, piece: bytes) -> None:
        if len(self._body) + len(piece) > self.server.limits.body_bytes_max:
            raise too_large(self.server.limits.body_bytes_max)
        self._body += piece

    def on_message_complete(self) -> None:
        parser = self._parser
        last = not parser.should_keep_alive() or parser.should_upgrade() or parser.get_http_version() != "1.1"
        self._raw_bytes = 0
        self._reads(Phase.WAITING)
        self._take(Request(parser.get_method().decode("ascii"), self._target, self._headers, bytes(self._body), last))

    # Answers, one after the other.

    def _take(self, request: Request) -> None:
        if self._phase is Phase.OVER:
            return
        if request.last:
            self._phase = Phase.OVER
        if self._task is not None:
            self._queue.append(request)
            return
        self.deadline = self._timed = None
        self.server.answering.add(self)
        self._task = self.server.loop.create_task(self._answer(request))

    async def _answer(self, request: Request) -> None:
        """Answers `request` and those that wait behind it. Runs on when the client is gone; ends by itself."""
        app = self.server.app
        try:
            while True:
                if request.refused is not None:
                    self.reply(request, app.problems.render(request.refused))
                elif app.takes(request.method, path := request.target.partition(b"?")[0]):
                    self.reply(request, await app.call(path, request.headers, request.body))
                else:
                    await Exchange(self, request).run()
                await self.writable()
                if not self._queue:
                    break
                request = self._queue.popleft()
        finally:
            self._task = None
            self.server.answering.discard(self)
            self._answered(request)

    def _answered(self, request: Request) -> None:
        """What was read is answered: go on reading, or end."""
        if self.lost or self.transport.is_closing():
            self.server.left(self)
        elif request.refused is not None or self.server.stopping:
            self.linger()
        elif self._phase is Phase.OVER:
            self.transport.close()
        else:
            self._await(Phase.WAITING, self.server.limits.idle_secs)
            self._watch()
            self._resume()

    def reply(self, request: Request, reply: Reply) -> None:
        """Write a whole answer."""
        if not self.lost:
            close, bodiless = self.says_close(), request.method == "HEAD"
            self.transport.write(wire.whole(*reply, self.server.date, close=close, bodiless=bodiless))

    def says_close(self) -> bool:
        """Whether the answer about to be written is the last; if it is, nothing is taken any more."""
        if self._queue or not (self._phase is Phase.OVER or self.server.stopping):
            return False
        self._phase = Phase.OVER
        return True

    async def writable(self) -> None:
        """Returns when the transport takes more, or the client is gone."""
        if self._writable is not None and not self.lost:
            await self._writable

    # Endings.

    def late(self) -> None:
        """The deadline has passed."""
        if self._writable is not None:
            self.transport.abort()  # the client does not read what it asked for
        elif self._phase in (Phase.HEAD, Phase.BODY):
            self.refuse(RequestTimeout("the request was not whole in time"))
        else:
            self.transport.close()

    def refuse(self, error: DomicileError) -> None:
        """The request being read is answered with `error`, and is the last."""
        self._take(Request("", b"", [], b"", last=True, refused=error))

    def end_idle(self) -> None:
        """End the connection unless something is being read or answered."""
        if self._task is None and self._phase is Phase.WAITING:
            self.linger()

    def end_unread(self, error: DomicileError) -> None:
        """Refuse the request being read, if one is."""
        if self._task is None and self._phase in (Phase.HEAD, Phase.BODY):
            self.refuse(error)

    def linger(self) -> None:
        """Say that nothing follows, and wait until the client closes too: a reset could overtake the last answer."""
        self._await(Phase.OVER, self.server.limits.linger_secs)
        self._phase = Phase.OVER
        self._raw_bytes = 0
        if self.transport.can_write_eof() and not self._half_closed:
            self.transport.write_eof()
            self._resume()
        else:
            self.transport.close()

    def _check_raw_bytes(self) -> None:
        limits = self.server.limits
        if self._phase is Phase.HEAD and self._raw_bytes > limits.head_bytes_max:
            raise HeadTooLarge(f"a request's head is at most {limits.head_bytes_max} bytes")
        if self._raw_bytes > limits.head_bytes_max + CHUNKING_OVERHEAD * limits.body_bytes_max:
            raise too_large(limits.body_bytes_max)

    def _resume(self) -> None:
        if self._paused:
            self._paused = False
            self.transport.resume_reading()

    def _reads(self, phase: Phase) -> None:
        if self._phase is not Phase.OVER:
            self._phase = phase

    def _watch(self) -> None:
        """Set the deadline of the phase that reading is in, once."""
        if self._phase is not self._timed and self._phase in (Phase.HEAD, Phase.BODY):
            limits = self.server.limits
            self._await(self._phase, limits.head_secs if self._phase is Phase.HEAD else limits.body_secs)

    def _await(self, phase: Phase, secs: float) -> None:
        self._timed = phase
        self.deadline = self.server.loop.time() + secs


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)
