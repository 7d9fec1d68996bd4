"""The HTTP/1.1 server: listens, keeps its connections within bounds, stops in order (field case 101).

Own, since a general ASGI server costs several times the CPU a request of the call route, bounds neither heads nor the
time they take, and writes an answer in two pieces.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from email.utils import formatdate
from typing import Protocol

from domicile.errors import NotServing, Overloaded
from domicile.node.clock import Clock
from domicile.node.http import wire
from domicile.node.http.body import Message, Receive, Send
from domicile.node.http.connection import Connection
from domicile.node.problems import Header, Problems, Reply

BACKLOG = 2048


class Application(Protocol):
    """What is served: an ASGI app with a short way for some requests."""

    problems: Problems

    def takes(self, method: str, raw_path: bytes) -> bool: ...

    def call(self, raw_path: bytes, headers: Iterable[Header], body: bytes) -> Awaitable[Reply]: ...

    def __call__(self, scope: Message, receive: Receive, send: Send) -> Awaitable[None]: ...


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Bounds of a server: what each stops is beside it."""

    body_bytes_max: int
    head_bytes_max: int = 64 << 10  # heads without end
    head_secs: float = 10.0  # heads a byte at a time, connections that say nothing
    body_secs: float = 30.0  # bodies a byte at a time
    idle_secs: float = 75.0  # kept connections nobody uses
    write_secs: float = 30.0  # answers nobody reads
    linger_secs: float = 2.0  # clients that do not close after the last answer
    stop_idle_secs: float = 0.5  # at stop: how long an idle connection may still bring a request, and be told
    connections_max: int = 10_000  # descriptors
    tick_secs: float = 0.25  # how exact the times above are


class HttpServer:
    """A listening server; make with `serve`, end with `stop`. `address` is what it listens on."""

    def __init__(self, app: Application, clock: Clock, limits: Limits, loop: asyncio.AbstractEventLoop) -> None:
        self.app = app
        self.limits = limits
        self.loop = loop
        self.stopping = False
        self.date = b""
        self.address: tuple[str, int] = ("", 0)
        self.answering: set[Connection] = set()  # keeps the tasks of clients that are gone
        self._connections: set[Connection] = set()
        self._clock = clock
        self._listener: asyncio.Server | None = None
        self._ticker: asyncio.TimerHandle | None = None
        self._quiet: asyncio.Future[None] | None = None

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None) -> None:
        """Raises OSError when the address cannot be had."""
        self._tick()
        self._listener = await self.loop.create_server(lambda: Connection(self), host, port, backlog=BACKLOG, ssl=tls)
        self.address = self._listener.sockets[0].getsockname()[:2]

    async def stop(self, grace_secs: float) -> int:
        """Stop accepting, answer what was read, close. Gives the number of connections cut with an answer owing.

        Every answer from here on says that its connection closes. A connection without a request has a moment to
        bring one (clients that send back to back then read their answer, not a reset), a request still arriving at
        the end of `grace_secs` is refused, one still being answered is cut. Cancel this to cut at once.
        """
        self.stopping = True
        if self._listener is not None:
            self._listener.close()
        try:
            await self._until_quiet(min(grace_secs, self.limits.stop_idle_secs))
            self._each(Connection.end_idle)
            await self._until_quiet(grace_secs - self.limits.stop_idle_secs)
            self._each(lambda connection: connection.end_unread(NotServing("the node is stopping")))
            if self._connections:
                await self._until_quiet(self.limits.linger_secs)
        finally:
            owing = len(self.answering)
            self._each(lambda connection: connection.transport.abort())
            if self._ticker is not None:
                self._ticker.cancel()
        return owing

    def joined(self, connection: Connection) -> None:
        """A connection was made."""
        self._connections.add(connection)
        if len(self._connections) > self.limits.connections_max:
            connection.refuse(Overloaded("the node has as many connections as it takes"))

    def left(self, connection: Connection) -> None:
        """A connection is lost, or its last answer is done."""
        self._connections.discard(connection)
        if self._quiet is not None and not self._quiet.done() and self._is_quiet():
            self._quiet.set_result(None)

    def _is_quiet(self) -> bool:
        return not self._connections and not self.answering

    async def _until_quiet(self, secs: float) -> None:
        if self._is_quiet() or secs <= 0:
            return
        self._quiet = self.loop.create_future()
        await asyncio.wait([self._quiet], timeout=secs)

    def _each(self, do: Callable[[Connection], None]) -> None:
        for connection in list(self._connections):
            do(connection)

    def _tick(self) -> None:
        now = self.loop.time()
        self.date = wire.date_line(formatdate(self._clock.wall_ms() / 1000, usegmt=True))
        for connection in [c for c in self._connections if c.deadline is not None and c.deadline < now]:
            connection.late()
        self._ticker = self.loop.call_later(self.limits.tick_secs, self._tick)


async def serve(
    app: Application, listen: str, clock: Clock, limits: Limits, tls: ssl.SSLContext | None = None
) -> HttpServer:
    """Listen on `host:port` (port 0: a free one). Raises OSError when the address cannot be had."""
    host, _, port = listen.rpartition(":")
    server = HttpServer(app, clock, limits, asyncio.get_running_loop())
    await server.listen(host.strip("[]"), int(port), tls)
    return server
