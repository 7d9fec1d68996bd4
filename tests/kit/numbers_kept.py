"""Numbers in a table of an opened database: what of a transaction lasted."""

from __future__ import annotations

from typing import Any


def put(one: Any, i: int) -> int:
    return int(one.sql.exec("INSERT INTO t VALUES (?, ?)", i, i))


def ids(one: Any) -> list[int]:
    return [i for (i,) in one.rows("SELECT i FROM t ORDER BY i")]
