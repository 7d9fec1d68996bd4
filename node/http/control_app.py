"""The control process's HTTP surface: operations, and whether it is there (API, "HTTP")."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from domicile.node.http.body import Message, Receive, Send, read_body
from domicile.node.http.headers import JSON, Header
from domicile.node.http.operation_routes import OPERATION_RESOURCES
from domicile.node.http.starlette_app import Resources, encode, response, starlette_app
from domicile.node.operations import Operations
from domicile.node.problems import Log, Problems, Reply
from domicile.placement.regions import check_region

BODY_BYTES_MAX = 1 << 20
NAME = "control"


class ControlApp:
    """An application for the node's own server; it has no short way for calls, since it has no objects."""

    def __init__(self, operations: Operations, log: Log, regions: Callable[[], Awaitable[Collection[str]]]) -> None:
        """`regions`: those that have registered."""
        self.operations = operations
        self.regions = regions
        self.problems = Problems(log, lambda: NAME)
        self._app: ASGIApp = starlette_app(self, (*OPERATION_RESOURCES, *_OWN))

    async def is_region(self, name: str) -> bool:
        """Asked of control each time. Raises BadName, NotServing."""
        check_region(name)
        return name in await self.regions()

    def takes(self, method: str, raw_path: bytes) -> bool:
        """None: there is no short way."""
        return False

    async def call(self, raw_path: bytes, headers: Iterable[Header], body: bytes) -> Reply:
        """Never asked: see `takes`."""
        raise NotImplementedError

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        scope = {**scope, "path": scope["raw_path"].decode("latin-1"), "root_path": ""}
        await self._app(scope, receive, send)

    async def body(self, request: Request) -> bytes:
        """The request's whole body, within the bound."""
        return await read_body(request.receive, BODY_BYTES_MAX)

    def json(self, value: object) -> Response:
        """A result."""
        return response(200, (JSON, (b"domicile-node", NAME.encode())), encode(value))


async def _healthz(surface: ControlApp, request: Request) -> Response:
    return surface.json({"ok": True})


async def _readyz(surface: ControlApp, request: Request) -> Response:
    """Ready is who reaches Temporal. Raises NotServing."""
    await surface.operations.client()
    return surface.json({"ready": True})


_OWN: Resources = (("/healthz", {"GET": _healthz}), ("/readyz", {"GET": _readyz}))
