"""What the client says over HTTP, as values: a request is built, a reply is judged, and nothing here does I/O.

Names become single path segments (PROTOCOLS section 1 allows any UTF-8): every byte but letters, digits, `-`, `_`, `~`
and inner dots is percent-encoded, and a name of dots alone wholly, since HTTP software takes `.` and `..` for steps in
the tree.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

import msgspec

from domicile import jsons
from domicile.errors import BY_CODE, BadArguments, BadName, DomicileError, NotServing, OutcomeUnknown, Overloaded

BATCH_MAX = 100
JSON_TYPE = ("Content-Type", "application/json")


@dataclass(frozen=True, slots=True)
class Request:
    """One call of the HTTP surface. `path` is percent-encoded, with its query.

    `may_write`: a repetition is safe only by an idempotency key, `key` or those in the body, the same in every attempt.
    `read` turns the body of a 2xx answer into the result.
    """

    method: str
    path: str
    body: bytes = b""
    read: Callable[[bytes], Any] = jsons.decode
    may_write: bool = False
    key: str | None = None
    if_match: str | None = None
    timeout_secs: float | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """An HTTP answer as it came. Header names are lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Lost:
    """No answer came. `sent`: the request, or a part of it, may have reached the node."""

    why: str
    sent: bool


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One line of a project's directory. `created_ms` is wall time in milliseconds since 1970."""

    cls: str
    name: str
    id: str
    created_ms: int


@dataclass(frozen=True, slots=True)
class Page:
    """Lines of the directory; `token` asks for the next ones, None on the last page."""

    objects: tuple[ObjectInfo, ...]
    token: str | None


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a batch. `args` is a sequence (positional) or a mapping (keywords); `key` is made if not given."""

    cls: str
    name: str
    method: str
    args: Sequence[Any] | Mapping[str, Any] = field(default=())
    key: str | None = None


def segment(name: str) -> str:
    """A name as one path segment. Raises BadName for what can be none."""
    try:
        text = quote(name, safe="")
    except (UnicodeEncodeError, TypeError):
        raise BadName(f"{name!r} is not a name: a text of valid Unicode") from None
    if not text:
        raise BadName("a name has at least one character")
    return text.replace(".", "%2E") if not text.strip(".") else text


def path(*names: str, query: Mapping[str, str | None] | None = None) -> str:
    """The path below /v1 of these names. Raises BadName."""
    given = {name: value for name, value in (query or {}).items() if value is not None}
    return "/v1/" + "/".join(map(segment, names)) + ("?" + urlencode(given, quote_via=quote) if given else "")


def batch_body(calls: Sequence[Call], new_key: Callable[[], str]) -> bytes:
    """The body of a batch, every call with a key. Raises BadArguments."""
    if len(calls) > BATCH_MAX:
        raise BadArguments(f"a batch has at most {BATCH_MAX} calls, this one has {len(calls)}")
    lines = [
        {
            "class": call.cls,
            "name": call.name,
            "method": call.method,
            "args": call.args if isinstance(call.args, Mapping) else list(call.args),
            "key": call.key or new_key(),
        }
        for call in calls
    ]
    return encode(lines)


def read_batch(body: bytes) -> list[Any]:
    """Each call's result, or its error as a value."""
    answers = jsons.decode(body)
    return [error_of(answer["problem"]) if "problem" in answer else answer["result"] for answer in answers]


def read_page(body: bytes) -> Page:
    """One page of the directory."""
    page = jsons.decode(body)
    found = (ObjectInfo(line["class"], line["name"], line["id"], line["created_ms"]) for line in page["objects"])
    return Page(tuple(found), page["token"])


def encode(value: Any) -> bytes:
    """JSON text. Raises BadArguments."""
    try:
        return jsons.encode(value)
    except jsons.Unencodable as error:
        raise BadArguments(str(error)) from None


def judge(request: Request, reply: Reply | Lost) -> Any:
    """The result of an attempt. Raises a DomicileError whose `outcome` and `retryable` hold for this attempt."""
    if isinstance(reply, Lost):
        raise _lost(request, reply)
    if 200 <= reply.status < 300:
        try:
            return request.read(reply.body)
        except (DomicileError, KeyError, TypeError) as error:
            raise DomicileError(f"{request.method} {request.path}: the answer cannot be read: {error}") from error
    raise _refusal(request, reply)


def error_of(problem: Mapping[str, Any]) -> DomicileError:
    """The typed error of a problem document; of a code not known here, one that tells the same of itself."""
    cls = BY_CODE.get(str(problem.get("code")), DomicileError)
    extra = {name: value for name, value in problem.items() if name not in _STANDARD and name.isidentifier()}
    error = cls(str(problem.get("detail") or problem.get("title") or ""))
    error.extra = extra
    if cls is DomicileError:
        error.code, error.title = str(problem.get("code", "internal")), str(problem.get("title", cls.title))
        error.status = problem["status"] if isinstance(problem.get("status"), int) else cls.status
    if isinstance(retryable := problem.get("retryable"), bool):
        error.retryable = retryable
    if (outcome := problem.get("outcome")) in ("not_run", "ran", "unknown"):
        error.outcome = outcome
    if isinstance(after := problem.get("retry_after"), (int, float)):
        error.retry_after = float(after)
    return error


_STANDARD = frozenset({"type", "title", "status", "detail", "code", "retryable", "outcome", "retry_after"})


def _lost(request: Request, lost: Lost) -> DomicileError:
    where = f"{request.method} {request.path}: {lost.why}"
    if lost.sent and request.may_write:
        return OutcomeUnknown(where, key=request.key)
    error: DomicileError = NotServing(where)
    error.outcome = "unknown" if lost.sent else "not_run"
    error.retry_after = None
    return error


def _refusal(request: Request, reply: Reply) -> DomicileError:
    error: DomicileError
    header = _seconds(reply.headers.get("retry-after"))
    try:
        problem = msgspec.json.decode(reply.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        problem = None
    if isinstance(problem, dict) and "code" in problem:
        # The document has fractions of a second, the header whole ones, and either may be missing.
        error = error_of(problem)
        if "retry_after" not in problem:
            error.retry_after = header
        return error
    # Not the node's own words: something between it and us has answered.
    text = f"{request.method} {request.path}: HTTP {reply.status} without a problem document"
    if reply.status == 429:
        error = Overloaded(text)
    elif reply.status in (502, 503, 504):
        error = _lost(request, Lost(f"HTTP {reply.status} without a problem document", sent=True))
    else:
        error = DomicileError(text)
        error.status = reply.status
    error.retry_after = header
    return error


def _seconds(header: str | None) -> float | None:
    return float(header) if header and header.isascii() and header.isdigit() and len(header) < 7 else None
