"""An object's database, opened as a residency does, with the surfaces its methods see."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from domicile.node.sqlite.birth import IMAGE
from domicile.node.sqlite.database import Database
from domicile.node.sqlite.kv import KvApi
from domicile.node.sqlite.sql import SqlApi
from domicile.node.sqlite.transaction import AsyncWork, Done, Limits, Transactions, Work


class HandClock:
    """A clock that moves when told."""

    def __init__(self) -> None:
        self.ms = 1_800_000_000_000

    def monotonic(self) -> float:
        return self.ms / 1000

    def wall_ms(self) -> int:
        return self.ms

    async def sleep(self, secs: float) -> None:
        self.ms += int(secs * 1000)


class Opened:
    """One open object: `db`, `sql`, `kv`, `tx`, `clock`, and ways to call it."""

    def __init__(self, path: Path, *, bytes_max: int = 64 << 20, laid: int = 0, vfs: str | None = None) -> None:
        self.path = path
        self.clock = HandClock()
        self.before_commit: Callable[[], None] = lambda: None
        self.db = Database.open(str(path), vfs=vfs, bytes_max=bytes_max, laid=laid, mark="k3yz")
        self.sql = SqlApi(self.db)
        self.kv = KvApi(self.sql)
        self.tx = Transactions(self.db, self.sql, self.clock, Limits(), before_commit=lambda: self.before_commit())

    def work(self, function: Callable[[], Any], **more: Any) -> Work:
        return Work(run=lambda: json.dumps(function()).encode(), method=more.pop("method", "m"), **more)

    def group(self, *works: Work | Callable[[], Any]) -> list[Done]:
        return self.tx.run_group([each if isinstance(each, Work) else self.work(each) for each in works])

    def call(self, function: Callable[[], Any], **more: Any) -> Done:
        """Run one call by itself."""
        return self.group(self.work(function, **more))[0]

    def ok(self, method: Callable[[], Any], **more: Any) -> Any:
        """The result of a call that must succeed."""
        done = self.call(method, **more)
        if done.error is not None:
            raise done.error
        assert done.answer is not None
        return json.loads(done.answer)

    def script(self, sql: str) -> None:
        self.ok(lambda: self.sql.exec(sql))

    def rows(self, sql: str, *params: Any) -> list[tuple[Any, ...]]:
        """What is committed, as tuples."""
        return [tuple(row.values()) for row in self.ok(lambda: self.sql.query(sql, *params))]

    async def call_async(self, method: Callable[[], Any], **more: Any) -> Done:
        async def run() -> bytes:
            return json.dumps(await method()).encode()

        return await self.tx.run_alone(AsyncWork(run=run, method="m", **more))

    def reopened(self, **more: Any) -> Opened:
        """Closed and opened again at its committed length."""
        laid = self.db.length
        assert self.db.close()
        return Opened(self.path, laid=laid, **more)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[..., Opened]]:
    """Makes new objects; `bytes_max` may be given. Whatever is open in the end is closed."""
    made: list[Opened] = []

    def make(**more: Any) -> Opened:
        path = tmp_path / f"{len(made)}.db"
        path.write_bytes(IMAGE)
        made.append(Opened(path, **more))
        return made[-1]

    yield make
    for each in made:
        each.db.close()


@pytest.fixture
def thing(opened: Callable[..., Opened]) -> Opened:
    """A new object with a table t(i INTEGER PRIMARY KEY, b)."""
    one = opened()
    one.script("CREATE TABLE t(i INTEGER PRIMARY KEY, b)")
    return one
