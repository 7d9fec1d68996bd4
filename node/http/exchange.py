"""One request given to the ASGI app: the routes that are not the call's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import httptools

from domicile.errors import BadRequest, DomicileError
from domicile.node.http import wire
from domicile.node.http.body import Message
from domicile.node.problems import Header, Reply

if TYPE_CHECKING:
    from domicile.node.http.connection import Connection


@dataclass(slots=True)
class Request:
    """A request as read. `last`: none is taken after it. `refused`: what is wrong with it; answered in its turn."""

    method: str
    target: bytes
    headers: list[Header]
    body: bytes
    last: bool
    refused: DomicileError | None = None


class Exchange:
    """Runs the app for one request and writes what it sends, whole if it comes whole, chunked otherwise."""

    def __init__(self, connection: Connection, request: Request) -> None:
        self._connection = connection
        self._request = request
        self._given = False
        self._start: Message | None = None
        self._streaming = False
        self._chunked = False
        self._complete = False

    async def run(self) -> None:
        """Returns when the answer is written. What the app raises becomes a problem, or ends the connection."""
        app = self._connection.server.app
        try:
            await app(self._scope(), self._receive, self._send)
            if not self._complete:
                raise RuntimeError("the app returned without an answer")
        except Exception as error:  # noqa: BLE001 - the boundary: what is not in the tree is logged and named an error
            reply = app.problems.render(error)
            if self._streaming:
                self._connection.transport.abort()  # half an answer must not look like a whole one
            elif not self._complete:
                self._connection.reply(self._request, reply)

    def _scope(self) -> dict[str, Any]:
        request = self._request
        try:
            url = httptools.parse_url(request.target)
        except httptools.HttpParserInvalidURLError:
            raise BadRequest("the request's target is no path") from None
        if b"#" in request.target:
            raise BadRequest("a # in a path is percent-encoded: %23")
        raw_path = url.path or b"/"
        transport = self._connection.transport
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "method": request.method,
            "scheme": "https" if transport.get_extra_info("sslcontext") else "http",
            "root_path": "",
            "path": unquote(raw_path.decode("latin-1")),
            "raw_path": raw_path,
            "query_string": url.query or b"",
            "headers": request.headers,
            "client": _address(transport.get_extra_info("peername")),
            "server": _address(transport.get_extra_info("sockname")),
        }

    async def _receive(self) -> Message:
        if not self._given:
            self._given = True
            return {"type": "http.request", "body": self._request.body, "more_body": False}
        connection = self._connection
        if not connection.lost:
            if connection.gone is None:
                connection.gone = connection.server.loop.create_future()
            await connection.gone
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start = message
            return
        assert self._start is not None, "ASGI: a start goes before a body"
        assert not self._complete, "ASGI: nothing follows a body without more_body"
        body: bytes = message.get("body", b"")
        more: bool = message.get("more_body", False)
        if not self._streaming and not more:
            self._write_whole(body)
        else:
            self._write_piece(body, more=more)
            await self._connection.writable()
        self._complete = not more

    def _write_whole(self, body: bytes) -> None:
        assert self._start is not None
        headers = [header for header in self._start["headers"] if header[0] != b"content-length"]
        self._connection.reply(self._request, Reply(self._start["status"], headers, body))

    def _write_piece(self, body: bytes, *, more: bool) -> None:
        connection, bodiless = self._connection, self._request.method == "HEAD"
        if connection.lost:
            return
        if not self._streaming:
            assert self._start is not None
            self._streaming = True
            status, headers = self._start["status"], self._start["headers"]
            self._chunked = all(name != b"content-length" for name, _ in headers)
            close = connection.says_close()
            date = connection.server.date
            head = wire.streamed_head(status, headers, date, close=close, chunked=self._chunked)
            connection.transport.write(head)
        if not bodiless:
            last = wire.LAST_CHUNK if self._chunked and not more else b""
            connection.transport.write((wire.chunk(body) if self._chunked else body) + last)


def _address(name: Any) -> tuple[str, int] | None:
    return (name[0], name[1]) if isinstance(name, tuple) else None
