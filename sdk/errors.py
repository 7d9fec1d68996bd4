"""Every error a caller can see, in one tree.

    DomicileError                    code, status, retryable, outcome, detail
    ├── Refused                      outcome not_run: nothing of the call ran
    │   ├── BadRequest · BadName · BadArguments · BodyTooLarge
    │   ├── Unauthorized · Forbidden
    │   ├── NoSuchProject · NoSuchClass · NoSuchMethod · NoSuchObject
    │   ├── CallCycle · ChainTooDeep · StaleIncarnation · KeyReused
    │   └── Moving · NotServing · NotHome · Overloaded      retryable, with Retry-After
    ├── Failed                       outcome ran: the method ran and was rolled back
    │   └── MethodFailed · SqlRefused · SqlError · DatabaseFull · CallTimeout
    └── OutcomeUnknown               outcome unknown: the write may last; retry with the same idempotency key

The codes, statuses and outcomes are the contract of the HTTP surface (API, "HTTP"). `NotServing` alone may carry
another outcome than its class: a read that ran and may not leave is `ran`, and harmless to repeat.

`BadApp` stands beside the tree: it is for whoever deploys an app, and no call ever answers it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Outcome = Literal["not_run", "ran", "unknown"]


class DomicileError(Exception):
    """What every answer that is not a result is. `extra` goes into the problem document beside the standard members."""

    code: str = "internal"
    status: int = 500
    title: str = "Internal error"
    retryable: bool = False
    outcome: Outcome = "unknown"
    retry_after: float | None = None

    def __init__(self, detail: str = "", **extra: Any) -> None:
        super().__init__(detail or self.title)
        self.detail = detail or self.title
        self.extra = extra


class Refused(DomicileError):
    """Refused for certain: nothing of the call ran."""

    outcome: Outcome = "not_run"


class Failed(DomicileError):
    """The method ran, and everything it did was rolled back."""

    outcome: Outcome = "ran"


class BadRequest(Refused):
    """The request cannot be read."""

    code, status, title = "bad_request", 400, "The request cannot be read"


class BadName(Refused):
    """A project, class, method or object name breaks the rules of section 1."""

    code, status, title = "bad_name", 400, "This is not a valid name"


class BadArguments(Refused):
    """Arguments do not fit the method's annotations."""

    code, status, title = "bad_arguments", 422, "The arguments do not fit the method"


class BodyTooLarge(Refused):
    """The body is over `BODY_MAX_MB`."""

    code, status, title = "body_too_large", 413, "The request body is too large"


class Unauthorized(Refused):
    """No credentials, or unknown ones."""

    code, status, title = "unauthorized", 401, "Credentials are needed"


class Forbidden(Refused):
    """The credentials do not allow this."""

    code, status, title = "forbidden", 403, "The credentials do not allow this"


class NoSuchProject(Refused):
    """The project was never created."""

    code, status, title = "no_such_project", 404, "There is no such project"


class NoSuchClass(Refused):
    """The app has no such class."""

    code, status, title = "no_such_class", 404, "There is no such class"


class NoSuchMethod(Refused):
    """The class has no such public method."""

    code, status, title = "no_such_method", 404, "There is no such method"


class NoSuchObject(Refused):
    """The object does not exist, or was deleted while the call waited."""

    code, status, title = "no_such_object", 404, "There is no such object"


class CallCycle(Refused):
    """The chain of calls would come back to an object that waits in it. `chain` names the objects."""

    code, status, title = "call_cycle", 409, "The call chain comes back to an object that is waiting in it"


class ChainTooDeep(Refused):
    """The chain of calls is 32 deep."""

    code, status, title = "chain_too_deep", 409, "The call chain is too deep"


class StaleIncarnation(Refused):
    """`If-Match` names another life of the object."""

    code, status, title = "stale_incarnation", 409, "The object is not in the incarnation named by If-Match"


class KeyReused(Refused):
    """The idempotency key was used with another method or other arguments."""

    code, status, title = "key_reused", 422, "This idempotency key was used for another call"


class Moving(Refused):
    """The project or the object is on its way to another region."""

    code, status, title = "moving", 503, "The project is moving between regions"
    retryable = True
    retry_after = 1.0


class NotServing(Refused):
    """The node may not, or cannot, answer now."""

    code, status, title = "not_serving", 503, "The object cannot be served right now"
    retryable = True
    retry_after = 1.0


class NotHome(Refused):
    """The object's home is elsewhere, or about to be."""

    code, status, title = "not_home", 503, "The object has its home elsewhere"
    retryable = True
    retry_after = 0.1


class Overloaded(Refused):
    """A bound was reached before the call began."""

    code, status, title = "overloaded", 503, "The node is at a limit"
    retryable = True
    retry_after = 1.0


class MethodFailed(Failed):
    """The object's own exception. `type` and `message` are in `extra`; never a stack trace or a path."""

    code, status, title = "method_failed", 422, "The method raised an exception"


class SqlRefused(Failed):
    """SQL that an object may not run. The detail names what was refused and what to use instead."""

    code, status, title = "sql_refused", 422, "This SQL is not allowed in an object"


class SqlError(Failed):
    """SQLite refused the statement: syntax, a missing table, a constraint."""

    code, status, title = "sql_error", 422, "SQLite reported an error"


class DatabaseFull(Failed):
    """The object's database is at `OBJECT_DB_MAX_MB`; reads and deletes go on working."""

    code, status, title = "database_full", 507, "The object's database is full"


class CallTimeout(Failed):
    """The method ran past `OBJECT_CALL_SECS` and was rolled back."""

    code, status, title = "call_timeout", 504, "The method ran too long and was rolled back"


class OutcomeUnknown(DomicileError):
    """The write was made but nobody can promise yet that it lasts."""

    code, status, title = "outcome_unknown", 504, "The outcome is unknown; retry with the same idempotency key"
    retryable = True


def _leaves(cls: type[DomicileError]) -> list[type[DomicileError]]:
    below = cls.__subclasses__()
    return [cls] if not below else [leaf for sub in below for leaf in _leaves(sub)]


BY_CODE: dict[str, type[DomicileError]] = {cls.code: cls for cls in _leaves(DomicileError)}


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with an app. `line` counts from 1; 0 means the whole file. `cls` is empty outside a class."""

    file: str
    line: int
    cls: str
    text: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.line else self.file
        return f"{where}: {self.cls}: {self.text}" if self.cls else f"{where}: {self.text}"


class BadApp(Exception):
    """The app cannot be served. `problems` holds everything that was found, not just the first."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = problems
