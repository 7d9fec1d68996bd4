"""What a node gives to a waking object: its database, its map, its clock, its alarms and a way to call others.

These are the seams of the SDK. A node (or a test) implements them; `Object` is the only one that calls them. Every
method may raise errors of `domicile.errors`; none raises anything else for a caller's mistake.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

ALARM_NAME_BYTES_MAX = 255
PAYLOAD_BYTES_MAX = 64 << 10
KV_VALUE_BYTES_MAX = 64 << 10

Row = dict[str, Any]
Statement = tuple[str, Sequence[Any] | dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Alarm:
    """A named alarm of one object. `due_ms` is wall time in milliseconds since 1970, UTC.

    `attempts` counts the handler's failures so far; `failed` alarms have used up theirs and stay visible (PROTOCOLS
    section 9).
    """

    name: str
    due_ms: int
    payload_json: bytes | None = None
    cron: str | None = None
    attempts: int = 0
    failed: bool = False

    @property
    def payload(self) -> Any:
        """What was given to `set_alarm`, as JSON carried it; None if nothing was."""
        return None if self.payload_json is None else msgspec.json.decode(self.payload_json)


class Sql(Protocol):
    """The object's private SQLite database, inside the call's transaction.

    Parameters are given one by one; a single dict stands for named ones. Raises SqlError, SqlRefused, DatabaseFull.
    """

    def exec(self, sql: str, *params: Any) -> int:
        """Run one statement; gives the number of rows it changed."""
        ...

    def query(self, sql: str, *params: Any) -> list[Row]: ...

    def one(self, sql: str, *params: Any) -> Row | None:
        """The first row, or None; further rows are not an error."""
        ...

    def batch(self, statements: Sequence[Statement]) -> list[list[Row]]:
        """Statements in order, each with its rows; all of them or, on an error, none."""
        ...

    def tx(self) -> AbstractContextManager[None]:
        """A part of the call that can be undone alone: an exception that leaves the block undoes just the block."""
        ...


class Kv(Protocol):
    """A small durable map beside the database, in the same transaction. Values are what JSON carries, up to 64 KiB.

    Raises BadArguments for a value that is too large or that JSON cannot carry.
    """

    def get(self, key: str, default: Any = None) -> Any: ...

    def put(self, key: str, value: Any) -> None: ...

    def delete(self, key: str) -> bool:
        """Whether there was such a key."""
        ...

    def list(self, prefix: str = "") -> dict[str, Any]:
        """Keys that start with `prefix`, in order of their UTF-8 bytes, with their values."""
        ...


class Log(Protocol):
    """An event name and fields; project, class and name of the object are added by the node."""

    def debug(self, event: str, **fields: Any) -> Any: ...

    def info(self, event: str, **fields: Any) -> Any: ...

    def warning(self, event: str, **fields: Any) -> Any: ...

    def error(self, event: str, **fields: Any) -> Any: ...


class Context(Protocol):
    """One object's view of its node, for one residency (or one read)."""

    @property
    def scope(self) -> str: ...

    @property
    def cls(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def sql(self) -> Sql: ...

    @property
    def kv(self) -> Kv: ...

    @property
    def log(self) -> Log: ...

    def now_ms(self) -> int:
        """Wall time of the running call's start, milliseconds since 1970; the same all through the call."""
        ...

    def set_alarm(self, name: str, due_ms: int, payload_json: bytes | None, cron: str | None) -> None:
        """Set or replace the alarm of this name; names and sizes are checked by the caller."""
        ...

    def clear_alarm(self, name: str) -> bool:
        """Whether there was such an alarm."""
        ...

    def alarms(self) -> list[Alarm]:
        """By due time, then name; failed ones included."""
        ...

    def invoke(self, cls: str, name: str, method: str, body: bytes) -> bytes | Awaitable[bytes]:
        """Call another object of the same scope with JSON arguments; gives the JSON result.

        Blocks and gives bytes while a `def` method runs, gives an awaitable while an `async def` method does.
        """
        ...
