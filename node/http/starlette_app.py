"""A table of resources as a Starlette app: whatever a handler raises becomes a problem document (API, "HTTP")."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from domicile.node.http.body import DisconnectedError
from domicile.node.problems import MethodNotAllowed, NoSuchRoute, Problems, Reply


class HasProblems(Protocol):
    """What every surface has."""

    problems: Problems


Handler = Callable[[Any, Request], Awaitable[Response]]
"""Takes the surface and the request, gives the response or raises."""

Resources = Sequence[tuple[str, dict[str, Handler]]]
"""Paths, and for each the handlers by HTTP method."""


def starlette_app(surface: HasProblems, resources: Resources) -> Starlette:
    """Expects the raw path as `scope["path"]`."""

    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code == 405:
            return _reply(surface.problems.render(MethodNotAllowed((error.headers or {}).get("Allow", ""))))
        return _reply(surface.problems.render(NoSuchRoute()))

    app = Starlette(
        routes=[Route(at, _endpoint(surface, by), methods=list(by)) for at, by in resources],
        exception_handlers={HTTPException: refused},
    )
    app.router.redirect_slashes = False
    return app


def raw(request: Request, parameter: str) -> bytes:
    """A path parameter, still percent-encoded."""
    encoded: str = request.path_params[parameter]
    return encoded.encode("latin-1")


def encode(value: Any) -> bytes:
    """JSON; what it has no word for as text."""
    return msgspec.json.encode(value, enc_hook=str)


def response(status: int, headers: Any, body: bytes) -> Response:
    """With exactly these headers, and the length."""
    answer = Response(body, status_code=status)
    answer.raw_headers = [*headers, (b"content-length", b"%d" % len(body))]
    return answer


def _endpoint(surface: HasProblems, by_method: dict[str, Handler]) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        handler = by_method["GET" if request.method == "HEAD" else request.method]
        try:
            return await handler(surface, request)
        except DisconnectedError:
            return Response(status_code=400)  # reaches nobody
        except Exception as error:  # noqa: BLE001 - the boundary: what is not in the tree is logged and named an error
            return _reply(surface.problems.render(error))

    return endpoint


def _reply(reply: Reply) -> Response:
    return response(reply.status, reply.headers, reply.body)
