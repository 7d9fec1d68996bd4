"""DrainNode: a node under load releases everything, and nobody who calls is refused for good (PROTOCOLS section 10)."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest
from control_plane import beat_for_ever
from temporalio import activity
from temporalio.client import WorkflowFailureError

from domicile import Object
from domicile.errors import DomicileError
from domicile.workflows.queues import CONTROL_QUEUE

RESIDENTS = int(os.environ.get("DOMICILE_DRAINED_RESIDENTS", "1000"))


class Tally(Object):
    """Counts its calls."""

    def add(self) -> int:
        self.kv.put("count", self.kv.get("count", 0) + 1)
        return self.count()

    def count(self) -> int:
        return self.kv.get("count", 0)


async def begin(plane: Any, node: str) -> Any:
    asked = {"node": node, "region": "local"}
    return await plane.client.start_workflow("DrainNode", asked, id=f"drain-{node}", task_queue=CONTROL_QUEUE)


class Load:
    """Calls through every node, all the time; what was answered is counted, what was not is kept."""

    def __init__(self, group: Any, names: list[str]) -> None:
        self._group = group
        self._names = names
        self._over = False
        self.answered = dict.fromkeys(names, 0)
        self.refused: list[DomicileError] = []
        self._tasks = [asyncio.create_task(self._call(at)) for at in range(8)]

    async def end(self) -> None:
        self._over = True
        await asyncio.gather(*self._tasks)

    async def _call(self, at: int) -> None:
        while not self._over:
            name = self._names[at % len(self._names)]
            one = self._group.nodes[at % len(self._group.nodes)]
            at += 13
            try:
                await one.call("Tally", name, "add", key=f"{name}-{at}")
                self.answered[name] += 1
            except DomicileError as error:
                self.refused.append(error)


async def residents_of(one: Any, count: int) -> list[str]:
    """So many objects with their home on this node."""
    names = [f"t{at}" for at in range(count)]
    for at in range(0, count, 100):
        await asyncio.gather(*(ridden(one, name) for name in names[at : at + 100]))
    return names


async def ridden(one: Any, name: str) -> None:
    """As a client does: what may be tried again is."""
    while True:
        try:
            await one.call("Tally", name, "add", key=f"{name}-first")
            return
        except DomicileError as error:
            if not error.retryable:
                raise


def test_a_node_leaves_empty_under_load(control: Any) -> None:
    """A node with many residents: calls fail only with answers to try again on, and none of its objects stays.

    Field case 61: objects are moved by a release, none is recovered from a node that went; readiness goes first.
    """

    async def scenario(plane: Any) -> None:
        group = plane.regions["local"]
        leaving, staying = group.nodes
        names = await residents_of(leaving, RESIDENTS)
        assert len(leaving.node._residents) == RESIDENTS
        load = Load(group, names)
        handle = await begin(plane, leaving.node.node_id)
        drained = await handle.result()
        assert drained["state"] == "empty"
        assert drained["released"] >= RESIDENTS
        assert len(leaving.node._residents) == 0
        await load.end()
        assert len(leaving.node._residents) == 0
        assert sum(load.answered.values()) > 0
        assert all(error.retryable for error in load.refused)
        assert not leaving.node.ready()
        some = names[:50]
        counts = await asyncio.gather(*(leaving.call("Tally", name, "count") for name in some))
        assert all(count >= 1 + load.answered[name] for name, count in zip(some, counts, strict=True))
        assert all(staying.home_of("Tally", name) for name in some)
        assert await plane.history_events(handle) < 40

    control(scenario, Tally, nodes=2, temporal="127.0.0.1:1")


def test_a_drain_that_is_cancelled_is_undone(control: Any) -> None:
    """Cancelled half-way, the node serves again."""

    async def scenario(plane: Any) -> None:
        group = plane.regions["local"]
        leaving = group.nodes[0]
        await residents_of(leaving, 5)
        busy = asyncio.Event()

        async def hang(method: str) -> None:
            if activity.info().activity_type == "drain-release":
                await beat_for_ever(busy)

        plane.before_ask = hang
        handle = await begin(plane, leaving.node.node_id)
        await busy.wait()
        await handle.cancel()
        with pytest.raises(WorkflowFailureError):
            await handle.result()
        assert leaving.node.ready()
        assert (await handle.query("progress"))["step"] == "undo"
        assert await leaving.call("Tally", "new", "add") == 1

    control(scenario, Tally, nodes=2)


def test_a_drain_goes_on_with_the_next_worker(control: Any, temporal: Any) -> None:
    """The worker is killed while it drains, and Temporal: the node is empty in the end all the same."""

    async def scenario(plane: Any) -> None:
        group = plane.regions["local"]
        leaving = group.nodes[0]
        await residents_of(leaving, 80)
        asked = 0
        busy = asyncio.Event()

        async def hang_later(method: str) -> None:
            nonlocal asked
            asked += 1
            if asked > 1:
                busy.set()
                await asyncio.Event().wait()

        plane.before_ask = hang_later
        handle = await begin(plane, leaving.node.node_id)
        await busy.wait()
        await plane.stop_worker()
        temporal.restart()
        plane.before_ask = None
        await plane.start_worker(cached=0)
        assert await handle.result() == {"node": leaving.node.node_id, "released": 80, "state": "empty"}

    control(scenario, Tally, nodes=2)


def test_the_only_node_is_not_drained(control: Any) -> None:
    """Where nobody else serves nothing is released, and the reason is said."""

    async def scenario(plane: Any) -> None:
        (one,) = plane.regions["local"].nodes
        await residents_of(one, 1)
        with pytest.raises(WorkflowFailureError) as failed:
            await (await begin(plane, one.node.node_id)).result()
        assert "no other node" in str(failed.value.cause.cause)
        assert one.node.ready()
        assert len(one.node._residents) == 1

    control(scenario, Tally)
