"""What `client.project(…)` leads to: projects, objects and databases, once to be awaited and once blocking.

Every method is one line: `surface` builds the request, the client runs it. The two halves differ in their types only.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Self

from domicile import surface
from domicile.database import Changed
from domicile.requests import Call, ObjectInfo
from domicile.surface import Place, SqlParams

if TYPE_CHECKING:
    from domicile.client import Client, SyncClient
    from domicile.context import Row
    from domicile.object import Object


class _Placed:
    """A handle of one object: where it is, and how calls through it are made."""

    def __init__(self, client: Any, place: Place) -> None:
        self._client = client
        self._place = place

    def options(
        self, *, key: str | None = None, timeout_secs: float | None = None, if_match: str | None = None
    ) -> Self:
        """The same object, called otherwise: with an idempotency key of one's own (for a single call: another one
        under the same key is refused), a deadline in seconds, an incarnation it must be in.
        """
        given = {"key": key, "timeout_secs": timeout_secs, "if_match": if_match}
        return type(self)(self._client, self._place.with_(**{k: v for k, v in given.items() if v is not None}))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._place.project}/{self._place.target.name}/{self._place.name!r})"


class AsyncObject(_Placed):
    """One object. Its methods are attributes; `call` reaches those whose name is taken here."""

    def __getattr__(self, method: str) -> Callable[..., Awaitable[Any]]:
        if method.startswith("_"):
            raise AttributeError(method)
        return lambda *args, **kwargs: self.call(method, *args, **kwargs)

    async def call(self, method: str, /, *args: Any, **kwargs: Any) -> Any:
        return await self._client.run(self._place.call(method, args, kwargs))

    async def delete(self) -> str:
        """Delete the object itself; gives the tombstone's epoch. Raises NoSuchObject, StaleIncarnation."""
        epoch: str = await self._client.run(self._place.delete())
        return epoch

    async def describe(self) -> dict[str, Any]:
        """Where it is and how safe; wakes nothing. Raises NoSuchObject."""
        found: dict[str, Any] = await self._client.run(self._place.describe())
        return found


class SyncObject(_Placed):
    """One object. Its methods are attributes; `call` reaches those whose name is taken here."""

    def __getattr__(self, method: str) -> Callable[..., Any]:
        if method.startswith("_"):
            raise AttributeError(method)
        return lambda *args, **kwargs: self.call(method, *args, **kwargs)

    def call(self, method: str, /, *args: Any, **kwargs: Any) -> Any:
        return self._client.run(self._place.call(method, args, kwargs))

    def delete(self) -> str:
        """Delete the object itself; gives the tombstone's epoch. Raises NoSuchObject, StaleIncarnation."""
        epoch: str = self._client.run(self._place.delete())
        return epoch

    def describe(self) -> dict[str, Any]:
        """Where it is and how safe; wakes nothing. Raises NoSuchObject."""
        found: dict[str, Any] = self._client.run(self._place.describe())
        return found


class AsyncDatabase(AsyncObject):
    """A `Database`, in SQL: parameters by position or by name, rows as dicts, blobs as bytes."""

    async def exec(self, sql: str, params: SqlParams = None) -> Changed:
        changed: Changed = await self._client.run(self._place.sql("exec", sql, params))
        return changed

    async def query(self, sql: str, params: SqlParams = None) -> list[Row]:
        rows: list[Row] = await self._client.run(self._place.sql("query", sql, params))
        return rows

    async def query_one(self, sql: str, params: SqlParams = None) -> Row | None:
        row: Row | None = await self._client.run(self._place.sql("query_one", sql, params))
        return row

    async def read(self, sql: str, params: SqlParams = None) -> list[Row]:
        rows: list[Row] = await self._client.run(self._place.sql("read", sql, params))
        return rows

    async def read_one(self, sql: str, params: SqlParams = None) -> Row | None:
        row: Row | None = await self._client.run(self._place.sql("read_one", sql, params))
        return row

    async def batch(self, statements: Sequence[tuple[str, SqlParams]]) -> list[list[Row]]:
        """Pairs of SQL and parameters, all of them in order or none; each one's rows."""
        rows: list[list[Row]] = await self._client.run(self._place.sql_batch(statements))
        return rows


class SyncDatabase(SyncObject):
    """A `Database`, in SQL: parameters by position or by name, rows as dicts, blobs as bytes."""

    def exec(self, sql: str, params: SqlParams = None) -> Changed:
        changed: Changed = self._client.run(self._place.sql("exec", sql, params))
        return changed

    def query(self, sql: str, params: SqlParams = None) -> list[Row]:
        rows: list[Row] = self._client.run(self._place.sql("query", sql, params))
        return rows

    def query_one(self, sql: str, params: SqlParams = None) -> Row | None:
        row: Row | None = self._client.run(self._place.sql("query_one", sql, params))
        return row

    def read(self, sql: str, params: SqlParams = None) -> list[Row]:
        rows: list[Row] = self._client.run(self._place.sql("read", sql, params))
        return rows

    def read_one(self, sql: str, params: SqlParams = None) -> Row | None:
        row: Row | None = self._client.run(self._place.sql("read_one", sql, params))
        return row

    def batch(self, statements: Sequence[tuple[str, SqlParams]]) -> list[list[Row]]:
        """Pairs of SQL and parameters, all of them in order or none; each one's rows."""
        rows: list[list[Row]] = self._client.run(self._place.sql_batch(statements))
        return rows


class _Project:
    """A project by its id."""

    def __init__(self, client: Any, project: str) -> None:
        self._client = client
        self.id = project
        surface.policy(project)  # a name that can be none is refused here already

    def _at(self, cls: type[Object] | str, name: str) -> Place:
        return surface.place(self.id, cls, name, self._client.system.new_key)


class AsyncProject(_Project):
    """A project by its id."""

    _client: Client

    def object(self, cls: type[Object] | str, name: str) -> AsyncObject:
        """An object. Given the class itself, arguments and results are typed by its annotations."""
        return AsyncObject(self._client, self._at(cls, name))

    def database(self, name: str) -> AsyncDatabase:
        return AsyncDatabase(self._client, self._at("Database", name))

    async def objects(self, cls: str | None = None, prefix: str = "") -> AsyncIterator[ObjectInfo]:
        """The directory, page by page: objects of a class (all if None) whose name starts with `prefix`."""
        token: str | None = None
        while True:
            page = await self._client.run(surface.page(self.id, cls, prefix, token))
            for info in page.objects:
                yield info
            if (token := page.token) is None:
                return

    async def batch(self, calls: Sequence[Call]) -> list[Any]:
        """Up to 100 calls, each its own transaction; a failed one stands in the list as its error, not raised."""
        results: list[Any] = await self._client.run(surface.batch(self.id, calls, self._client.system.new_key))
        return results

    async def policy(self) -> dict[str, Any]:
        """Home region and what else is set. Raises NoSuchProject."""
        policy: dict[str, Any] = await self._client.run(surface.policy(self.id))
        return policy

    async def create(self, region: str | None = None) -> dict[str, Any]:
        """Create the project; one that exists stays where it is. Gives its policy."""
        policy: dict[str, Any] = await self._client.run(surface.create(self.id, region))
        return policy


class SyncProject(_Project):
    """A project by its id."""

    _client: SyncClient

    def object(self, cls: type[Object] | str, name: str) -> SyncObject:
        """An object. Given the class itself, arguments and results are typed by its annotations."""
        return SyncObject(self._client, self._at(cls, name))

    def database(self, name: str) -> SyncDatabase:
        return SyncDatabase(self._client, self._at("Database", name))

    def objects(self, cls: str | None = None, prefix: str = "") -> Iterator[ObjectInfo]:
        """The directory, page by page: objects of a class (all if None) whose name starts with `prefix`."""
        token: str | None = None
        while True:
            page = self._client.run(surface.page(self.id, cls, prefix, token))
            yield from page.objects
            if (token := page.token) is None:
                return

    def batch(self, calls: Sequence[Call]) -> list[Any]:
        """Up to 100 calls, each its own transaction; a failed one stands in the list as its error, not raised."""
        results: list[Any] = self._client.run(surface.batch(self.id, calls, self._client.system.new_key))
        return results

    def policy(self) -> dict[str, Any]:
        """Home region and what else is set. Raises NoSuchProject."""
        policy: dict[str, Any] = self._client.run(surface.policy(self.id))
        return policy

    def create(self, region: str | None = None) -> dict[str, Any]:
        """Create the project; one that exists stays where it is. Gives its policy."""
        policy: dict[str, Any] = self._client.run(surface.create(self.id, region))
        return policy
