"""The OpenAPI 3.1 document of the HTTP surface (API, "HTTP"), served at /openapi.json.

Written by hand and held against the routes by a test. Every operation may answer with a problem document.
"""

from __future__ import annotations

from typing import Any

from domicile.errors import BY_CODE

Schema = dict[str, Any]

_PROBLEM_STATUSES = (400, 401, 403, 404, 405, 408, 409, 413, 415, 422, 500, 503, 504, 507)
_EPOCH: Schema = {"type": "string", "pattern": r"^\d+\.\d+$"}
_ANY: Schema = {}
_OBJECT: Schema = {"type": "object"}
_PROJECT_ID: Schema = {"type": "string", "pattern": "^[a-z0-9][a-z0-9-]{0,62}$"}
_IDENTIFIER: Schema = {"type": "string", "pattern": "^[A-Za-z_][A-Za-z0-9_]{0,63}$"}
_NAME: Schema = {"type": "string", "minLength": 1, "maxLength": 255, "description": "1 to 255 bytes of UTF-8, no NUL"}
_KEY: Schema = {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[ -~]+$"}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _record(required: dict[str, Schema], optional: dict[str, Schema] | None = None, *, closed: bool = False) -> Schema:
    record: Schema = {"type": "object", "properties": required | (optional or {}), "required": list(required)}
    return record | {"additionalProperties": False} if closed else record


def _in(where: str, name: str, schema: Schema, about: str) -> Schema:
    return {"in": where, "name": name, "required": where == "path", "schema": schema, "description": about}


_MOVE = _record(
    {"to": {"type": "string"}},
    {
        "mb_per_sec": {"type": "number", "minimum": 0},
        "keep_hours": {"anyOf": [{"type": "number"}, {"type": "null"}]},
    },
    closed=True,
)
_PATH = {
    "project": _in("path", "project", _PROJECT_ID, "a project's id"),
    "cls": _in("path", "cls", _IDENTIFIER, "a class of the application, or Database"),
    "name": _in("path", "name", _NAME, "an object's name, percent-encoded"),
    "method": _in("path", "method", _IDENTIFIER, "a public method"),
}
_DATABASE_METHOD = _in(
    "path",
    "method",
    {"type": "string", "enum": ["exec", "query", "query_one", "read", "read_one", "batch"]},
    "a method of Database",
)
_KEY_HEADER = _in("header", "Idempotency-Key", _KEY, "the same key runs once")
_TIMEOUT_HEADER = _in(
    "header",
    "Domicile-Timeout-Ms",
    {"type": "integer", "minimum": 1, "maximum": 999_999_999_999},
    "longest life of the call, at most CALL_DEADLINE_SECS",
)
_TRACE_HEADER = _in("header", "traceparent", {"type": "string"}, "W3C trace context")
_IF_MATCH = _in(
    "header", "If-Match", {"type": "string", "pattern": r'^"?\d{1,19}\.\d{1,19}"?$'}, "the incarnation meant"
)
_CALL_HEADERS = [_KEY_HEADER, _TIMEOUT_HEADER, _IF_MATCH, _TRACE_HEADER]

_ANSWER_HEADERS = {
    "Domicile-Node": {"schema": {"type": "string"}, "description": "the node that answered"},
    "Domicile-Epoch": {"schema": _EPOCH, "description": "the epoch of the home"},
    "Domicile-Served-By": {"schema": {"type": "string", "enum": ["owner", "replica", "store"]}},
}


def _json_body(schema: Schema, *, required: bool) -> Schema:
    return {"required": required, "content": {"application/json": {"schema": schema}}}


def _operation(
    about: str, answer: Schema, parameters: list[Schema], body: Schema | None = None, content: str = "application/json"
) -> Schema:
    problem = {"$ref": "#/components/responses/Problem"}
    responses: Schema = {"200": {"description": "done", "content": {content: {"schema": answer}}}}
    responses |= {str(status): problem for status in _PROBLEM_STATUSES}
    operation: Schema = {"summary": about, "parameters": parameters, "responses": responses}
    return operation | ({"requestBody": body} if body else {})


def _call(about: str, parameters: list[Schema], body: Schema) -> Schema:
    operation = _operation(about, _ANY, [*parameters, *_CALL_HEADERS], body)
    operation["responses"]["200"]["headers"] = _ANSWER_HEADERS
    return operation


_PARAMS: Schema = {"anyOf": [{"type": "array"}, {"type": "object"}, {"type": "null"}]}
_SCHEMAS: dict[str, Schema] = {
    "Problem": _record(
        {
            "type": {"type": "string"},
            "title": {"type": "string"},
            "status": {"type": "integer"},
            "detail": {"type": "string"},
            "code": {"type": "string", "enum": sorted(BY_CODE.keys() | {"internal"})},
            "retryable": {"type": "boolean"},
            "outcome": {"type": "string", "enum": ["not_run", "ran", "unknown"]},
        },
        {"retry_after": {"type": "number", "description": "seconds"}},
    ),
    "Arguments": {"anyOf": [{"type": "array"}, {"type": "object"}, {"type": "null"}]},
    "Statement": _record({"sql": {"type": "string"}}, {"params": _PARAMS}, closed=True),
    "Statements": _record({"statements": {"type": "array", "items": _ref("Statement")}}, closed=True),
    "BatchLine": _record(
        {"class": _IDENTIFIER, "name": _NAME, "method": _IDENTIFIER},
        {"args": _ref("Arguments"), "key": {"anyOf": [_KEY, {"type": "null"}]}},
        closed=True,
    ),
    "BatchAnswer": {
        "oneOf": [_record({"result": _ANY}, closed=True), _record({"problem": _ref("Problem")}, closed=True)]
    },
    "Policy": _record(
        {},
        {
            "region": {"anyOf": [_PROJECT_ID, {"type": "null"}]},
            "on_incident": {"anyOf": [{"type": "string", "enum": ["serve", "wait"]}, {"type": "null"}]},
        },
        closed=True,
    ),
    "Project": _record(
        {"id": _PROJECT_ID, "region": {"type": "string"}, "term": {"type": "integer"}},
        {"on_incident": {"type": "string"}, "created_ms": {"type": "integer"}},
    ),
    "Operation": _record(
        {"id": {"type": "string"}, "workflow": {"type": "string"}, "status": {"type": "string"}, "started": _ANY},
        {"ended": _ANY, "progress": _ANY, "steps": {"type": "array"}, "result": _ANY, "failure": _ANY},
    ),
    "Listed": _record({"class": {"type": "string"}, "name": {"type": "string"}}, {"id": {"type": "string"}}),
    "Listing": _record(
        {
            "objects": {"type": "array", "items": _ref("Listed")},
            "token": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        }
    ),
}


def _object_paths() -> dict[str, Schema]:
    project, cls, name, method = (_PATH[part] for part in ("project", "cls", "name", "method"))
    listing = [
        project,
        _in("query", "class", _IDENTIFIER, "only this class"),
        _in("query", "prefix", {"type": "string"}, "only names that start so"),
        _in("query", "token", {"type": "string"}, "where the page before ended"),
    ]
    statement = {"anyOf": [_ref("Statement"), _ref("Statements")]}
    batch = {"type": "array", "items": _ref("BatchLine"), "maxItems": 100}
    batch_answer = {"type": "array", "items": _ref("BatchAnswer")}
    deleted = _record({"epoch": _EPOCH})
    return {
        "/v1/{project}/objects": {"get": _operation("the directory, paged", _ref("Listing"), listing)},
        "/v1/{project}/objects/{cls}/{name}": {
            "get": _operation("where an object is and how safe; wakes nothing", _OBJECT, [project, cls, name]),
            "delete": _operation("delete an object", deleted, [project, cls, name, _KEY_HEADER, _IF_MATCH]),
        },
        "/v1/{project}/objects/{cls}/{name}/{method}": {
            "post": _call("call a method", [project, cls, name, method], _json_body(_ref("Arguments"), required=False)),
        },
        "/v1/{project}/databases/{name}/{method}": {
            "post": _call(
                "run SQL in a database", [project, name, _DATABASE_METHOD], _json_body(statement, required=True)
            ),
        },
        "/v1/{project}/batch": {
            "post": _operation(
                "up to 100 calls, each a transaction of its own",
                batch_answer,
                [project, _TIMEOUT_HEADER, _TRACE_HEADER],
                _json_body(batch, required=True),
            ),
        },
    }


def _operator_paths() -> dict[str, Schema]:
    project = _PATH["project"]
    projects: Schema = {"type": "array", "items": _ref("Project")}
    pin = _json_body(_record({"pin": {"anyOf": [_PROJECT_ID, {"type": "null"}]}}, closed=True), required=True)
    return {
        "/v1/projects": {"get": _operation("all projects", _record({"projects": projects}), [])},
        "/v1/projects/{project}": {
            "get": _operation("a project's policy", _ref("Project"), [project]),
            "put": _operation(
                "create a project, or change it", _ref("Project"), [project], _json_body(_ref("Policy"), required=False)
            ),
        },
        "/v1/projects/{project}/classes/{cls}": {
            "put": _operation("pin a class to another region", _OBJECT, [project, _PATH["cls"]], pin)
        },
        "/v1/cluster": {"get": _operation("nodes and regions", _OBJECT, [])},
        "/v1/incidents": {"get": _operation("open incidents", _record({"incidents": {"type": "array"}}), [])},
        "/healthz": {"get": _operation("the process answers", _OBJECT, [])},
        "/readyz": {"get": _operation("the node serves", _OBJECT, [])},
        "/metrics": {"get": _operation("metrics for Prometheus", {"type": "string"}, [], content="text/plain")},
        "/openapi.json": {"get": _operation("this document", _OBJECT, [])},
    }


def _operation_paths() -> dict[str, Schema]:
    """What takes longer than a request: started, followed, cancelled."""
    project, followed = _PATH["project"], _ref("Operation")
    node = _in("path", "node", {"type": "string", "pattern": "^n-[0-9a-f]{16}$"}, "a node's id")
    incident = [
        _in("path", "object_id", {"type": "string", "pattern": "^[0-9a-f]{64}$"}, "the object's id"),
        _in("path", "epoch", {"type": "string", "pattern": r"^\d{1,19}\.\d{1,19}$"}, "the takeover's epoch"),
    ]
    decision = _in("path", "decision", {"type": "string", "enum": ["apply", "keep", "export"]}, "what to do")
    by_id = _in("path", "id", {"type": "string", "pattern": "^[A-Za-z0-9_.:-]{1,400}$"}, "an operation's id")
    signal = _in("path", "signal", {"type": "string", "enum": ["go_on", "stop"]}, "what it is told")
    where = _json_body(_record({}, {"region": {"anyOf": [_PROJECT_ID, {"type": "null"}]}}, closed=True), required=False)
    started = _json_body(_record({"workflow": {"type": "string"}, "input": _OBJECT}, closed=True), required=True)

    def followable(at: list[Schema], about: str, body: Schema | None = None) -> Schema:
        start = {"post": _operation(f"start {about}, or join it", followed, at, body)} if body else {}
        follow = _operation(f"follow {about}", followed, at)
        return start | {"get": follow, "delete": _operation(f"cancel {about}", followed, at)}

    return {
        "/v1/projects/{project}/move": followable([project], "a project's move", _json_body(_MOVE, required=True)),
        "/v1/nodes/{node}/drain": followable([node], "a node's drain", where),
        "/v1/incidents/{object_id}/{epoch}": {"get": _operation("an incident's recovery", followed, incident)},
        "/v1/incidents/{object_id}/{epoch}/database": {
            "get": _operation("the lost branch", {"type": "string"}, incident, content="application/vnd.sqlite3")
        },
        "/v1/incidents/{object_id}/{epoch}/{decision}": {
            "post": _operation("decide on an incident", followed, [*incident, decision])
        },
        "/v1/control/operations": {"post": _operation("start any operation, or join it", followed, [], started)},
        "/v1/control/operations/{id}": followable([by_id], "an operation"),
        "/v1/control/operations/{id}/{signal}": {
            "post": _operation("tell an operation to go on, or to stop", followed, [by_id, signal])
        },
    }


DOCUMENT: dict[str, Any] = {
    "openapi": "3.1.0",
    "info": {"title": "Domicile", "version": "1", "description": "Durable objects by name over HTTP."},
    "paths": _operator_paths() | _object_paths() | _operation_paths(),
    "components": {
        "schemas": _SCHEMAS,
        "responses": {
            "Problem": {
                "description": "a problem document (RFC 9457)",
                "headers": {"Retry-After": {"schema": {"type": "integer"}, "description": "with 503: seconds"}},
                "content": {"application/problem+json": {"schema": _ref("Problem")}},
            }
        },
    },
}
