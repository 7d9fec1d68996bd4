"""A node's HTTP surface over a node that is a dictionary, on a real socket."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import msgspec
import pytest
import uvloop

from domicile.errors import BadArguments, MethodFailed, NoSuchMethod, NoSuchObject, NoSuchProject, StaleIncarnation
from domicile.node.app import App
from domicile.node.clock import SystemClock
from domicile.node.http.server import HttpServer, Limits, serve
from domicile.node.values import Answer, BatchItem, Call
from domicile.placement.records import FIRST_INCARNATION, ClassRow, Epoch, Incarnation, ObjectKey, ProjectRow
from domicile.placement.regions import check_region


class MemoryFront:
    """Objects that remember what was `put` into them; `calls` are all that ran, `wait` blocks until `release`."""

    def __init__(self) -> None:
        self.node_id = "n1"
        self.admitted = True
        self.objects: dict[ObjectKey, Any] = {}
        self.projects: dict[str, ProjectRow] = {}
        self.calls: list[Call] = []
        self.finished = 0
        self.started = threading.Event()
        self.release = threading.Event()

    async def call(self, call: Call) -> Answer:
        self.calls.append(call)
        try:
            args = msgspec.json.decode(call.body) if call.body else []
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise BadArguments(f"not JSON: {error}") from None
        if not isinstance(args, list | dict):
            raise BadArguments("arguments are an array or an object")
        return Answer(msgspec.json.encode(await self._run(call, args)), Epoch(1, 7))

    async def _run(self, call: Call, args: Any) -> Any:
        if call.key.cls == "Database" or call.method == "echo":
            return args
        if call.method == "put":
            self.objects[call.key] = args
            return len(self.objects)
        if call.method == "get":
            return self.objects.get(call.key)
        if call.method == "fail":
            raise MethodFailed("ValueError: no", type="ValueError", message="no \ud800")
        if call.method == "crash":
            raise ZeroDivisionError("secret detail")
        if call.method == "wait":
            self.started.set()
            await asyncio.to_thread(self.release.wait, 10)
            self.finished += 1
            return "waited"
        raise NoSuchMethod(f"no method {call.method}")

    async def delete(self, key: ObjectKey, if_match: Incarnation | None, idempotency_key: str | None) -> Epoch:
        if if_match not in (None, FIRST_INCARNATION):
            raise StaleIncarnation("another life")
        if self.objects.pop(key, None) is None:
            raise NoSuchObject(f"no object {key}")
        return Epoch(1, 9)

    async def batch(self, project: str, items: Sequence[BatchItem], deadline: float) -> list[Answer | Exception]:
        calls = [Call(ObjectKey(project, i.cls, i.name), i.method, i.body, deadline, i.idempotency_key) for i in items]
        return list(await asyncio.gather(*map(self.call, calls), return_exceptions=True))  # type: ignore[arg-type]

    async def list_objects(self, project: str, cls: str | None, prefix: str, token: str | None) -> dict[str, Any]:
        keys = [key for key in self.objects if key.scope == project and key.name.startswith(prefix)]
        found = [{"class": key.cls, "name": key.name, "id": key.id} for key in keys if cls in (None, key.cls)]
        return {"objects": found, "token": None}

    async def describe(self, key: ObjectKey) -> dict[str, Any]:
        if key not in self.objects:
            raise NoSuchObject(f"no object {key}")
        return {"node": self.node_id, "epoch": str(Epoch(1, 7))}

    async def project(self, project: str) -> ProjectRow:
        if project not in self.projects:
            raise NoSuchProject(f"no project {project}")
        return self.projects[project]

    async def list_projects(self) -> dict[str, ProjectRow]:
        return self.projects

    async def put_project(self, project: str, region: str | None, on_incident: str | None) -> ProjectRow:
        self.projects[project] = ProjectRow(region or "local", 1, on_incident or "serve")
        return self.projects[project]

    async def repin(self, project: str, cls: str, pin: str | None) -> ClassRow:
        return ClassRow(pin, 2)

    async def cluster(self) -> dict[str, Any]:
        return {"nodes": [self.node_id], "regions": [{"name": "local"}, {"name": "far"}]}

    async def is_region(self, name: str) -> bool:
        check_region(name)
        return name in ("local", "far")

    async def incident_database(self, object_id: str, epoch: str) -> bytes:
        return b"SQLite format 3\0"

    async def incidents(self) -> list[dict[str, Any]]:
        return []

    def now(self) -> float:
        return SystemClock().monotonic()

    def ready(self) -> bool:
        return self.admitted


@dataclass
class RecordingLog:
    """Keeps what was logged."""

    events: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def error(self, event: str, **fields: Any) -> None:
        self.events.append((event, fields))


@dataclass
class Running:
    """A server on its own thread, and ways to talk to it."""

    server: HttpServer
    front: MemoryFront
    log: RecordingLog
    loop: asyncio.AbstractEventLoop

    @property
    def url(self) -> str:
        host, port = self.server.address
        return f"http://{host}:{port}"

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, trust_env=False, timeout=60)

    def connect(self) -> socket.socket:
        return socket.create_connection(self.server.address, timeout=60)

    def exchange(self, raw: bytes) -> bytes:
        """Send these bytes, and everything that comes back until the server closes."""
        with self.connect() as sock:
            with contextlib.suppress(ConnectionError):  # refused while still sending
                sock.sendall(raw)
            return read_all(sock)

    def stop(self, grace_secs: float) -> int:
        return asyncio.run_coroutine_threadsafe(self.server.stop(grace_secs), self.loop).result(60)


def read_all(sock: socket.socket) -> bytes:
    got = bytearray()
    while piece := sock.recv(65536):
        got += piece
    return bytes(got)


Start = Callable[..., Running]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts servers with limits of the test's choosing; they end with it."""
    with contextlib.ExitStack() as stack:
        yield lambda **limits: stack.enter_context(running(**limits))


@pytest.fixture(scope="module")
def http() -> Iterator[Running]:
    """A server with ordinary limits, shared by a module's tests."""
    with running() as shared:
        yield shared


class Routed(App):
    """The app with another ASGI app behind everything but calls."""

    def __init__(self, app: App, asgi: Any) -> None:
        self.__dict__.update(app.__dict__)
        self._rest = asgi


@contextlib.contextmanager
def running(asgi: Any = None, **limits: Any) -> Iterator[Running]:
    front, log = MemoryFront(), RecordingLog()
    bounds = Limits(**{"body_bytes_max": 10 << 20, "tick_secs": 0.02, **limits})
    app = App(front, log, lambda: b"# metrics\n", body_bytes_max=bounds.body_bytes_max, deadline_secs=30)
    if asgi is not None:
        app = Routed(app, asgi)
    loop = uvloop.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        server = asyncio.run_coroutine_threadsafe(serve(app, "127.0.0.1:0", SystemClock(), bounds), loop).result(60)
        yield Running(server, front, log, loop)
        front.release.set()
        asyncio.run_coroutine_threadsafe(server.stop(0.0), loop).result(60)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
