"""Alarms and what happens to a node: floods, ghosts, deletions, wipes (PROTOCOLS section 9)."""

from __future__ import annotations

import asyncio
import time

import pytest

from domicile import Object
from domicile.errors import NoSuchObject
from domicile.placement.alarms import alarm_row, change
from domicile.placement.records import FIRST_INCARNATION

OFF_MS = 60_000  # that a forged row is
running: list[int] = []


class Chime(Object):
    """Counts its rings in the database; the payload says what else happens."""

    wakes = 0

    def init(self):
        self.sql.exec("CREATE TABLE rings (at INTEGER)")
        self.sql.exec("CREATE TABLE notes (text TEXT)")

    def on_wake(self):
        type(self).wakes += 1

    def arm(self, when: float, payload: str | None = None) -> None:
        self.set_alarm(when, payload=payload)

    def note_and_disarm(self, text: str) -> bool:
        with self.sql.tx():
            self.sql.exec("INSERT INTO notes VALUES (?)", text)
            return self.clear_alarm()

    def disarm(self) -> bool:
        return self.clear_alarm()

    def on_alarm(self, alarm) -> None:
        running.append(1)
        if alarm.payload in ("wipe", "wipe and raise"):
            for table in ("rings", "notes"):
                self.sql.exec(f"DROP TABLE {table}")
            if alarm.payload == "wipe and raise":
                raise ValueError("after the wipe")
            return
        self.sql.exec("INSERT INTO rings VALUES (?)", self.now())

    def rings(self) -> list[int]:
        return [row["at"] for row in self.sql.query("SELECT at FROM rings ORDER BY at")]

    def tables(self) -> list[str]:
        return [r["name"] for r in self.sql.query("SELECT name FROM sqlite_schema WHERE name IN ('rings', 'notes')")]

    def armed(self) -> list[int]:
        return [alarm.due_ms for alarm in self.alarms()]


async def in_parallel(calls, at_once=32):
    """Await them all, a few at a time."""
    iterator, results = iter(calls), []

    async def some():
        for call in iterator:
            results.append(await call)

    await asyncio.gather(*(some() for _ in range(at_once)))
    return results


async def mirror_rows(home):
    """How many rows the mirror has."""
    page = await home.node._host.mirror.due(10**13 - 1, 1000)
    return len(page.rows)


async def none_mirrored(home):
    async def none():
        return await mirror_rows(home) == 0

    await home.until(none, "the mirror is empty")


def test_a_flood_of_overdue_alarms_comes_once_each_and_in_measure(run):
    """After an outage each object's missed alarm fires once, so many at a time, and ordinary calls stay quick (field
    case 69)."""
    objects = 400

    async def scenario(home):
        names = [f"o{i}" for i in range(objects)]
        await in_parallel(home.call("Chime", name, "arm", 3600) for name in names)
        await home.call("Chime", "other", "rings")
        await home.stop()
        home.watch.ahead_ms += 7200 * 1000
        running.clear()
        await home.start()
        slowest, most_awake, back = 0.0, 0, time.monotonic()
        while len(running) < objects:
            began = time.monotonic()
            await home.call("Chime", "other", "rings")
            slowest = max(slowest, time.monotonic() - began)
            most_awake = max(most_awake, len(home.node._residents._waking))
            await home.a_while(0.005)

        # A call behind them all takes as long as they do, whatever the machine.
        assert slowest < max(2.0, (time.monotonic() - back) / 2)
        assert most_awake <= 33

        await none_mirrored(home)
        rings = await in_parallel(home.call("Chime", name, "rings") for name in names)
        assert [len(r) for r in rings] == [1] * objects

    run(scenario, Chime, object_sweep_secs=0.3)


def test_a_cleared_alarm_never_fires(run):
    """Cleared and answered is cleared, over a crash, whether or not the mirror knows (field case 70)."""

    async def scenario(home):
        names = [f"o{i}" for i in range(40)]
        await in_parallel(home.call("Chime", name, "arm", 30) for name in names)
        for i, name in enumerate(names):
            await (home.call("Chime", name, "disarm") if i % 2 else home.call("Chime", name, "note_and_disarm", "x"))
        assert await mirror_rows(home) == len(names), "the mirror was not told, and need not be"
        await home.crash()
        home.wipe()
        running.clear()
        home.watch.ahead_ms += 60_000
        await home.start()

        async def checked():
            return await mirror_rows(home) == 0

        await home.until(checked, "each row was held against its object's storage")
        assert not running
        for name in names[::7]:
            assert await home.call("Chime", name, "rings") == await home.call("Chime", name, "armed") == []

    run(scenario, Chime, object_sweep_secs=0.2)


@pytest.mark.parametrize("payload", ["wipe", "wipe and raise"])
def test_a_handler_may_wipe_everything(run, payload):
    """A handler that drops all its tables runs once and leaves nothing that wakes it; one that then raises is undone
    and backs off; the object can be deleted and its name used anew (field case 71)."""

    async def scenario(home):
        await home.call("Chime", "a", "arm", 0.1, payload)
        running.clear()
        await home.until(lambda: running, "the handler ran")
        await home.a_while(0.5)
        assert len(running) == 1
        if payload == "wipe":
            assert await home.call("Chime", "a", "tables") == await home.call("Chime", "a", "armed") == []
            await none_mirrored(home)
            await home.sleep_object("Chime", "a")
            await home.a_while(0.5)
            assert not home.awake("Chime", "a"), "nothing wakes it"
        else:
            assert sorted(await home.call("Chime", "a", "tables")) == ["notes", "rings"]
            assert len(await home.call("Chime", "a", "armed")) == 1
        await home.node.delete(home.key("Chime", "a"), None, None)
        home.watch.ahead_ms += 3_600_000
        await home.a_while(0.5)
        assert len(running) == 1, "a deleted object's alarm does not come back"
        await none_mirrored(home)
        with pytest.raises(NoSuchObject):
            await home.node.describe(home.key("Chime", "a"))
        assert await home.call("Chime", "a", "rings") == []

    run(scenario, Chime, object_sweep_secs=0.1)


def test_an_object_deleted_while_its_handler_runs_is_gone(run):
    """A deletion beside a handler is after it or before it, and in both cases the last word (field case 71)."""

    async def scenario(home):
        for i in range(20):
            name = f"o{i}"
            await home.call("Chime", name, "arm", 0.01 * (i % 3))
            await home.node.delete(home.key("Chime", name), None, None)
        await home.a_while(0.4)
        await none_mirrored(home)
        assert (await home.node.list_objects("demo", None, "", None))["objects"] == []

    run(scenario, Chime, object_sweep_secs=0.1)


def test_ghosts_in_the_mirror_vanish_after_one_look(run):
    """Rows of objects without an alarm, of deleted ones, of ones that never were: gone after one look each, nothing is
    created, and then nothing wakes (field case 75)."""

    async def scenario(home):
        due = home.watch.wall_ms() - 1000
        for i in range(8):
            await home.call("Chime", f"quiet{i}", "rings")
            await home.call("Chime", f"dead{i}", "rings")
            await home.node.delete(home.key("Chime", f"dead{i}"), None, None)
        for i in range(8):
            await home.sleep_object("Chime", f"quiet{i}")
        for i in range(8):
            for kind in ("quiet", "dead", "never"):
                await forge(home, f"{kind}{i}", due)
        Chime.wakes = 0
        running.clear()
        assert await home.node._sweep.pass_over() == 24

        await none_mirrored(home)
        assert await home.node._sweep.pass_over() == 0
        assert not running
        assert Chime.wakes <= 8
        listed = (await home.node.list_objects("demo", None, "", None))["objects"]
        assert sorted(o["name"] for o in listed) == [f"quiet{i}" for i in range(8)]

    run(scenario, Chime, object_sweep_secs=3600)


def test_storage_knows_when(run):
    """A row that is earlier than storage is put right by the wake; one that is later does not delay a resident or a
    sleeper of this node (field case 75)."""

    async def scenario(home):
        for name, off_ms in (("early", -OFF_MS), ("late", OFF_MS)):
            await home.call("Chime", name, "arm", 1.2)
            (due,) = await home.call("Chime", name, "armed")
            await home.sleep_object("Chime", name)
            await forge(home, name, due + off_ms)
            await home.node._sweep.pass_over()

            async def rang(name=name):
                return home.awake("Chime", name) and len(await home.call("Chime", name, "rings")) == 1

            await home.until(rang, "it rang")
            (at,) = await home.call("Chime", name, "rings")
            assert 0 <= at - due < OFF_MS / 2

        await none_mirrored(home)

    run(scenario, Chime, object_sweep_secs=3600)


@pytest.mark.parametrize("how", ["stop", "crash"])
def test_what_fell_due_while_nothing_ran_fires_at_start(run, how):
    """Alarms that came due while the node was down fire soon after its start, once, without any call (field case
    76)."""

    async def scenario(home):
        names = [f"o{i}" for i in range(50)]
        await in_parallel(home.call("Chime", name, "arm", 5) for name in names)
        await (home.stop() if how == "stop" else home.crash())
        home.wipe()
        home.watch.ahead_ms += 60_000
        running.clear()
        await home.start()
        await home.until(lambda: len(running) >= len(names), "all have fired")
        await home.a_while(0.3)
        assert len(running) == len(names)
        assert await home.call("Chime", "o7", "rings") != []

    run(scenario, Chime, object_sweep_secs=0.2)


async def forge(home, name, due_ms):
    """Put a row into the mirror that its object knows nothing of, in place of what was there."""
    key, node = home.key("Chime", name), home.node

    seen = await node._host.mirror.read(key.id)
    _, mutations = change(node._keys, key.id, seen, alarm_row(key, FIRST_INCARNATION, due_ms))
    await home.store.write([], mutations)
    assert (await node._host.mirror.read(key.id)).due_ms == due_ms
