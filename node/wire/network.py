"""TCP, with TLS on top where it is configured. The simulation has a network of its own."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import NamedTuple, Protocol

ProtocolFactory = Callable[[], asyncio.BufferedProtocol]
BACKLOG = 256


class PeerTls(NamedTuple):
    """Contexts for both roles; both check the other end's certificate."""

    dialer: ssl.SSLContext
    listener: ssl.SSLContext


class Listener(Protocol):
    """An address being listened on."""

    address: str

    def close(self) -> None:
        """Accept no more; what is accepted stays."""
        ...


class Network(Protocol):
    """How connections come about. Addresses are "host:port", IPv6 hosts in brackets."""

    async def dial(self, factory: ProtocolFactory, address: str) -> None:
        """Returns when the factory's protocol has its transport. Raises OSError (TLS included)."""
        ...

    async def listen(self, factory: ProtocolFactory, address: str) -> Listener:
        """Port 0 takes a free one. Raises OSError."""
        ...


class TcpNetwork:
    """The machine's. The loop, asyncio's or uvloop's, sets TCP_NODELAY on every connection."""

    def __init__(self, loop: asyncio.AbstractEventLoop, tls: PeerTls | None = None) -> None:
        self._loop, self._tls = loop, tls

    async def dial(self, factory: ProtocolFactory, address: str) -> None:
        host, port = split(address)
        context = self._tls.dialer if self._tls else None
        name = host if context else None
        try:
            await self._loop.create_connection(factory, host, port, ssl=context, server_hostname=name)
        except UnicodeError as error:
            raise OSError(f"{host!r} is no host name: {error}") from None

    async def listen(self, factory: ProtocolFactory, address: str) -> Listener:
        host, port = split(address)
        context = self._tls.listener if self._tls else None
        server = await self._loop.create_server(factory, host, port, ssl=context, backlog=BACKLOG)
        return TcpListener(server, host)


class TcpListener:
    """What `TcpNetwork.listen` gives."""

    def __init__(self, server: asyncio.AbstractServer, host: str) -> None:
        self._server = server
        shown = f"[{host}]" if ":" in host else host
        self.address = f"{shown}:{server.sockets[0].getsockname()[1]}"  # type: ignore[attr-defined]

    def close(self) -> None:
        self._server.close()


def split(address: str) -> tuple[str, int]:
    """Host without brackets, and port. Raises OSError when it is no address."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise OSError(f"{address!r} is not host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)
