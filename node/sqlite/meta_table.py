"""Facts of the object itself, kept in it: one row each, such as that `init` has run."""

from __future__ import annotations

from typing import Any, Protocol

from domicile.node.sqlite.database import Params


class Store(Protocol):
    """Who runs internal SQL: `Database` between calls, `SqlApi` inside one and by its rules. Gives rows."""

    def read(self, sql: str, params: Params = ()) -> list[tuple[Any, ...]]: ...

    def write(self, sql: str, params: Params = ()) -> list[tuple[Any, ...]]: ...


def get(store: Store, key: str) -> bytes | None:
    """Give the value, or None."""
    rows = store.read("SELECT value FROM _domicile_meta WHERE key = ?", (key,))
    return bytes(rows[0][0]) if rows else None


def put(store: Store, key: str, value: bytes) -> None:
    """Set the value in the current transaction."""
    store.write("INSERT OR REPLACE INTO _domicile_meta(key, value) VALUES (?, ?)", (key, value))
