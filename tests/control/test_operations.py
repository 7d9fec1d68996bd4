"""Operations by name, as nodes and the control process serve them, and the schedules of a region (section 10)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

import pytest
from temporalio.client import ScheduleUpdate, ScheduleUpdateInput
from temporalio.exceptions import ApplicationError
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput

from domicile import Object
from domicile.activities.schedules import Planned, keep, planned
from domicile.activities.short_errors import ShortErrors
from domicile.errors import BadRequest, NotServing
from domicile.node.config import Config
from domicile.node.operations import NoSuchOperation, NotCancellable, Operation, Operations, operation
from domicile.placement.records import ObjectKey


class Sleeper(Object):
    """Rings in an hour."""

    def arm(self) -> None:
        self.set_alarm("1h")

    def on_alarm(self) -> None:
        self.kv.put("rang", True)


def test_starting_twice_is_joining(control: Any, temporal: Any) -> None:
    """A second start gives the run that is under way; once it has ended the next start is a run of its own."""

    async def scenario(plane: Any) -> None:
        operations = Operations(Config(temporal=temporal.address))
        drain = Operation("DrainNode", "drain-n-0", {"node": "n-0", "region": "elsewhere"})  # no worker has that queue
        first, second = await operations.start(drain), await operations.start(drain)
        assert first["started"] == second["started"]
        assert (second["status"], second["progress"]["step"]) == ("running", "check")
        assert [step["name"] for step in second["steps"]] == ["drain-check"]
        await operations.cancel("drain-n-0")
        await plane.until(lambda: _status(operations, "drain-n-0", "canceled"), "it is cancelled")
        with pytest.raises(NotCancellable):
            await operations.cancel("drain-n-0")
        with pytest.raises(NoSuchOperation):
            await operations.describe("drain-n-1")
        sweep = operation("SweepAlarms", {"region": "local"})
        assert (await operations.start(sweep))["id"] == "sweep-local"
        await plane.until(lambda: _status(operations, "sweep-local", "completed"), "it swept")
        done = await operations.describe("sweep-local")
        assert done["result"] == {"rows": 0, "woken": 0, "ghosts": 0, "skipped": 0, "left": 0}

    control(scenario, Sleeper)


def test_a_run_that_takes_long_is_not_overlapped(control: Any) -> None:
    """Field case 123: while a scheduled run takes several intervals there is no second one, the runs that were left out
    are counted, and nothing is left for ever."""

    async def scenario(plane: Any) -> None:
        group = plane.regions["local"]
        await group.nodes[0].call("Sleeper", "a", "arm")
        busy, go = asyncio.Event(), asyncio.Event()

        async def hold(method: str) -> None:
            busy.set()
            await go.wait()

        plane.before_ask = hold
        wanted = Planned("sweep-local", "SweepAlarms", {"region": "local", "rows": 256}, timedelta(seconds=1))
        await keep(plane.client, wanted, plane.world.log)
        handle = plane.client.get_schedule_handle("sweep-local")
        group.watch.ahead_ms = 3_600_000
        await busy.wait()
        await plane.until(lambda: _skipped(handle, 2), "two runs were left out")
        running = [run.id async for run in plane.client.list_workflows('ExecutionStatus = "Running"')]
        assert len(running) == 1
        assert running[0].startswith("sweep-local-")
        go.set()
        await plane.until(lambda: group.nodes[0].residency("Sleeper", "a").due.earliest is None, "it rang")

    control(scenario, Sleeper, temporal="127.0.0.1:1", object_sweep_secs=86_400)


async def _skipped(handle: Any, count: int) -> bool:
    return bool((await handle.describe()).info.num_actions_skipped_overlap >= count)


class Verbose(ActivityInboundInterceptor):
    """An activity that has a lot to say."""

    def __init__(self) -> None:
        super().__init__(self)

    async def execute_activity(self, input: Any) -> Any:
        try:
            raise ValueError("x" * 3_000_000)
        except ValueError as error:
            raise RuntimeError("it failed") from error


def test_errors_are_cut() -> None:
    """Field case 125: an error of three million characters, or one that stands on it, leaves as a short one."""
    cutting = ShortErrors().intercept_activity(Verbose())
    with pytest.raises(ApplicationError) as failed:
        asyncio.run(cutting.execute_activity(cast("ExecuteActivityInput", None)))
    assert (failed.value.type, failed.value.message) == ("RuntimeError", "it failed")
    assert failed.value.__cause__ is None
    assert failed.value.__suppress_context__


async def _status(operations: Operations, operation_id: str, status: str) -> bool:
    return bool((await operations.describe(operation_id))["status"] == status)


def test_every_scheduled_operation_runs(control: Any, temporal: Any) -> None:
    """What the schedules start of a region is there, and ends well where there is nothing to do."""

    async def scenario(plane: Any) -> None:
        operations = Operations(Config(temporal=temporal.address))
        for wanted in planned(Config(), "local"):
            await operations.start(Operation(wanted.workflow, wanted.id, wanted.input))
        for wanted in planned(Config(), "local"):
            await plane.until(lambda of=wanted.id: _status(operations, of, "completed"), wanted.id)

    control(scenario, Sleeper)


def test_what_failed_says_why(control: Any, temporal: Any, caplog: pytest.LogCaptureFixture) -> None:
    """The innermost reason is told, in words a person understands; an answer is no trace in the worker's log."""

    async def scenario(plane: Any) -> None:
        operations = Operations(Config(temporal=temporal.address))
        node = plane.regions["local"].nodes[0].node.node_id
        drain = operation("DrainNode", {"node": node, "region": "local"})
        await operations.start(drain)
        await plane.until(lambda: _status(operations, drain.id, "failed"), "it failed")
        assert "no other node of region local serves" in (await operations.describe(drain.id))["failure"]
        assert [record for record in caplog.records if record.exc_info and record.levelname != "DEBUG"] == []

    control(scenario, Sleeper)


def test_ids_are_drawn_from_what_is_asked() -> None:
    """The same question has the same id; what is missing from it is said."""
    assert operation("MoveProject", {"project": "acme", "to": "b"}).id == "move-acme"
    moved = {"project": "acme", "cls": "Room", "name": "a/b", "to": "b"}
    assert operation("MoveObject", moved).id == f"move-object-{ObjectKey('acme', 'Room', 'a/b').id}"
    with pytest.raises(BadRequest, match="project"):
        operation("MoveProject", {"to": "b"})
    with pytest.raises(BadRequest, match="no operation"):
        operation("Format", {})


def test_without_temporal_it_is_said(control: Any) -> None:
    """A node that has no TEMPORAL says so; one whose Temporal is away asks to try again."""

    async def scenario(plane: Any) -> None:
        with pytest.raises(BadRequest, match="TEMPORAL"):
            await Operations(Config()).describe("move-acme")
        with pytest.raises(NotServing):
            await Operations(Config(temporal="127.0.0.1:1")).describe("move-acme")

    control(scenario, Sleeper, worker=False)


def test_schedules_are_kept_right(control: Any) -> None:
    """Each is there once, as it should be, whatever became of it meanwhile; what a person paused stays paused."""

    async def scenario(plane: Any) -> None:
        wanted = planned(Config(object_sweep_secs=7.0), "local")
        assert [await keep(plane.client, one, plane.world.log) for one in wanted] == [True] * len(wanted)
        assert [await keep(plane.client, one, plane.world.log) for one in wanted] == [False] * len(wanted)
        sweep = next(one for one in wanted if one.id == "sweep-local")
        handle = plane.client.get_schedule_handle(sweep.id)
        await handle.pause()

        def spoiled(now: ScheduleUpdateInput) -> ScheduleUpdate:
            schedule = now.description.schedule
            schedule.spec.intervals[0].every = timedelta(days=3)
            return ScheduleUpdate(schedule)

        await handle.update(spoiled)
        assert await keep(plane.client, sweep, plane.world.log)
        found = (await handle.describe()).schedule
        assert (found.spec.intervals[0].every, found.state.paused) == (timedelta(seconds=7), True)
        other: Planned = replace(sweep, input={"region": "local", "rows": 9})
        assert await keep(plane.client, other, plane.world.log)
        await handle.delete()
        assert await keep(plane.client, sweep, plane.world.log)

    control(scenario, Sleeper, worker=False)
