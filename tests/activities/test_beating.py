"""Activities show that their process lives (PROTOCOLS section 10)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

from temporalio.testing import ActivityEnvironment
from temporalio.worker import ActivityInboundInterceptor, ActivityOutboundInterceptor, ExecuteActivityInput

from domicile.activities.beating import BEAT_SECS, Beating
from domicile.node.clock import SystemClock
from domicile.workflows.steps import HEARTBEAT_SECS


class Quick(SystemClock):
    """Sleeps are short."""

    async def sleep(self, secs: float) -> None:
        await asyncio.sleep(secs / 1000)


class Heard(ActivityOutboundInterceptor):
    """What leaves the process."""

    def __init__(self) -> None:
        self.beats: list[tuple[Any, ...]] = []

    def heartbeat(self, *details: Any) -> None:
        self.beats.append(details)


class Copy(ActivityInboundInterceptor):
    """A page that takes long, then a report, then another such page."""

    def __init__(self, heard: Heard) -> None:
        super().__init__(self)
        self._heard = heard

    def init(self, outbound: ActivityOutboundInterceptor) -> None:
        self._outbound = outbound

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        await self._beats(3)
        self._outbound.heartbeat("page 8")
        await self._beats(6)
        return "copied"

    async def _beats(self, count: int) -> None:
        async with asyncio.timeout(10):
            while len(self._heard.beats) < count:
                await asyncio.sleep(0.001)


def test_a_slow_step_is_not_taken_for_a_dead_one() -> None:
    """Between its own reports it repeats the last one, at first that of the attempt before; it ends with the step."""
    heard, environment = Heard(), ActivityEnvironment()
    attempt = Beating(Quick()).intercept_activity(Copy(heard))
    attempt.init(heard)
    timeout = timedelta(seconds=HEARTBEAT_SECS)
    environment.info = replace(environment.info, heartbeat_timeout=timeout, heartbeat_details=["page 7"])

    async def main() -> None:
        given = cast("ExecuteActivityInput", None)
        assert await environment.run(attempt.execute_activity, given) == "copied"
        assert heard.beats[:4] == [("page 7",)] * 3 + [("page 8",)]
        assert set(heard.beats[4:]) == {("page 8",)}
        assert asyncio.all_tasks() == {asyncio.current_task()}  # nothing is left that could

    asyncio.run(main())
    assert BEAT_SECS * 3 < HEARTBEAT_SECS
