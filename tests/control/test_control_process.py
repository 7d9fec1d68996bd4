"""The control process takes up regions: each as it can be reached, whatever becomes of the others."""

from __future__ import annotations

import asyncio
from typing import Any

from domicile import Object
from domicile.cli.control import REACH_SECS, ControlProcess
from domicile.node.config import Config


class Sleeper(Object):
    def look(self) -> int:
        return 1


def test_a_region_that_does_not_answer_holds_up_no_other(control: Any, temporal: Any) -> None:
    """The others are taken up at once, before anybody has given up on it; so is it when it answers."""

    async def scenario(plane: Any) -> None:
        answers, region, now = asyncio.Event(), await plane.world.region("b"), plane.world.clock.monotonic
        scan = region.store.scan

        async def late(*args: Any, **how: Any) -> Any:
            await answers.wait()
            return await scan(*args, **how)

        region.store.scan = late
        process = ControlProcess(Config(temporal=temporal.address, region="a"), plane.world)
        running = asyncio.create_task(process.run(listen=False))
        try:
            await plane.until(lambda: "" in process._working, "it is connected")
            began = now()
            await plane.until(lambda: {"a", "c"} <= set(process._working), "they are taken up")
            assert now() - began < REACH_SECS - 1
            assert "b" not in process._working
            answers.set()
            await plane.until(lambda: "b" in process._working, "it is too")
        finally:
            answers.set()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    control(scenario, Sleeper, regions=("a", "b", "c"), worker=False)
