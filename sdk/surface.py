"""What a client's handles can ask for, each as one request; nothing here differs between the two clients."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from domicile import jsons
from domicile.database import from_json, to_json
from domicile.errors import BadArguments
from domicile.ref import Target
from domicile.requests import Call, Request, batch_body, encode, path, read_batch, read_page

if TYPE_CHECKING:
    from domicile.object import Object


SqlParams = Sequence[Any] | Mapping[str, Any] | None
HEADER_RE = re.compile(r"[\x20-\x7e]{1,255}")


@dataclass(frozen=True, slots=True)
class Options:
    """How calls through a handle are made: the caller's own idempotency key, a deadline in seconds, an incarnation."""

    key: str | None = None
    timeout_secs: float | None = None
    if_match: str | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """One object of one project, and how to call it."""

    project: str
    target: Target
    name: str
    new_key: Callable[[], str]
    options: Options = Options()

    def with_(self, **given: Any) -> Place:
        """Raises BadArguments for values that are no header."""
        for name in ("key", "if_match"):
            if name in given and not HEADER_RE.fullmatch(given[name]):
                raise BadArguments(f"{name} is 1 to 255 printable ASCII characters")
        return replace(self, options=replace(self.options, **given))

    def call(self, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Request:
        body = self.target.encode(method, args, kwargs)
        at = path(self.project, "objects", self.target.name, self.name, method)
        return self._write("POST", at, body, lambda answer: self.target.decode(method, answer))

    def sql(self, method: str, sql: str, params: SqlParams) -> Request:
        """One statement for the platform's `Database`, by its own route; blobs are bytes."""
        return self._sql(method, {"sql": sql, "params": sql_params(params)})

    def sql_batch(self, statements: Sequence[tuple[str, SqlParams]]) -> Request:
        """Several statements for the platform's `Database`; blobs are bytes."""
        return self._sql("batch", {"statements": [{"sql": s, "params": sql_params(p)} for s, p in statements]})

    def delete(self) -> Request:
        return self._write("DELETE", self._path(), b"", lambda answer: str(jsons.decode(answer)["epoch"]))

    def describe(self) -> Request:
        return Request("GET", self._path(), timeout_secs=self.options.timeout_secs)

    def _sql(self, method: str, arguments: dict[str, Any]) -> Request:
        at = path(self.project, "databases", self.name, method)
        return self._write("POST", at, encode(arguments), lambda answer: from_json(jsons.decode(answer)))

    def _path(self) -> str:
        return path(self.project, "objects", self.target.name, self.name)

    def _write(self, method: str, at: str, body: bytes, read: Callable[[bytes], Any]) -> Request:
        o = self.options
        key = o.key or self.new_key()
        return Request(method, at, body, read, True, key, o.if_match, o.timeout_secs)


def sql_params(params: SqlParams) -> Any:
    """Parameters as JSON carries them. Raises BadArguments for what are none."""
    if isinstance(params, Mapping):
        return {name: to_json(value) for name, value in params.items()}
    if params is not None and (isinstance(params, (str, bytes)) or not isinstance(params, Sequence)):
        raise BadArguments("parameters are a sequence, by position, or a mapping, by name")
    return None if params is None else [to_json(value) for value in params]


def place(project: str, cls: type[Object] | str, name: str, new_key: Callable[[], str]) -> Place:
    """An object; names are checked here already. Raises BadName."""
    target = Target(cls)
    path(project, target.name, name)
    return Place(project, target, name, new_key)


def batch(project: str, calls: Sequence[Call], new_key: Callable[[], str]) -> Request:
    """Many calls in one. Every line carries a key of its own, so the whole may be repeated."""
    return Request("POST", path(project, "batch"), batch_body(calls, new_key), read_batch, True)


def page(project: str, cls: str | None, prefix: str, token: str | None) -> Request:
    """A page of the directory."""
    query = {"class": cls, "prefix": prefix or None, "token": token}
    return Request("GET", path(project, "objects", query=query), read=read_page)


def policy(project: str) -> Request:
    """A project's policy."""
    return Request("GET", path("projects", project))


def create(project: str, region: str | None) -> Request:
    """Creation of a project. Written once, whoever comes first: repeating it is harmless without a key."""
    body = encode({"region": region} if region else {})
    return Request("PUT", path("projects", project), body)
