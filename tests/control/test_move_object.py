"""MoveObject over regions: one object goes by itself, and comes back (PROTOCOLS section 10)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from control_plane import beat_for_ever, settled
from counting import Ledger
from killed_workers import Killer, intercepted
from moves import PROJECT, rows
from temporalio.client import WorkflowFailureError

from domicile.errors import DomicileError, Moving, NotHome
from domicile.placement.records import Forwarded, ObjectKey, Released
from domicile.workflows.queues import CONTROL_QUEUE


async def begin(plane: Any, name: str, to: str) -> Any:
    asked = {"project": PROJECT, "cls": "Ledger", "name": name, "to": to}
    key = ObjectKey(PROJECT, "Ledger", name)
    return await plane.client.start_workflow("MoveObject", asked, id=f"move-object-{key.id}", task_queue=CONTROL_QUEUE)


def crossings(one: Any) -> int:
    """Hops into other regions that this node has made."""
    return sum(counter.value for counter in one.node._seams.telemetry.region_hops.children.values())


def test_an_object_moves_by_itself_and_is_found(control: Any) -> None:
    """Under calls it goes from a to b; every answered write is there, callers saw `moving` alone; through c the first
    call takes two hops between regions, the next one; its project, and another object of it, stay in a."""

    async def scenario(plane: Any) -> None:
        a, b, c = (plane.regions[name].nodes[0] for name in ("a", "b", "c"))
        assert await a.call("Ledger", "x", "add") == 1
        assert await a.call("Ledger", "other", "add") == 1
        refused: list[DomicileError] = []
        over = asyncio.Event()
        answered = [1]
        load = asyncio.create_task(keep_adding(plane, over, answered, refused))
        moved = await (await begin(plane, "x", "b")).result()
        over.set()
        await load
        assert (moved["moved"], moved["source"], moved["to"]) == (True, "a", "b")
        assert {error.code for error in refused} <= {"moving"}
        assert isinstance((await rows(plane, "a", "x")).state, Forwarded)
        assert await c.call("Ledger", "other", "add") == 2
        before = crossings(c)
        assert await c.call("Ledger", "x", "add") == answered[-1] + 1
        assert crossings(c) == before + 2
        assert await c.call("Ledger", "x", "add") == answered[-1] + 2
        assert crossings(c) == before + 3
        assert b.home_of("Ledger", "x")
        assert a.home_of("Ledger", "other")

    async def keep_adding(plane: Any, over: asyncio.Event, answered: list[int], refused: list[DomicileError]) -> None:
        done = False
        while not done:
            try:
                answered.append(await plane.regions["a"].nodes[0].call("Ledger", "x", "add", key=f"k{len(answered)}"))
                done = over.is_set()
            except DomicileError as error:
                refused.append(error)
                await plane.a_while(0.05)
        assert answered == list(range(1, len(answered) + 1))

    control(scenario, Ledger, regions=("a", "b", "c"))


def test_it_comes_back_and_its_project_moves_without_it(control: Any) -> None:
    """There and back epochs grow; its alarm comes along. One that was placed by itself stays where it is when its
    project moves, and is found through every region."""

    async def scenario(plane: Any) -> None:
        a, b = (plane.regions[name].nodes[0] for name in ("a", "b"))
        await a.call("Ledger", "x", "add")
        await a.call("Ledger", "x", "ring", 3_600_000)
        first = a.residency("Ledger", "x").epoch
        assert (await (await begin(plane, "x", "b")).result())["moved"]
        assert (await rows(plane, "a", "x")).alarm.row is None
        assert (await rows(plane, "b", "x")).alarm.row is not None
        assert await b.call("Ledger", "x", "add") == 2
        second = b.residency("Ledger", "x").epoch
        assert (await (await begin(plane, "x", "a")).result())["source"] == "b"
        assert await a.call("Ledger", "x", "add") == 3
        assert first < second < a.residency("Ledger", "x").epoch
        assert isinstance((await rows(plane, "b", "x")).state, Forwarded)
        await a.call("Ledger", "follows", "add")
        project = {"project": PROJECT, "to": "b"}
        moved = await plane.client.execute_workflow("MoveProject", project, id="move-demo", task_queue=CONTROL_QUEUE)
        assert moved["moved"]
        assert await b.call("Ledger", "follows", "add") == 2
        assert await b.call("Ledger", "x", "add") == 4
        assert a.home_of("Ledger", "x")
        assert not b.home_of("Ledger", "x")

    control(scenario, Ledger, regions=("a", "b"))


def test_a_move_of_nothing_changes_nothing(control: Any) -> None:
    """An object that is not there, or there already; a region nobody knows."""

    async def scenario(plane: Any) -> None:
        a = plane.regions["a"].nodes[0]
        await a.call("Ledger", "x", "add")
        assert not (await (await begin(plane, "x", "a")).result())["moved"]
        for name, to, why in (("nobody", "b", "no object"), ("x", "c", "no region c")):
            with pytest.raises(WorkflowFailureError) as failed:
                await (await begin(plane, name, to)).result()
            assert why in _root(failed.value)
        assert await a.call("Ledger", "x", "add") == 2

    control(scenario, Ledger, regions=("a", "b"))


def _root(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error)


def test_a_cancelled_move_of_an_object_leaves_it_where_it_was(control: Any) -> None:
    """Cancelled while it is held up, the row is its release again, and no gate stays in the target."""

    async def scenario(plane: Any) -> None:
        a = plane.regions["a"].nodes[0]
        await a.call("Ledger", "x", "add")
        asked = asyncio.Event()

        async def hold(method: str) -> None:
            asked.set()
            await plane.a_while(0.2)
            raise DomicileError("held up")

        plane.before_ask = hold
        handle = await begin(plane, "x", "b")
        await asked.wait()
        await handle.cancel()
        with pytest.raises(WorkflowFailureError):
            await handle.result()
        assert (await handle.describe()).status.name == "CANCELED"
        assert await a.call("Ledger", "x", "add") == 2
        there = await rows(plane, "b", "x")
        assert not there.own_gate
        assert isinstance(there.state, Forwarded)
        plane.before_ask = None
        assert (await (await begin(plane, "x", "b")).result())["moved"]
        assert await plane.regions["b"].nodes[0].call("Ledger", "x", "add") == 3
        assert isinstance((await rows(plane, "a", "x")).state, Forwarded | Released)

    control(scenario, Ledger, regions=("a", "b"))


def test_an_object_that_went_from_region_to_region_is_found_from_each(control: Any) -> None:
    """Through its old home one hop while it is one move away, two after the next, then one again. Through a region that
    it left long ago a call is refused once at most, to be tried again: what it met on its way is remembered."""

    async def scenario(plane: Any) -> None:
        nodes = {name: plane.regions[name].nodes[0] for name in "abcd"}
        counted = await nodes["a"].call("Ledger", "x", "add")

        async def hops(through: str) -> int:
            """Of the call that is answered: until a region has seen that the move is over it says so."""
            nonlocal counted
            while True:
                before = crossings(nodes[through])
                try:
                    answer = await nodes[through].call("Ledger", "x", "add")
                except Moving:
                    await plane.a_while(0.05)
                else:
                    counted += 1
                    assert answer == counted
                    return int(crossings(nodes[through]) - before)

        async def gone(to: str) -> None:
            assert (await (await begin(plane, "x", to)).result())["moved"]

        await gone("b")
        assert [await hops("a"), await hops("a")] == [1, 1]
        await gone("c")
        assert [await hops("a"), await hops("a")] == [2, 1]
        await gone("d")
        await gone("a")
        with pytest.raises(NotHome) as refused:
            await hops("b")  # by c and d, who says that it is in a
        assert refused.value.retryable
        assert [await hops("b"), await hops("b")] == [1, 1]
        assert [await hops("c"), await hops("c")] == [2, 1]
        assert [await hops("d"), await hops("a")] == [1, 0]
        await gone("b")
        assert await hops("b") == 0, "its gate is open here: nothing that was learned counts"

    control(scenario, Ledger, regions=("a", "b", "c", "d"))


def test_a_worker_killed_at_every_activity_moves_one_object_once(control: Any) -> None:
    """Cut off after each activity that changes something had its effect and before it said so, the object is in b, with
    one gate of its own that is open; a cancelled move that is cut off so is undone all the same."""
    steps = ("object-close-gate", "object-copy", "object-hold", "object-open", "object-forward")

    async def scenario(plane: Any) -> None:
        a, b = plane.regions["a"].nodes[0], plane.regions["b"].nodes[0]
        assert await a.call("Ledger", "x", "add") == 1
        held = asyncio.Event()

        async def hang(method: str) -> None:
            if method == "settle-object":
                await beat_for_ever(held)

        plane.before_ask = hang
        killer = Killer(("object-let-go", "object-undo"))
        await intercepted(plane, killer)
        handle = await begin(plane, "x", "b")
        await held.wait()
        await handle.cancel()
        await killer.kill(plane)
        with pytest.raises(WorkflowFailureError):
            await handle.result()
        assert await settled(a.call, "Ledger", "x", "add") == 2
        plane.before_ask = None

        killer.left |= set(steps)
        handle = await begin(plane, "x", "b")
        await killer.kill(plane)
        assert (await handle.result())["moved"]
        assert isinstance((await rows(plane, "a", "x")).state, Forwarded)
        assert (await rows(plane, "b", "x")).gate.open
        assert await settled(a.call, "Ledger", "x", "add") == 3
        assert b.home_of("Ledger", "x")

    control(scenario, Ledger, regions=("a", "b"))


@pytest.mark.parametrize(
    ("after", "to"),
    [
        *(("object-close-gate", to) for to in "ab"),  # its gate in b names a: from a third region on it is not found
        *((after, to) for after in ("object-hold", "object-open") for to in "abc"),
    ],
)
def test_a_move_of_an_object_that_was_terminated_is_settled_by_asking_again(control: Any, after: str, to: str) -> None:
    """Ended from outside, it is done by a move to any region: there it lives, calls through every region are answered,
    what was answered where the new gate was open already is there, and its project can move."""

    async def scenario(plane: Any) -> None:
        a, b, c = (plane.regions[name].nodes[0] for name in ("a", "b", "c"))
        assert await a.call("Ledger", "x", "add") == 1
        killer = Killer((after,))
        await intercepted(plane, killer)
        handle = await begin(plane, "x", "b")
        await asyncio.wait_for(killer.struck.wait(), 20)
        await handle.terminate("by hand")
        await plane.stop_worker()
        await plane.start_worker()
        counted = 1
        if after == "object-open":
            counted = await settled(b.call, "Ledger", "x", "add")
            assert counted == 2
        await (await begin(plane, "x", to)).result()
        for one in (a, b, c):
            counted += 1
            assert await settled(one.call, "Ledger", "x", "add") == counted
        assert [name for name in "abc" if plane.regions[name].nodes[0].home_of("Ledger", "x")] == [to]
        project = {"project": PROJECT, "to": "b"}
        await plane.client.execute_workflow("MoveProject", project, id="move-demo", task_queue=CONTROL_QUEUE)
        if after == "object-close-gate":  # the gate that it left is met now
            await (await begin(plane, "x", to)).result()
        for one in (a, b, c):
            counted += 1
            assert await settled(one.call, "Ledger", "x", "add") == counted

    control(scenario, Ledger, regions=("a", "b", "c"))
