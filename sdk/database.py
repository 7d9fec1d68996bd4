"""`Database`, the platform class: a SQLite database by name, spoken to in SQL over HTTP, with no code of one's own.

JSON has no bytes: a blob travels, in parameters and in rows, as `{"$base64": "aGVsbG8="}` (standard alphabet, padded).
An integer is exact within SQLite's 64 bits; a bool is stored as 0 or 1. An infinity in a row fails the call, since JSON
has none.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Any, TypedDict

from domicile import marks
from domicile.context import Row, Statement
from domicile.errors import BadArguments
from domicile.object import Object

BLOB_KEY = "$base64"
_INT64 = range(-(2**63), 2**63)

Params = list[Any] | dict[str, Any] | None


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
    """A column's value as JSON carries it."""
    return {BLOB_KEY: base64.b64encode(value).decode()} if isinstance(value, bytes) else value


def from_json(value: Any) -> Any:
    """A JSON value as a parameter. Raises BadArguments for lists, other objects and integers past 64 bits."""
    if isinstance(value, dict) and list(value) == [BLOB_KEY] and isinstance(value[BLOB_KEY], str):
        try:
            return base64.b64decode(value[BLOB_KEY], validate=True)
        except (binascii.Error, ValueError) as error:
            raise BadArguments(f"a blob is no base64: {error}") from None
    if isinstance(value, (dict, list)):
        raise BadArguments(f'a parameter is null, a bool, a number, a text or {{"{BLOB_KEY}": ...}}')
    if isinstance(value, int) and value not in _INT64:
        raise BadArguments(f"{value} does not fit SQLite's 64-bit integers")
    return value


def _decoded(params: Params) -> list[Any] | dict[str, Any]:
    if isinstance(params, dict):
        return {name: from_json(value) for name, value in params.items()}
    return [from_json(value) for value in params or ()]


def _given(params: Params) -> Sequence[Any]:
    decoded = _decoded(params)
    return [decoded] if isinstance(decoded, dict) else decoded


def _row(row: Row | None) -> Row | None:
    if row is None or not any(isinstance(value, bytes) for value in row.values()):
        return row
    return {name: to_json(value) for name, value in row.items()}


def _rows(rows: list[Row]) -> list[Row]:
    return [_row(row) or row for row in rows]
