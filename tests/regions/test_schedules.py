"""`@domicile.cron`: an object for each schedule, fired once an occurrence, whoever dies."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from whole_nodes import NodeGroup

from domicile.crontab import Crontab
from domicile.errors import MethodFailed
from domicile.marks import CronMark
from domicile.node.values import Call
from domicile.placement.keys import Keys
from domicile.placement.records import ObjectKey
from domicile.schedule import CronSpec

MINUTE_MS = 60_000
KEY = ObjectKey("s.app", "Cron", "tick")


class App:
    """A module with a schedule: `ran` counts, `fails` as long as that is so."""

    def __init__(self) -> None:
        self.ran = 0
        self.fails = False

    def spec(self, *, is_async: bool = False, expression: str = "* * * * *") -> CronSpec:
        def tick() -> None:
            if self.fails:
                raise RuntimeError("not now")
            self.ran += 1

        async def tick_async() -> None:
            await asyncio.sleep(0)
            tick()

        return CronSpec(CronMark(Crontab.parse(expression), "tick"), tick_async if is_async else tick, is_async)


@pytest.fixture
def app() -> App:
    return App()


@pytest.fixture
def play(tmp_path: Path) -> Callable[..., None]:
    """`play(scenario, spec, nodes=1)` runs `async def scenario(group)` over nodes that load the schedule."""

    def go(scenario: Callable[[NodeGroup], Awaitable[None]], spec: CronSpec, nodes: int = 1) -> None:
        members = min(2, nodes - 1)
        settings = {"object_replicas": members, "object_quorum": members, "object_journal_mb": 4}
        group = NodeGroup(tmp_path / "r", (), {**settings, "object_sweep_secs": 0.1, "projects": "declared"})
        group.crons = (spec,)
        group.watch.ahead_ms = MINUTE_MS - group.watch.wall_ms() % MINUTE_MS + 1  # no occurrence but those a test makes

        async def main() -> None:
            try:
                await group.start(nodes)
                await group.until(lambda: status(group, "next_ms"), "the schedule is armed")
                await scenario(group)
            finally:
                await group.stop()

        asyncio.run(main())

    return go


async def status(group: NodeGroup, what: str) -> Any:
    return (await asked(group, "status"))[what]


async def asked(group: NodeGroup, method: str, *args: Any) -> Any:
    node = group.nodes[0].node
    answer = await node.call(Call(KEY, method, json.dumps(list(args)).encode(), node.now() + 20.0))
    return json.loads(answer.body)


async def pass_minutes(group: NodeGroup, minutes: int) -> None:
    """To just past the occurrence that many minutes after the next one's minute began."""
    next_ms = await status(group, "next_ms")
    group.watch.ahead_ms += next_ms - group.watch.wall_ms() + (minutes - 1) * MINUTE_MS + 1


@pytest.mark.parametrize("is_async", [False, True])
def test_a_schedule_fires_once_an_occurrence(play: Callable[..., None], app: App, *, is_async: bool) -> None:
    """Loaded by three nodes it is one object, listed under its script, and each occurrence runs once."""

    async def scenario(group: NodeGroup) -> None:
        listed = [
            one for node in group.nodes for one in (await node.node.list_objects("s.app", None, "", None))["objects"]
        ]
        assert [(one["class"], one["name"]) for one in listed] == [("Cron", "tick")] * 3
        assert (await group.nodes[0].node._gates.get(Keys("domicile", "local").gate_project("s.app"))).row.open
        for ran in (1, 2, 3):
            before = await asked(group, "status")
            await pass_minutes(group, 1)
            await group.until(lambda ran=ran: app.ran >= ran, "it ran")
            after = await asked(group, "status")
            assert (after["runs"], after["occurrence_ms"]) == (ran, before["next_ms"])
            assert after["next_ms"] == before["next_ms"] + MINUTE_MS
        assert app.ran == 3

    play(scenario, app.spec(is_async=is_async), nodes=3)


def test_a_schedule_survives_its_home_and_catches_up_once(play: Callable[..., None], app: App) -> None:
    """Its home dies, ten occurrences are missed: one run stands for them, on a node that is left."""

    async def scenario(group: NodeGroup) -> None:
        await pass_minutes(group, 1)
        await group.until(lambda: app.ran == 1, "it ran")
        home = next(one for one in group.nodes if one.node._residents.find(KEY.id) is not None)
        await home.crash()
        group.watch.ahead_ms += 10 * MINUTE_MS
        await group.until(lambda: app.ran == 2, "it ran again")
        after = await asked(group, "status")
        assert after["runs"] == 2
        assert after["next_ms"] > group.watch.wall_ms()
        await group.add("late")
        assert (await asked(group, "status"), app.ran) == (after, 2)

    play(scenario, app.spec(), nodes=3)


def test_a_schedule_is_paused_resumed_and_changed(play: Callable[..., None], app: App) -> None:
    """Paused nothing runs and loading the app again leaves it so; a new expression is taken over."""

    async def scenario(group: NodeGroup) -> None:
        paused = await asked(group, "pause")
        assert (paused["paused"], paused["next_ms"]) == (True, None)
        group.watch.ahead_ms += 5 * MINUTE_MS
        group.crons = (app.spec(expression="0 0 1 1 *"),)
        await group.remove(group.nodes[0])
        await group.add("again")
        await group.until(lambda: changed(group), "the new expression is there")
        assert await status(group, "next_ms") is None
        assert (await asked(group, "resume"))["next_ms"] == Crontab.parse("0 0 1 1 *").next_ms(group.watch.wall_ms())
        assert app.ran == 0
        with pytest.raises(MethodFailed):
            await asked(group, "schedule", "never")

    async def changed(group: NodeGroup) -> bool:
        return bool(await status(group, "cron") == "0 0 1 1 *")

    play(scenario, app.spec())


def test_a_schedule_whose_function_fails_is_tried_again(play: Callable[..., None], app: App) -> None:
    """A failure is counted and tried again; nothing of it stays."""

    async def scenario(group: NodeGroup) -> None:
        app.fails = True
        await pass_minutes(group, 1)
        await group.until(lambda: failures(group), "it failed")
        assert (await status(group, "runs"), app.ran) == (0, 0)
        app.fails = False
        group.watch.ahead_ms += 10_000
        await group.until(lambda: app.ran == 1, "it ran")
        assert (await status(group, "runs"), await status(group, "failures")) == (1, 0)

    async def failures(group: NodeGroup) -> bool:
        return bool(await status(group, "failures"))

    play(scenario, app.spec())
