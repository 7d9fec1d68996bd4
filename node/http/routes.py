"""Every route but the call's: what it reads, which method of `Front` it asks, how the answer is written (API, "HTTP").

`RESOURCES` is the table; a handler takes the request and gives the response. Path parameters arrive still
percent-encoded and are decoded once, by `path`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qsl

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response

from domicile.errors import BadName, BadRequest, NoSuchMethod, NotServing
from domicile.node.config import Config
from domicile.node.http import path
from domicile.node.http.bodies import BATCH_MAX, BatchLine, ClassPin, ProjectPolicy, decode_json, statement_body
from domicile.node.http.body import read_body
from domicile.node.http.headers import JSON, Options, answer_head, check_key, read_options
from domicile.node.http.operation_routes import OPERATION_RESOURCES, incident_of
from domicile.node.http.starlette_app import Handler, encode, raw, response, starlette_app
from domicile.node.openapi import DOCUMENT
from domicile.node.operations import Operations
from domicile.node.problems import NoSuchRoute, Problems
from domicile.node.values import Answer, BatchItem, Call, Front
from domicile.placement.records import CLASS_RE, ObjectKey, ProjectRow, check_scope

DATABASE_CLASS = "Database"
DATABASE_METHODS = frozenset({"exec", "query", "query_one", "read", "read_one", "batch"})
QUERY_FIELDS_MAX = 20


class Surface:
    """The handlers, and what they share."""

    def __init__(
        self,
        front: Front,
        problems: Problems,
        metrics: Callable[[], bytes],
        body_bytes_max: int,
        deadline_secs: float,
        operations: Operations | None = None,
    ) -> None:
        self.front = front
        self.problems = problems
        self.operations = operations or Operations(Config())
        self._metrics = metrics
        self._body_bytes_max = body_bytes_max
        self._deadline_secs = deadline_secs

    async def regions(self) -> list[str]:
        """Those that have registered, as this node has seen them."""
        return [row["name"] for row in (await self.front.cluster())["regions"]]

    async def is_region(self, name: str) -> bool:
        """Asked of control where this node has not seen it."""
        return await self.front.is_region(name)

    async def list_objects(self, request: Request) -> Response:
        project = path.decode_segment(raw(request, "project"))
        check_scope(project)
        query = _query(request, {"class", "prefix", "token"})
        cls = query.get("class")
        if cls is not None and not CLASS_RE.fullmatch(cls):
            raise BadName(f"{cls!r} is not a class name: an identifier of at most 64 characters")
        found = await self.front.list_objects(project, cls, query.get("prefix", ""), query.get("token"))
        return self.json(found)

    async def describe(self, request: Request) -> Response:
        return self.json(await self.front.describe(_object(request)))

    async def delete(self, request: Request) -> Response:
        options = self._options(request)
        epoch = await self.front.delete(_object(request), options.if_match, options.idempotency_key)
        return response(200, answer_head(self.front.node_id, epoch, "owner"), encode({"epoch": str(epoch)}))

    async def call_never(self, request: Request) -> Response:
        """Stands in the table for the route `App.call` answers, so that other HTTP methods are 405."""
        raise NoSuchRoute

    async def database(self, request: Request) -> Response:
        raw_name = raw(request, "name")
        key = path.object_key(raw(request, "project"), DATABASE_CLASS.encode(), raw_name)
        method = path.method_name(raw(request, "method"))
        if method not in DATABASE_METHODS:
            raise NoSuchMethod(f"a database has the methods {', '.join(sorted(DATABASE_METHODS))}")
        options = self._options(request)
        body = statement_body(method, await self.body(request))
        deadline = self.front.now() + options.timeout_secs
        call = Call(key, method, body, deadline, options.idempotency_key, options.if_match, (), options.trace)
        answer = await self.front.call(call)
        head = answer_head(answer.node or self.front.node_id, answer.epoch, answer.served_by)
        return response(200, head, answer.body)

    async def batch(self, request: Request) -> Response:
        project = path.decode_segment(raw(request, "project"))
        check_scope(project)
        options = self._options(request)
        lines = decode_json(await self.body(request), list[BatchLine])
        if len(lines) > BATCH_MAX:
            raise BadRequest(f"a batch has at most {BATCH_MAX} calls, this one has {len(lines)}")
        items = [_item(project, number, line) for number, line in enumerate(lines)]
        answers = await self.front.batch(project, items, self.front.now() + options.timeout_secs)
        return response(200, (JSON, self._node_header()), b"[" + b",".join(map(self._line, answers)) + b"]")

    def _line(self, answer: Answer | Exception) -> bytes:
        if isinstance(answer, Answer):
            return b'{"result":' + answer.body + b"}"
        return b'{"problem":' + self.problems.render(answer).body + b"}"

    async def list_projects(self, request: Request) -> Response:
        found = await self.front.list_projects()
        return self.json({"projects": [_project(project, row) for project, row in sorted(found.items())]})

    async def get_project(self, request: Request) -> Response:
        project = path.project_id(raw(request, "project"))
        return self.json(_project(project, await self.front.project(project)))

    async def put_project(self, request: Request) -> Response:
        project = path.project_id(raw(request, "project"))
        self._options(request)
        policy = decode_json(await self.body(request) or b"{}", ProjectPolicy)
        row = await self.front.put_project(project, policy.region, policy.on_incident)
        return self.json(_project(project, row))

    async def put_class(self, request: Request) -> Response:
        project, cls = path.project_id(raw(request, "project")), path.decode_segment(raw(request, "cls"))
        self._options(request)
        row = await self.front.repin(project, cls, decode_json(await self.body(request), ClassPin).pin)
        return self.json({"project": project, "class": cls, **msgspec.to_builtins(row)})

    async def cluster(self, request: Request) -> Response:
        return self.json(await self.front.cluster())

    async def incidents(self, request: Request) -> Response:
        return self.json({"incidents": await self.front.incidents()})

    async def incident_database(self, request: Request) -> Response:
        data = await self.front.incident_database(*incident_of(request))
        return response(200, (self._node_header(), (b"content-type", b"application/vnd.sqlite3")), data)

    async def healthz(self, request: Request) -> Response:
        return self.json({"ok": True})

    async def readyz(self, request: Request) -> Response:
        if not self.front.ready():
            raise NotServing("the node is not admitted, or is leaving")
        return self.json({"ready": True})

    async def metrics(self, request: Request) -> Response:
        return response(200, ((b"content-type", b"text/plain; version=0.0.4; charset=utf-8"),), self._metrics())

    async def openapi(self, request: Request) -> Response:
        return response(200, (JSON,), _OPENAPI)

    def _options(self, request: Request) -> Options:
        return read_options(request.scope["headers"], self._deadline_secs)

    async def body(self, request: Request) -> bytes:
        """The request's whole body, within the bound."""
        return await read_body(request.receive, self._body_bytes_max)

    def json(self, value: Any) -> Response:
        """A result."""
        return response(200, (JSON, self._node_header()), encode(value))

    def _node_header(self) -> tuple[bytes, bytes]:
        return (b"domicile-node", self.front.node_id.encode("latin-1", "replace"))


RESOURCES: tuple[tuple[str, dict[str, Handler]], ...] = (
    ("/v1/projects", {"GET": Surface.list_projects}),
    ("/v1/projects/{project}", {"GET": Surface.get_project, "PUT": Surface.put_project}),
    ("/v1/projects/{project}/classes/{cls}", {"PUT": Surface.put_class}),
    ("/v1/cluster", {"GET": Surface.cluster}),
    ("/v1/incidents", {"GET": Surface.incidents}),
    ("/v1/incidents/{object_id}/{epoch}/database", {"GET": Surface.incident_database}),
    ("/v1/{project}/objects", {"GET": Surface.list_objects}),
    ("/v1/{project}/objects/{cls}/{name}", {"GET": Surface.describe, "DELETE": Surface.delete}),
    ("/v1/{project}/objects/{cls}/{name}/{method}", {"POST": Surface.call_never}),
    ("/v1/{project}/databases/{name}/{method}", {"POST": Surface.database}),
    ("/v1/{project}/batch", {"POST": Surface.batch}),
    *OPERATION_RESOURCES,
    ("/healthz", {"GET": Surface.healthz}),
    ("/readyz", {"GET": Surface.readyz}),
    ("/metrics", {"GET": Surface.metrics}),
    ("/openapi.json", {"GET": Surface.openapi}),
)
_OPENAPI = msgspec.json.encode(DOCUMENT)


def routes_app(surface: Surface) -> Starlette:
    """The Starlette app of the table; expects the raw path as `scope["path"]`."""
    return starlette_app(surface, RESOURCES)


def _object(request: Request) -> ObjectKey:
    return path.object_key(raw(request, "project"), raw(request, "cls"), raw(request, "name"))


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
