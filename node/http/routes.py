"""Every route but the call's: what it reads, which method of `Front` it asks, how the answer is written (API, "HTTP").

`RESOURCES` is the table; a handler takes the request and gives the response. Path parameters arrive still
percent-encoded and are decoded once, by `path`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import parse_qsl

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from domicile.errors import BadName, BadRequest, NoSuchMethod, NotServing
from domicile.node.http import path
from domicile.node.http.bodies import BATCH_MAX, BatchLine, ProjectPolicy, decode_json, statement_body
from domicile.node.http.body import DisconnectedError, read_body
from domicile.node.http.headers import JSON, Options, answer_head, check_key, read_options
from domicile.node.openapi import DOCUMENT
from domicile.node.problems import MethodNotAllowed, NoSuchRoute, Problems, Reply
from domicile.node.values import Answer, BatchItem, Call, Front
from domicile.placement.records import CLASS_RE, ObjectKey, ProjectRow, check_scope

DATABASE_CLASS = "Database"
DATABASE_METHODS = frozenset({"exec", "query", "query_one", "read", "read_one", "batch"})
QUERY_FIELDS_MAX = 20

Handler = Callable[["Surface", Request], Awaitable[Response]]


class Surface:
    """The handlers, and what they share."""

    def __init__(
        self,
        front: Front,
        problems: Problems,
        metrics: Callable[[], bytes],
        body_bytes_max: int,
        deadline_secs: float,
    ) -> None:
        self.front = front
        self.problems = problems
        self._metrics = metrics
        self._body_bytes_max = body_bytes_max
        self._deadline_secs = deadline_secs

    async def list_objects(self, request: Request) -> Response:
        project = path.decode_segment(_raw(request, "project"))
        check_scope(project)
        query = _query(request, {"class", "prefix", "token"})
        cls = query.get("class")
        if cls is not None and not CLASS_RE.fullmatch(cls):
            raise BadName(f"{cls!r} is not a class name: an identifier of at most 64 characters")
        found = await self.front.list_objects(project, cls, query.get("prefix", ""), query.get("token"))
        return self._json(found)

    async def describe(self, request: Request) -> Response:
        return self._json(await self.front.describe(_object(request)))

    async def delete(self, request: Request) -> Response:
        options = self._options(request)
        epoch = await self.front.delete(_object(request), options.if_match, options.idempotency_key)
        return _response(200, answer_head(self.front.node_id, epoch, "owner"), _encode({"epoch": str(epoch)}))

    async def call_never(self, request: Request) -> Response:
        """Stands in the table for the route `App.call` answers, so that other HTTP methods are 405."""
        raise NoSuchRoute

    async def database(self, request: Request) -> Response:
        raw_name = _raw(request, "name")
        key = path.object_key(_raw(request, "project"), DATABASE_CLASS.encode(), raw_name)
        method = path.method_name(_raw(request, "method"))
        if method not in DATABASE_METHODS:
            raise NoSuchMethod(f"a database has the methods {', '.join(sorted(DATABASE_METHODS))}")
        options = self._options(request)
        body = statement_body(method, await self._body(request))
        deadline = self.front.now() + options.timeout_secs
        call = Call(key, method, body, deadline, options.idempotency_key, options.if_match, (), options.trace)
        answer = await self.front.call(call)
        head = answer_head(answer.node or self.front.node_id, answer.epoch, answer.served_by)
        return _response(200, head, answer.body)

    async def batch(self, request: Request) -> Response:
        project = path.decode_segment(_raw(request, "project"))
        check_scope(project)
        options = self._options(request)
        lines = decode_json(await self._body(request), list[BatchLine])
        if len(lines) > BATCH_MAX:
            raise BadRequest(f"a batch has at most {BATCH_MAX} calls, this one has {len(lines)}")
        items = [_item(project, number, line) for number, line in enumerate(lines)]
        answers = await self.front.batch(project, items, self.front.now() + options.timeout_secs)
        return _response(200, (JSON, self._node_header()), b"[" + b",".join(map(self._line, answers)) + b"]")

    def _line(self, answer: Answer | Exception) -> bytes:
        if isinstance(answer, Answer):
            return b'{"result":' + answer.body + b"}"
        return b'{"problem":' + self.problems.render(answer).body + b"}"

    async def list_projects(self, request: Request) -> Response:
        found = await self.front.list_projects()
        return self._json({"projects": [_project(project, row) for project, row in sorted(found.items())]})

    async def get_project(self, request: Request) -> Response:
        project = path.project_id(_raw(request, "project"))
        return self._json(_project(project, await self.front.project(project)))

    async def put_project(self, request: Request) -> Response:
        project = path.project_id(_raw(request, "project"))
        self._options(request)
        policy = decode_json(await self._body(request) or b"{}", ProjectPolicy)
        row = await self.front.put_project(project, policy.region, policy.on_incident)
        return self._json(_project(project, row))

    async def cluster(self, request: Request) -> Response:
        return self._json(await self.front.cluster())

    async def incidents(self, request: Request) -> Response:
        return self._json({"incidents": await self.front.incidents()})

    async def healthz(self, request: Request) -> Response:
        return self._json({"ok": True})

    async def readyz(self, request: Request) -> Response:
        if not self.front.ready():
            raise NotServing("the node is not admitted, or is leaving")
        return self._json({"ready": True})

    async def metrics(self, request: Request) -> Response:
        return _response(200, ((b"content-type", b"text/plain; version=0.0.4; charset=utf-8"),), self._metrics())

    async def openapi(self, request: Request) -> Response:
        return _response(200, (JSON,), _OPENAPI)

    def _options(self, request: Request) -> Options:
        return read_options(request.scope["headers"], self._deadline_secs)

    async def _body(self, request: Request) -> bytes:
        return await read_body(request.receive, self._body_bytes_max)

    def _json(self, value: Any) -> Response:
        return _response(200, (JSON, self._node_header()), _encode(value))

    def _node_header(self) -> tuple[bytes, bytes]:
        return (b"domicile-node", self.front.node_id.encode("latin-1", "replace"))


RESOURCES: tuple[tuple[str, dict[str, Handler]], ...] = (
    ("/v1/projects", {"GET": Surface.list_projects}),
    ("/v1/projects/{project}", {"GET": Surface.get_project, "PUT": Surface.put_project}),
    ("/v1/cluster", {"GET": Surface.cluster}),
    ("/v1/incidents", {"GET": Surface.incidents}),
    ("/v1/{project}/objects", {"GET": Surface.list_objects}),
    ("/v1/{project}/objects/{cls}/{name}", {"GET": Surface.describe, "DELETE": Surface.delete}),
    ("/v1/{project}/objects/{cls}/{name}/{method}", {"POST": Surface.call_never}),
    ("/v1/{project}/databases/{name}/{method}", {"POST": Surface.database}),
    ("/v1/{project}/batch", {"POST": Surface.batch}),
    ("/healthz", {"GET": Surface.healthz}),
    ("/readyz", {"GET": Surface.readyz}),
    ("/metrics", {"GET": Surface.metrics}),
    ("/openapi.json", {"GET": Surface.openapi}),
)
_OPENAPI = msgspec.json.encode(DOCUMENT)


def routes_app(surface: Surface) -> Starlette:
    """The Starlette app of the table; expects the raw path as `scope["path"]`."""

    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code == 405:
            return _reply(surface.problems.render(MethodNotAllowed((error.headers or {}).get("Allow", ""))))
        return _reply(surface.problems.render(NoSuchRoute()))

    app = Starlette(
        routes=[Route(at, _endpoint(surface, by), methods=list(by)) for at, by in RESOURCES],
        exception_handlers={HTTPException: refused},
    )
    app.router.redirect_slashes = False
    return app


def _endpoint(surface: Surface, by_method: dict[str, Handler]) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        handler = by_method["GET" if request.method == "HEAD" else request.method]
        try:
            return await handler(surface, request)
        except DisconnectedError:
            return Response(status_code=400)  # reaches nobody
        except Exception as error:  # noqa: BLE001 - the boundary: what is not in the tree is logged and named an error
            return _reply(surface.problems.render(error))

    return endpoint


def _raw(request: Request, parameter: str) -> bytes:
    raw: str = request.path_params[parameter]
    return raw.encode("latin-1")


def _object(request: Request) -> ObjectKey:
    return path.object_key(_raw(request, "project"), _raw(request, "cls"), _raw(request, "name"))


def _query(request: Request, known: set[str]) -> dict[str, str]:
    raw: bytes = request.scope["query_string"]
    try:
        pairs = parse_qsl(raw.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=QUERY_FIELDS_MAX)
    except ValueError:  # UnicodeDecodeError is one
        raise BadRequest("the query is not a list of name=value in percent-encoded UTF-8") from None
    query = dict(pairs)
    if len(query) != len(pairs) or not known.issuperset(query):
        raise BadRequest(f"the query takes each of {', '.join(sorted(known))} once")
    return query


def _item(project: str, number: int, line: BatchLine) -> BatchItem:
    try:
        ObjectKey.checked(project, line.cls, line.name)
    except BadName as error:
        raise BadName(f"call {number} of the batch: {error.detail}", index=number) from None
    if line.key is not None:
        check_key(line.key)
    args = bytes(line.args)
    return BatchItem(line.cls, line.name, line.method, b"" if args == b"null" else args, line.key)


def _project(project: str, row: ProjectRow) -> dict[str, Any]:
    return {"id": project, **msgspec.to_builtins(row)}


def _encode(value: Any) -> bytes:
    return msgspec.json.encode(value, enc_hook=str)


def _reply(reply: Reply) -> Response:
    return _response(reply.status, reply.headers, reply.body)


def _response(status: int, headers: Any, body: bytes) -> Response:
    response = Response(body, status_code=status)
    response.raw_headers = [*headers, (b"content-length", b"%d" % len(body))]
    return response
