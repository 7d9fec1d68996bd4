"""Nodes that talk over real sockets on loopback, proxies that misbehave between them, and certificates."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
import uvloop
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from domicile.node.clock import SystemClock
from domicile.node.errors import BlobMissing
from domicile.node.peers import Peers
from domicile.node.values import Answer, Call
from domicile.node.wire.codec import VERSIONS, Versions
from domicile.node.wire.hello import Identity, Speaker
from domicile.node.wire.limits import Limits
from domicile.node.wire.messages import (
    Answered,
    Append,
    Dropped,
    Fence,
    FenceAnswer,
    FetchChunk,
    FetchLog,
    Holds,
    Hops,
    Said,
    Watermark,
)
from domicile.node.wire.network import PeerTls, TcpNetwork
from domicile.node.wire.server import PeerServer
from domicile.node.wire.wiring import Wiring
from domicile.placement.records import Epoch, Generation

T = TypeVar("T")
EPOCH = Epoch(1, 7)
GENERATION = Generation(EPOCH, 0)
SECRET = b"0123456789abcdef"
QUICK = Limits(hello_secs=0.5, ping_secs=0.05, dead_secs=0.4, redial_secs=(0.02, 0.1))


def append(number: int, frames: bytes = b"f" * 100, name: bytes = b"a") -> Append:
    return Append(name * 32, Epoch(0, 0), EPOCH, GENERATION, number, b"c" * 16, frames)


class Lines:
    """A log that keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, dict[str, Any]]] = []

    def info(self, event: str, **fields: Any) -> None:
        self.told.append((event, fields))

    warning = error = info

    def why(self, event: str) -> list[str]:
        return [fields["why"] for name, fields in self.told if name == event]


class Handler:
    """Takes appends: answers at once, or when `hold` is set keeps them in `held`. Does little for other requests."""

    def __init__(self) -> None:
        self.batches: list[list[tuple[Speaker, Said]]] = []
        self.hold = False
        self.held: list[tuple[Callable[[Answered], None], Append]] = []
        self.calls: list[tuple[Call, Hops]] = []
        self.on_call: Callable[[Call], Awaitable[bytes]] | None = None

    @property
    def heard(self) -> list[Said]:
        return [message for batch in self.batches for _, message in batch]

    def said(self, messages: Sequence[tuple[Speaker, Said, Callable[[Answered], None]]]) -> None:
        self.batches.append([(speaker, message) for speaker, message, _ in messages])
        for _, message, heard in messages:
            if isinstance(message, Append):
                self.held.append((heard, message))
            else:
                heard(Watermark(None))
        if not self.hold:
            self.release()

    def release(self) -> None:
        held, self.held = self.held, []
        for heard, message in held:
            heard(Holds(message.incarnation, message.generation, message.offset + len(message.frames)))

    async def fence(self, fence: Fence) -> FenceAnswer:
        return FenceAnswer("copy", fence.epoch, None)

    async def fetch_log(self, fetch: FetchLog) -> bytes:
        return bytes(i % 251 for i in range(fetch.start, fetch.end))

    async def fetch_chunk(self, fetch: FetchChunk) -> bytes:
        raise BlobMissing(f"no chunk {fetch.index}")

    async def dropped(self, dropped: Dropped) -> None:
        self.batches.append([])

    async def call(self, call: Call, hops: Hops) -> Answer:
        self.calls.append((call, hops))
        body = call.body if self.on_call is None else await self.on_call(call)
        return Answer(body, EPOCH, "replica", "c")

    async def ask(self, method: str, body: bytes) -> bytes:
        return method.encode() + b":" + body


class Proxy:
    """Passes bytes on until told otherwise. `address` is where to connect."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.flows = asyncio.Event()
        self.flows.set()
        self.accepted = 0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        host, port = self._target.split(":")
        far_reader, far_writer = await asyncio.open_connection(host, int(port))
        self._writers |= {writer, far_writer}
        for source, sink in ((reader, far_writer), (far_reader, writer)):
            task = asyncio.create_task(self._pass(source, sink))
            self._tasks.add(task)

    async def _pass(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(1 << 16):
                await self.flows.wait()
                sink.write(data)
                await sink.drain()
            sink.close()
        except OSError:
            sink.close()

    def cut(self) -> None:
        """Reset every connection."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    def half_close(self) -> None:
        """Say that no more will come, in both directions."""
        for writer in self._writers:
            writer.write_eof()

    async def stop(self) -> None:
        self._server.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class Ends:
    """Makes nodes; `stop` ends all of them."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.log = Lines()
        self._stops: list[Callable[[], Awaitable[None]]] = []

    def wiring(
        self,
        name: str,
        *,
        cluster: str = "home",
        secret: bytes = SECRET,
        limits: Limits = QUICK,
        versions: Versions = VERSIONS,
        tls: PeerTls | None = None,
    ) -> Wiring:
        me = Identity(cluster, name, f"copy-{name}", f"{name}:1", secret)
        network = TcpNetwork(self.loop, tls)
        return Wiring(self.loop, network, lambda: me, os.urandom, SystemClock(), self.log, limits, versions)

    async def serve(
        self, name: str = "b", address: str = "127.0.0.1:0", **more: Any
    ) -> tuple[str, Handler, PeerServer]:
        handler = Handler()
        server = PeerServer(self.wiring(name, **more), handler)
        self._stops.append(server.stop)
        return await server.listen(address), handler, server

    def peers(self, name: str = "a", **more: Any) -> Peers:
        peers = Peers(self.wiring(name, **more))
        self._stops.append(peers.close)
        return peers

    async def proxy(self, target: str) -> Proxy:
        proxy = Proxy(target)
        await proxy.start()
        self._stops.append(proxy.stop)
        return proxy

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait for something that another turn of the loop brings about."""
        while not condition():
            await asyncio.wait([self.loop.create_future()], timeout=0.002)

    async def stop(self) -> None:
        for stop in reversed(self._stops):
            await stop()
        await asyncio.sleep(0)


@pytest.fixture
def between() -> Callable[[Callable[[Ends], Awaitable[T]]], T]:
    """Runs a story on uvloop, then ends everything it made; errors nobody handled fail it."""

    def run(story: Callable[[Ends], Awaitable[T]]) -> T:
        async def main() -> T:
            unhandled: list[dict[str, Any]] = []
            asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
            ends = Ends()
            try:
                async with asyncio.timeout(20):
                    return await story(ends)
            finally:
                await ends.stop()
                assert not unhandled

        return uvloop.run(main())

    return run


@pytest.fixture
def make_append() -> Callable[..., Append]:
    return append


@pytest.fixture
def quick() -> Callable[..., Limits]:
    """Limits in which a dead flow is noticed in half a second, with changes."""
    return lambda **more: replace(QUICK, **more)


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[str, str, str]]:
    """Makes the three files of a node: (authority, certificate, key). Nodes of one `authority` trust each other."""
    base = tmp_path_factory.mktemp("certificates")
    authorities: dict[str, tuple[x509.Certificate, ec.EllipticCurvePrivateKey]] = {}

    def make(authority: str = "ours", host: str = "127.0.0.1") -> tuple[str, str, str]:
        if authority not in authorities:
            key = ec.generate_private_key(ec.SECP256R1())
            extension = x509.BasicConstraints(ca=True, path_length=None)
            authorities[authority] = _signed(authority, key, authority, key, extension), key
        ca, ca_key = authorities[authority]
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(host))])
        certificate = _signed("node", key, authority, ca_key, names)
        folder = base / f"{authority}-{host}"
        folder.mkdir(exist_ok=True)
        return (
            _written(folder / "ca.pem", ca.public_bytes(serialization.Encoding.PEM)),
            _written(folder / "cert.pem", certificate.public_bytes(serialization.Encoding.PEM)),
            _written(
                folder / "key.pem",
                key.private_bytes(
                    serialization.Encoding.PEM,
                    serialization.PrivateFormat.PKCS8,
                    serialization.NoEncryption(),
                ),
            ),
        )

    return make


def _signed(
    subject: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: str,
    issuer_key: ec.EllipticCurvePrivateKey,
    extension: x509.ExtensionType,
) -> x509.Certificate:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(extension, critical=False)
        .sign(issuer_key, hashes.SHA256())
    )


def _written(path: Path, data: bytes) -> str:
    path.write_bytes(data)
    return str(path)
