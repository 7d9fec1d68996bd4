"""MoveProject in bad hours: load, killed workers, cancels, dead owners, deaf nodes (PROTOCOLS section 10)."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest
from control_plane import settled
from killed_workers import Killer, intercepted
from temporalio.client import WorkflowFailureError
from temporalio.common import WorkflowIDConflictPolicy

import domicile
from domicile import Object, Region
from domicile.errors import DomicileError
from domicile.node.errors import BlobUnavailable
from domicile.placement.records import Held, ObjectKey
from domicile.workflows.queues import CONTROL_QUEUE

PROJECT = "demo"
REGIONS = ("a", "b")
STEPS = (
    "move-begin",
    "move-mark",
    "move-read-gate",
    "move-change-gate",
    "move-copy",
    "move-drain",
    "move-flip",
    "move-clear",
)
OBJECTS = int(os.environ.get("DOMICILE_MOVED_OBJECTS", "40"))
WRITES_PER_SEC = 50


class Ledger(Object):
    def init(self):
        self.sql.exec("CREATE TABLE l (n INTEGER NOT NULL)")
        self.sql.exec("INSERT INTO l VALUES (0)")
        self.sql.exec("CREATE TABLE pads (pad BLOB)")

    def add(self) -> int:
        return self.sql.one("UPDATE l SET n = n + 1 RETURNING n")["n"]

    def fill(self, size: int) -> None:
        self.sql.exec("INSERT INTO pads VALUES (randomblob(?))", size)

    def ring(self, ms: int) -> None:
        self.set_alarm(f"{ms}ms")

    def on_alarm(self) -> None:
        self.add()

    @domicile.read
    def look(self) -> int:
        return self.sql.one("SELECT n FROM l")["n"]


class Pinned(Ledger):
    placement = Region("a")


async def begin(plane: Any, to: str, **more: Any) -> Any:
    asked = {"project": PROJECT, "to": to, **more}
    return await plane.client.start_workflow("MoveProject", asked, id=f"move-{PROJECT}", task_queue=CONTROL_QUEUE)


async def gate(plane: Any, region: str) -> Any:
    world = await plane.world.region(region)
    return (await world.gates.get(world.keys.gate_project(PROJECT))).row


class Load:
    """Writes through every node of every region, one after the other to each object; refused ones are sent again."""

    def __init__(self, plane: Any, names: list[str]) -> None:
        self._nodes = [one for group in plane.regions.values() for one in group.nodes]
        self._names = names
        self._over = False
        self.answered = dict.fromkeys(names, 0)
        self.refused: list[DomicileError] = []
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        at, calls = 0, set()
        while not self._over:
            calls.add(asyncio.create_task(self._write(at)))
            at += 1
            await asyncio.sleep(1 / WRITES_PER_SEC)
        await asyncio.gather(*calls)

    async def _write(self, at: int) -> None:
        name, node = self._names[at % len(self._names)], self._nodes[at % len(self._nodes)]
        while True:
            try:
                await node.call("Ledger", name, "add", key=f"w{at}")
                break
            except DomicileError as error:
                self.refused.append(error)
                await asyncio.sleep(error.retry_after or 0.1)
        self.answered[name] += 1

    async def end(self) -> None:
        self._over = True
        await self._task


def test_every_answered_write_is_there_after_a_move_under_load(control: Any) -> None:
    """Under 50 writes a second every answered write is in b, none is there twice, callers saw `moving` alone, and the
    time without service is stated and under 5 s. The last pass copied what had changed."""

    async def scenario(plane: Any) -> None:
        a, b = plane.regions["a"].nodes[0], plane.regions["b"].nodes[0]
        names = [f"o{at}" for at in range(OBJECTS)]
        for at in range(0, OBJECTS, 20):
            await asyncio.gather(*(a.call("Ledger", name, "fill", 1_000_000) for name in names[at : at + 20]))
        await a.call("Ledger", "bell", "ring", 4_000)
        load = Load(plane, names)
        await plane.until(lambda: sum(load.answered.values()) > 20, "writes are answered")
        moved = await (await begin(plane, "b")).result()
        await plane.a_while(0.5)
        await load.end()
        assert moved["moved"]
        assert {error.code for error in load.refused} <= {"moving"}, {e.code: e.detail for e in load.refused}
        assert all(error.retry_after for error in load.refused)
        assert 0 < moved["unserved_secs"] < 5
        assert moved["last_pass_bytes"] < moved["copied_bytes"] / 4
        counts = await asyncio.gather(*(b.call("Ledger", name, "look") for name in names))
        assert counts == list(load.answered.values())
        await plane.until(lambda: settled_look(b, "bell", 1), "the alarm fired in b")

    control(scenario, Ledger, regions=REGIONS)


async def settled_look(one: Any, name: str, count: int) -> bool:
    return await one.call("Ledger", name, "look") == count


def test_a_worker_killed_at_every_activity(control: Any) -> None:
    """Cut off after each activity had its effect and before it said so, the move ends as if nothing had been; case 121:
    no worker that takes over finds the history to be another than its own."""

    async def scenario(plane: Any) -> None:
        a, b = plane.regions["a"].nodes[0], plane.regions["b"].nodes[0]
        names = [f"o{at}" for at in range(10)]
        for name in names:
            await a.call("Ledger", name, "add")
        killer = Killer(STEPS)
        await intercepted(plane, killer)
        handle = await begin(plane, "b")
        result = asyncio.create_task(handle.result())
        await killer.kill(plane)
        moved = await result
        assert moved["moved"]
        assert (await gate(plane, "b")).open
        assert (await gate(plane, "a")).to == "b"
        assert await asyncio.gather(*(b.call("Ledger", name, "add") for name in names)) == [2] * len(names)

    control(scenario, Ledger, regions=REGIONS)


def test_a_move_goes_on_when_temporal_was_restarted(control: Any, temporal: Any) -> None:
    """Temporal is killed while the gate is closed, and started over its file: the move goes on."""

    async def scenario(plane: Any) -> None:
        a, b = plane.regions["a"].nodes[0], plane.regions["b"].nodes[0]
        await a.call("Ledger", "x", "add")
        draining, go = asyncio.Event(), asyncio.Event()

        async def hold(method: str) -> None:
            if method == "drain-project":
                draining.set()
                await go.wait()

        plane.before_ask = hold
        handle = await begin(plane, "b")
        await draining.wait()
        temporal.restart()  # here: it dies with the thread that started it
        go.set()
        moved = await asyncio.wait_for(handle.result(), 60)
        assert moved["moved"]
        assert await b.call("Ledger", "x", "add") == 2

    control(scenario, Ledger, regions=REGIONS)


def test_a_move_cancelled_before_the_flip_serves_in_the_old_region(control: Any) -> None:
    """Cancelled while it drains, a's gate is open with a new term; a second move, started twice, is one and moves."""

    async def scenario(plane: Any) -> None:
        a, b = plane.regions["a"].nodes[0], plane.regions["b"].nodes[0]
        await a.call("Ledger", "x", "add")
        before = await gate(plane, "a")
        draining = asyncio.Event()

        async def hold(method: str) -> None:
            if method == "drain-project":
                draining.set()
                await plane.a_while(1)
                raise BlobUnavailable("held up")

        plane.before_ask = hold
        handle = await begin(plane, "b")
        await draining.wait()
        assert (await handle.query("progress"))["cancellable"] is True
        assert not (await gate(plane, "a")).open
        with pytest.raises(DomicileError) as refused:
            await a.call("Ledger", "x", "add")
        assert refused.value.code == "moving"
        await handle.cancel()
        with pytest.raises(WorkflowFailureError):
            await handle.result()
        assert (await handle.describe()).status.name == "CANCELED"
        after = await gate(plane, "a")
        assert after.open
        assert after.term > before.term
        assert await a.call("Ledger", "x", "add") == 2
        assert await settled(b.call, "Ledger", "x", "look") == 2, "through the region it was to go to as well"
        plane.before_ask = None
        again = await begin(plane, "b")
        twice = await plane.client.start_workflow(
            "MoveProject",
            {"project": PROJECT, "to": "b"},
            id=f"move-{PROJECT}",
            task_queue=CONTROL_QUEUE,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        )
        assert again.first_execution_run_id == twice.first_execution_run_id
        assert (await twice.result())["moved"]
        assert await b.call("Ledger", "x", "add") == 3

    control(scenario, Ledger, regions=REGIONS)


def test_a_cancel_counts_though_the_step_under_way_ends_well(control: Any) -> None:
    """The drain is done before it hears of the cancel: nothing is flipped all the same, and a serves."""

    async def scenario(plane: Any) -> None:
        a = plane.regions["a"].nodes[0]
        await a.call("Ledger", "x", "add")
        draining, go = asyncio.Event(), asyncio.Event()

        async def hold(method: str) -> None:
            if method == "drain-project":
                draining.set()
                await go.wait()

        plane.before_ask = hold
        handle = await begin(plane, "b")
        await draining.wait()
        await handle.cancel()
        go.set()
        with pytest.raises(WorkflowFailureError):
            await handle.result()
        assert (await handle.describe()).status.name == "CANCELED"
        assert (await gate(plane, "a")).open
        assert await a.call("Ledger", "x", "add") == 2

    control(scenario, Ledger, regions=REGIONS)


def test_a_project_is_called_through_both_regions_while_it_is_copied(control: Any) -> None:
    """However long a pass takes: nobody is told that it is moving before the old gate closes."""

    async def scenario(plane: Any) -> None:
        a, b = plane.regions["a"].nodes[0], plane.regions["b"].nodes[0]
        assert await a.call("Ledger", "x", "add") == 1
        killer = Killer(("move-copy",))
        await intercepted(plane, killer)
        handle = await begin(plane, "b")
        await asyncio.wait_for(killer.struck.wait(), 20)
        seen = b.node._gates.followed.rows
        key = (await plane.world.region("b")).keys.gate_project(PROJECT)
        await plane.until(lambda: key in seen, "b has seen its gate, which is closed")
        assert await b.call("Ledger", "x", "add") == 2
        assert await b.call("Ledger", "new", "add") == 1
        assert await a.call("Ledger", "x", "add") == 3
        await plane.stop_worker()
        await plane.start_worker()
        assert (await handle.result())["moved"]
        assert await settled(a.call, "Ledger", "x", "add") == 4
        assert await b.call("Ledger", "new", "add") == 2

    control(scenario, Ledger, regions=REGIONS)


def test_after_the_flip_a_cancel_is_too_late(control: Any) -> None:
    """Once the home is flipped the move says so, and rolls forward whatever it is told."""

    async def scenario(plane: Any) -> None:
        a, b = plane.regions["a"].nodes[0], plane.regions["b"].nodes[0]
        await a.call("Ledger", "x", "add")
        killer = Killer(("move-flip",))
        await intercepted(plane, killer)
        handle = await begin(plane, "b")
        await asyncio.wait_for(killer.struck.wait(), 20)
        assert (await handle.query("progress"))["cancellable"] is False
        await handle.cancel()
        await plane.stop_worker()
        await plane.start_worker()
        assert (await handle.result())["moved"]
        assert not (await gate(plane, "a")).open
        assert await b.call("Ledger", "x", "add") == 2

    control(scenario, Ledger, regions=REGIONS)


def test_answers_of_owners_that_died_are_in_the_new_region(control: Any) -> None:
    """Owners killed right after a quorum had answered, the bucket cut: the drain lands what the members have."""

    async def scenario(plane: Any) -> None:
        group = plane.regions["a"]
        names = [f"o{at}" for at in range(20)]
        for name in names:
            await group.nodes[0].call("Ledger", name, "add")
        put = group.blobs.put

        async def cut(*args: Any) -> str:
            raise BlobUnavailable("the bucket is cut off")

        group.blobs.put = cut
        answered = [await group.nodes[0].call("Ledger", name, "add") for name in names]
        await group.nodes[0].crash()
        group.blobs.put = put
        world = await plane.world.region("a")
        held = [await world.leases.read(ObjectKey(PROJECT, "Ledger", name).id) for name in names]
        assert any(isinstance(seen.row.state, Held) for seen in held)
        moved = await (await begin(plane, "b")).result()
        assert moved["moved"]
        assert moved["landed"] > 0
        b = plane.regions["b"].nodes[0]
        assert [await b.call("Ledger", name, "look") for name in names] == answered

    control(scenario, Ledger, regions=REGIONS, nodes=3)


def test_a_node_that_hears_nothing_claims_nothing(control: Any) -> None:
    """A node whose watches are cut for the whole move and after it answers nothing of the project itself after its last
    release, whatever it remembers; and a class that is pinned to a serves there all along."""

    async def scenario(plane: Any) -> None:
        deaf, b = plane.regions["a"].nodes[0], plane.regions["b"].nodes[0]
        assert await deaf.call("Ledger", "x", "add") == 1
        assert await deaf.call("Pinned", "p", "add") == 1
        for followed in (deaf.node._gates.followed, deaf.node._projects.followed):
            followed._apply = lambda event: None
        pinned = asyncio.create_task(keep_adding(plane, deaf, "p"))
        assert (await (await begin(plane, "b")).result())["moved"]
        pinned.cancel()
        assert await b.call("Ledger", "x", "add") == 2
        for name, count in (("x", 3), ("never seen", 1)):  # its claims are refused by a gate that names b
            assert await settled(deaf.call, "Ledger", name, "add") == count
            assert not deaf.home_of("Ledger", name)
            assert b.home_of("Ledger", name)
        assert deaf.home_of("Pinned", "p"), "the pinned class stays"
        assert await deaf.call("Pinned", "p", "look") > 1

    async def keep_adding(plane: Any, one: Any, name: str) -> None:
        while True:
            await one.call("Pinned", name, "add")
            await plane.a_while(0.02)

    control(scenario, Ledger, Pinned, regions=REGIONS)


def test_an_incident_stops_a_move_and_asks(control: Any) -> None:
    """Two of three copies are gone: the move waits with the gate closed and names the object; told to go on, it moves
    what is there, and the incident is recorded in both regions."""

    async def scenario(plane: Any) -> None:
        group = plane.regions["a"]
        await group.nodes[0].call("Ledger", "x", "add")
        home = group.home("Ledger", "x")
        member = next(one for one in group.others(home) if one.node._copy_id() in members(home))
        rest = next(one for one in group.nodes if one not in (home, member))
        await member.crash()
        await home.crash()
        await group.until(lambda: len(rest.node._nodes.all()) == 1, "their rows are gone")
        handle = await begin(plane, "b")
        await plane.until(lambda: asks(handle), "it asks")
        assert not (await gate(plane, "a")).open
        await handle.signal("go_on")
        assert (await handle.result())["moved"]
        assert len(await rest.node.incidents()) == 1
        b = plane.regions["b"].nodes[0]
        assert len(await b.node.incidents()) == 1
        assert await b.call("Ledger", "x", "look") == 1

    def members(home: Any) -> set[str]:
        return set(home.residency("Ledger", "x").leg.manifest.members)

    async def asks(handle: Any) -> bool:
        incidents = (await handle.query("progress"))["incidents"]
        return bool(incidents) and "Ledger/x" in incidents[0]

    control(scenario, Ledger, regions=REGIONS, nodes=3, object_quorum=1, object_takeover_wait_ms=300)


def test_a_long_move_goes_on_in_new_runs(control: Any) -> None:
    """Slices of a pass are steps of their own; past a bound of its history the move goes on in another run, and the
    result counts everything."""

    async def scenario(plane: Any) -> None:
        a, b = plane.regions["a"].nodes[0], plane.regions["b"].nodes[0]
        names = [f"o{at}" for at in range(200)]
        for at in range(0, 200, 50):
            await asyncio.gather(*(a.call("Ledger", name, "add") for name in names[at : at + 50]))
        handle = await begin(plane, "b", objects_per_step=50, history_max=40)
        moved = await handle.result()
        assert (moved["moved"], moved["objects"]) == (True, 200)
        latest = plane.client.get_workflow_handle(handle.id)
        assert (await latest.describe()).run_id != handle.first_execution_run_id
        assert await plane.history_events(latest) < 120
        assert await b.call("Ledger", names[-1], "add") == 2

    control(scenario, Ledger, regions=REGIONS)


@pytest.mark.parametrize("to", REGIONS)
@pytest.mark.parametrize("after", ["move-change-gate", "move-drain", "move-flip"])
def test_a_move_that_was_terminated_is_settled_by_asking_again(control: Any, after: str, to: str) -> None:
    """Ended from outside, with gates closed and without going back, it is done by a move to either region: there one
    gate opens, the mark goes, and calls through both regions are answered."""

    async def scenario(plane: Any) -> None:
        a, b = plane.regions["a"].nodes[0], plane.regions["b"].nodes[0]
        assert await a.call("Ledger", "x", "add") == 1
        killer = Killer((after,))
        await intercepted(plane, killer)
        handle = await begin(plane, "b")
        await asyncio.wait_for(killer.struck.wait(), 20)
        await handle.terminate("by hand")
        await plane.stop_worker()
        await plane.start_worker()
        await (await begin(plane, to)).result()
        assert await settled(a.call, "Ledger", "x", "add") == 2
        assert await settled(b.call, "Ledger", "x", "add") == 3
        gates = {region: await gate(plane, region) for region in REGIONS}
        (other,) = {*REGIONS} - {to}
        assert gates[to].open
        assert not gates[other].open
        assert (await (await begin(plane, to)).result())["detail"] == f"{PROJECT} is already in {to}", "no mark is left"

    control(scenario, Ledger, regions=REGIONS)
