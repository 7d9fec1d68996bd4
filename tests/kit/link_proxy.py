"""A TCP proxy on the loop of the test: it can swallow answers, or cut and refuse connections."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator


class LinkProxy:
    """Stands before one server. What was swallowed is lost for good: cut before going on."""

    def __init__(self, target: str) -> None:
        host, port = target.split(":")
        self._target = host, int(port)
        self._open: set[asyncio.StreamWriter] = set()
        self._pumps: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.swallowing = False
        self.refusing = False
        self.connections = 0
        self.endpoint = ""

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.endpoint = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def cut(self) -> None:
        """Every connection ends, mid-word."""
        for writer in self._open:
            writer.transport.abort()
        self._open.clear()
        self.swallowing = False

    async def stop(self) -> None:
        assert self._server is not None
        self.cut()
        self._server.close()
        for pump in list(self._pumps):
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refusing:
            writer.transport.abort()
            return
        self.connections += 1
        try:
            there, back = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        self._open |= {writer, back}
        for source, sink, answers in ((reader, back, False), (there, writer, True)):
            pump = asyncio.ensure_future(self._pump(source, sink, answers))
            self._pumps.add(pump)
            pump.add_done_callback(self._pumps.discard)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, answers: bool) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(1 << 16):
                if not (answers and self.swallowing):
                    sink.write(data)
                    await sink.drain()
        sink.transport.abort()


@contextlib.asynccontextmanager
async def proxied(target: str) -> AsyncIterator[LinkProxy]:
    """A proxy before `target`, host:port."""
    proxy = LinkProxy(target)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.stop()
