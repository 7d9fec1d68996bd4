"""Hooks and migrations over the lives of an object: once an incarnation, once a residency, once ever."""

from __future__ import annotations

import asyncio
import textwrap

import pytest

from domicile import Object
from domicile.errors import DomicileError, MethodFailed
from domicile.registry import load

hooks: list[str] = []


class Hooked(Object):
    def init(self):
        hooks.append("init")
        self.sql.exec("CREATE TABLE t (x)")

    def on_wake(self):
        hooks.append("wake")
        self.seen = self.sql.one("SELECT count(*) AS n FROM t")["n"]

    def on_sleep(self):
        hooks.append("sleep")
        self.sql.exec("INSERT INTO t VALUES ('slept')")

    def add(self) -> int:
        self.sql.exec("INSERT INTO t VALUES ('call')")
        return self.seen

    def fail(self) -> None:
        raise ValueError("no")


class HookedAsync(Object):
    async def init(self):
        hooks.append("init")
        await asyncio.sleep(0)
        self.sql.exec("CREATE TABLE t (x)")

    async def on_wake(self):
        hooks.append("wake")
        await asyncio.sleep(0)
        self.seen = self.sql.one("SELECT count(*) AS n FROM t")["n"]

    async def on_sleep(self):
        hooks.append("sleep")
        await asyncio.sleep(0)
        self.sql.exec("INSERT INTO t VALUES ('slept')")

    async def add(self) -> int:
        self.sql.exec("INSERT INTO t VALUES ('call')")
        return self.seen

    def fail(self) -> None:
        raise ValueError("no")


@pytest.mark.parametrize("cls", ["Hooked", "HookedAsync"])
def test_hooks_are_counted(run, cls):
    """`init` once an incarnation, `on_wake` once a residency, `on_sleep` at each orderly end, its writes kept; `def`
    and `async def` alike."""

    async def scenario(home):
        hooks.clear()
        assert await home.call(cls, "a", "add") == 0
        assert await home.call(cls, "a", "add") == 0
        assert hooks == ["init", "wake"]
        await home.sleep_object(cls, "a")
        assert await home.call(cls, "a", "add") == 3
        assert hooks == ["init", "wake", "sleep", "wake"]
        await home.restart()
        assert await home.call(cls, "a", "add") == 5
        await home.restart(crash=True, cold=True)
        assert await home.call(cls, "a", "add") == 6
        assert hooks == ["init", "wake", "sleep", "wake", "sleep", "wake", "wake"]
        await home.node.delete(home.key(cls, "a"), None, None)
        assert await home.call(cls, "a", "add") == 0
        assert hooks[-2:] == ["init", "wake"]

    run(scenario, Hooked, HookedAsync)


@pytest.mark.parametrize("cls", ["Hooked", "HookedAsync"])
def test_a_first_call_that_fails_leaves_a_whole_object_or_none(run, cls):
    """When the very first call fails, the next one finds the object as if newly born, or `init` kept whole."""

    async def scenario(home):
        hooks.clear()
        with pytest.raises(MethodFailed):
            await home.call(cls, "a", "fail")
        assert await home.call(cls, "a", "add") == 0
        await home.restart(crash=True, cold=True)
        assert await home.call(cls, "a", "add") == 1

    run(scenario, Hooked, HookedAsync)


def test_an_init_that_fails_is_tried_again(run):
    """A failing `init` fails each call by name and leaves nothing; once it works, the object is born."""

    class Picky(Object):
        ready = False

        def init(self):
            self.sql.exec("CREATE TABLE t (x)")
            if not type(self).ready:
                raise LookupError("not yet")

        def look(self) -> int:
            return self.sql.one("SELECT count(*) AS n FROM t")["n"]

    async def scenario(home):
        for _ in range(3):
            with pytest.raises(MethodFailed, match="not yet"):
                await home.call("Picky", "a", "look")
        Picky.ready = True
        assert await home.call("Picky", "a", "look") == 0

    run(scenario, Picky)


def test_migrations_are_applied_once_and_in_order(run, tmp_path):
    """New migrations come over a restart, on a cold copy too; one that fails fails the calls by name and leaves the
    database as it was; the repaired one then applies."""
    app, where = tmp_path / "shop.py", tmp_path / "steps"
    where.mkdir()
    app.write_text(
        textwrap.dedent(
            """
            from domicile import Object

            class Shop(Object):
                migrations = "steps"

                def add(self, x: int) -> int:
                    self.sql.exec("INSERT INTO items(x) VALUES (?)", x)
                    return self.sql.one("SELECT count(*) AS n FROM items")["n"]

                def columns(self) -> list[str]:
                    return [row["name"] for row in self.sql.query("PRAGMA table_info(items)")]
            """
        )
    )
    (where / "0001_items.sql").write_text("CREATE TABLE items (x INTEGER);")

    def classes():
        return tuple(spec.type for spec in load(str(app)).classes.values() if spec.name == "Shop")

    async def scenario(home):
        home.root.mkdir(exist_ok=True)
        assert await home.call("Shop", "a", "add", 1) == 1
        (where / "0002_price.sql").write_text("ALTER TABLE items ADD COLUMN price INTEGER DEFAULT 7;")
        home.classes = classes()
        await home.restart(crash=True, cold=True)
        assert await home.call("Shop", "a", "columns") == ["x", "price"]
        assert await home.call("Shop", "a", "add", 2) == 2
        (where / "0003_bad.sql").write_text("CREATE TABLE more (y); INSERT INTO nope VALUES (1);")
        home.classes = classes()
        await home.restart()
        for _ in range(2):
            with pytest.raises(DomicileError, match="0003_bad"):
                await home.call("Shop", "a", "add", 3)
        (where / "0003_bad.sql").write_text("CREATE TABLE more (y);")
        home.classes = classes()
        await home.restart()
        assert await home.call("Shop", "a", "add", 3) == 3
        assert await home.call("Shop", "new", "columns") == ["x", "price"]

    run(scenario, *classes())
