"""MoveProject cut short and gone on with: killed workers, cancels, terminations, new runs (PROTOCOLS section 10)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from control_plane import settled
from counting import Ledger
from killed_workers import STRIKE_SECS, Killer, intercepted
from moves import PROJECT, REGIONS, begin, gate, hold_drain
from temporalio.client import WorkflowFailureError
from temporalio.common import WorkflowIDConflictPolicy

from domicile.errors import DomicileError
from domicile.node.errors import BlobUnavailable
from domicile.workflows.queues import CONTROL_QUEUE

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
        draining, go = hold_drain(plane)
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
        draining, go = hold_drain(plane)
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


def test_after_the_flip_a_cancel_is_too_late(control: Any) -> None:
    """Once the home is flipped the move says so, and rolls forward whatever it is told."""

    async def scenario(plane: Any) -> None:
        a, b = plane.regions["a"].nodes[0], plane.regions["b"].nodes[0]
        await a.call("Ledger", "x", "add")
        killer = Killer(("move-flip",))
        await intercepted(plane, killer)
        handle = await begin(plane, "b")
        await asyncio.wait_for(killer.struck.wait(), STRIKE_SECS)
        assert (await handle.query("progress"))["cancellable"] is False
        await handle.cancel()
        await plane.stop_worker()
        await plane.start_worker()
        assert (await handle.result())["moved"]
        assert not (await gate(plane, "a")).open
        assert await b.call("Ledger", "x", "add") == 2

    control(scenario, Ledger, regions=REGIONS)


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
        await asyncio.wait_for(killer.struck.wait(), STRIKE_SECS)
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
