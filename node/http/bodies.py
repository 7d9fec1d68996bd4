"""The JSON bodies the surface itself reads: database statements, batches, project policies.

The arguments of a call are not among them: they go to the object's class as they came.
"""

from __future__ import annotations

from typing import Any, Literal, TypeVar

import msgspec

from domicile.errors import BadRequest

BATCH_MAX = 100
T = TypeVar("T")


class Statement(msgspec.Struct, forbid_unknown_fields=True):
    """One SQL statement; `params` by position or by name."""

    sql: str
    params: list[Any] | dict[str, Any] | None = None


class Statements(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a database's `batch`."""

    statements: list[Statement]


class BatchLine(msgspec.Struct, forbid_unknown_fields=True):
    """One call of a batch. `args` is the JSON text of an array, an object or null."""

    name: str
    method: str
    cls: str = msgspec.field(name="class")
    args: msgspec.Raw = msgspec.Raw(b"null")
    key: str | None = None


class ProjectPolicy(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `PUT /v1/projects/{id}`: what is absent keeps its value, or the default."""

    region: str | None = None
    on_incident: Literal["serve", "wait"] | None = None


class ClassPin(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `PUT /v1/projects/{id}/classes/{class}`: a region, or null for none."""

    pin: str | None


def decode_json(body: bytes, shape: type[T]) -> T:
    """The body as `shape`. Raises BadRequest that says where it differs, also for JSON nested too deep."""
    try:
        return msgspec.json.decode(body, type=shape)
    except RecursionError:
        raise BadRequest("the body's JSON is nested too deep") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadRequest(f"the body does not fit: {error}") from None


def statement_body(method: str, body: bytes) -> bytes:
    """The keyword arguments of a database's method, from its HTTP body. Raises BadRequest."""
    shape: type[Statement] | type[Statements] = Statements if method == "batch" else Statement
    decode_json(body, shape)
    return body
