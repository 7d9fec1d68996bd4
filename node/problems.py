"""Errors as RFC 9457 problem documents, and back (API, "HTTP").

    {"type": "urn:domicile:problem:<code>", "title", "status", "detail", "code", "retryable", "outcome", …extra}

What is not in the tree of `domicile.errors` is a bug of ours: it becomes `internal` with outcome `unknown`, is logged
under an id, and the caller sees the id, never a trace.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from domicile.errors import BY_CODE, BadRequest, DomicileError, Outcome

TYPE_PREFIX = "urn:domicile:problem:"
CONTENT_TYPE = (b"content-type", b"application/problem+json")
STANDARD = ("type", "title", "status", "detail", "code", "retryable", "outcome")
Header = tuple[bytes, bytes]


class NoSuchRoute(BadRequest):
    """No resource has this path. The code stays `bad_request`: the caller's program is wrong, not its data."""

    status, title = 404, "Nothing is at this path"


class MethodNotAllowed(BadRequest):
    """The path is there, the HTTP method is not. `allow` goes into the header of that name."""

    status, title = 405, "This HTTP method is not allowed here"

    def __init__(self, allow: str) -> None:
        super().__init__(f"allowed here: {allow}")
        self.allow = allow


class UnsupportedEncoding(BadRequest):
    """The body comes in a Content-Encoding."""

    status, title = 415, "Bodies are taken as they are, without Content-Encoding"


class HeadTooLarge(BadRequest):
    """The request line and headers are over the server's bound."""

    status, title = 431, "The request's head is too large"


class RequestTimeout(BadRequest):
    """The body did not arrive in time."""

    status, title = 408, "The request did not arrive in time"
    retryable = True


class Log(Protocol):
    """What is needed of a structlog logger."""

    def error(self, event: str, **fields: Any) -> Any: ...


class Reply(NamedTuple):
    """A whole HTTP answer; `headers` lack only content-length."""

    status: int
    headers: Sequence[Header]
    body: bytes


class Problems:
    """Renders errors. `source` names this process (the node id) in the ids of internal errors."""

    def __init__(self, log: Log, source: Callable[[], str]) -> None:
        self._log = log
        self._source = source
        self._numbers = itertools.count(1)

    def document(self, error: BaseException) -> dict[str, Any]:
        """The problem document of any error; logs those that are not in the tree."""
        return document(error if isinstance(error, DomicileError) else self._internal(error))

    def render(self, error: BaseException) -> Reply:
        """Status, headers and body of any error; logs those that are not in the tree."""
        known = error if isinstance(error, DomicileError) else self._internal(error)
        return Reply(known.status, _headers(known), _json(document(known)))

    def _internal(self, error: BaseException) -> DomicileError:
        error_id = f"{self._source()}-{next(self._numbers)}"
        self._log.error("http.internal_error", error_id=error_id, exc_info=error)
        return DomicileError(f"an internal error, logged under {error_id}", error_id=error_id)


def document(error: DomicileError) -> dict[str, Any]:
    """The members of the problem document; `extra` never hides a standard one."""
    standard = {
        "type": TYPE_PREFIX + error.code,
        "title": error.title,
        "status": error.status,
        "detail": error.detail,
        "code": error.code,
        "retryable": error.retryable,
        "outcome": error.outcome,
    }
    if error.retry_after is not None:
        standard["retry_after"] = error.retry_after
    return {**error.extra, **standard}


def parse(body: bytes) -> DomicileError:
    """The error a problem document tells of. What cannot be read, or has a code not known here, is `internal`."""
    try:
        members = msgspec.json.decode(body, type=dict[str, Any])
        read = msgspec.convert(members, _Told)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return DomicileError("the answer is no problem document")
    error = BY_CODE.get(read.code, DomicileError)(read.detail)
    error.extra = {name: value for name, value in members.items() if name not in (*STANDARD, "retry_after")}
    error.outcome = read.outcome  # the class's own in all cases but NotServing's
    error.retry_after = read.retry_after
    return error


class _Told(msgspec.Struct):
    code: str
    detail: str
    outcome: Outcome
    retry_after: float | None = None


def _json(members: dict[str, Any]) -> bytes:
    try:
        return msgspec.json.encode(members, enc_hook=str)
    except UnicodeEncodeError:  # half a surrogate pair in an object's own message: escaped, as JSON allows
        return json.dumps(members, default=str).encode()


def _headers(error: DomicileError) -> list[Header]:
    headers = [CONTENT_TYPE]
    if isinstance(error, MethodNotAllowed):
        headers.append((b"allow", error.allow.encode()))
    if error.status == 503:
        # Whole seconds, as the header has it; the document has the fraction.
        headers.append((b"retry-after", b"%d" % max(1, round(error.retry_after or 1))))
    return headers
