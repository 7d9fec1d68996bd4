"""`Database`, the platform class: a SQLite database by name, spoken to in SQL over HTTP, with no code of one's own.

JSON has no bytes: a blob travels, in parameters and in rows, as `{"$base64": "aGVsbG8="}` (standard alphabet, padded);
the Python clients take and give `bytes`. An integer is exact within SQLite's 64 bits; a bool is stored as 0 or 1. An
infinity in a row fails the call, since JSON has none.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Annotated, Any, TypedDict

import msgspec

from domicile import marks
from domicile.context import Row, Statement
from domicile.object import Object

BLOB_KEY = "$base64"


class Blob(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A blob on its way through JSON."""

    data: bytes = msgspec.field(name=BLOB_KEY)


Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Value = None | bool | Int64 | float | str | Blob
Params = list[Value] | dict[str, Value] | None


class Changed(TypedDict):
    """How many rows a statement inserted, updated or deleted."""

    rows_changed: int


class _GivenSql(TypedDict):
    sql: str


class SqlStatement(_GivenSql, total=False):
    """One statement of a batch."""

    params: Params


class Database(Object):
    """SQL as a service. Every call is one transaction; `read` and `read_one` run on a snapshot, on any node."""

    def exec(self, sql: str, params: Params = None) -> Changed:
        return {"rows_changed": self.sql.exec(sql, *_given(params))}

    def query(self, sql: str, params: Params = None) -> list[Row]:
        return _rows(self.sql.query(sql, *_given(params)))

    def query_one(self, sql: str, params: Params = None) -> Row | None:
        return _row(self.sql.one(sql, *_given(params)))

    def batch(self, statements: list[SqlStatement]) -> list[list[Row]]:
        """All statements in order, or none; each one's rows."""
        given: list[Statement] = [(s["sql"], _decoded(s.get("params"))) for s in statements]
        return [_rows(rows) for rows in self.sql.batch(given)]

    @marks.read
    def read(self, sql: str, params: Params = None) -> list[Row]:
        return _rows(self.sql.query(sql, *_given(params)))

    @marks.read
    def read_one(self, sql: str, params: Params = None) -> Row | None:
        return _row(self.sql.one(sql, *_given(params)))


def to_json(value: Any) -> Any:
    """A column's value, or a parameter, as JSON carries it."""
    return Blob(value) if isinstance(value, bytes) else value


def from_json(value: Any) -> Any:
    """A decoded answer with its blobs as bytes again."""
    if isinstance(value, list):
        return [from_json(item) for item in value]
    if not isinstance(value, dict):
        return value
    if list(value) == [BLOB_KEY] and isinstance(value[BLOB_KEY], str):
        return base64.b64decode(value[BLOB_KEY])
    return {name: from_json(item) for name, item in value.items()}


def _plain(value: Value) -> Any:
    return value.data if isinstance(value, Blob) else value


def _decoded(params: Params) -> list[Any] | dict[str, Any]:
    if isinstance(params, dict):
        return {name: _plain(value) for name, value in params.items()}
    return [_plain(value) for value in params or ()]


def _given(params: Params) -> Sequence[Any]:
    decoded = _decoded(params)
    return [decoded] if isinstance(decoded, dict) else decoded


def _row(row: Row | None) -> Row | None:
    if row is None or not any(isinstance(value, bytes) for value in row.values()):
        return row
    return {name: to_json(value) for name, value in row.items()}


def _rows(rows: list[Row]) -> list[Row]:
    return [_row(row) or row for row in rows]
