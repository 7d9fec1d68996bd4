"""Every activity shows that its process lives, whatever it is at, so that a dead one's steps are soon taken up."""

from __future__ import annotations

import asyncio
from typing import Any

from temporalio import activity
from temporalio.worker import (
    ActivityInboundInterceptor,
    ActivityOutboundInterceptor,
    ExecuteActivityInput,
    Interceptor,
)

from domicile.node.clock import Clock

BEAT_SECS = 2.0


class Beating(Interceptor):
    """For every activity of a worker that has a heartbeat timeout.

    What an activity reports is its progress, and a page of large objects may take minutes: its own reports cannot tell
    a slow step from a dead process.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        return _Attempt(super().intercept_activity(next), self._clock)


class _Attempt(ActivityInboundInterceptor):
    """One attempt: what it said last is said again until it ends."""

    def __init__(self, next: ActivityInboundInterceptor, clock: Clock) -> None:
        super().__init__(next)
        self._clock = clock

    def init(self, outbound: ActivityOutboundInterceptor) -> None:
        self._said = _Said(outbound)
        super().init(self._said)

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        info = activity.info()
        if info.heartbeat_timeout is None:
            return await super().execute_activity(input)
        # The next attempt goes on from what the last one said, also if this one dies before it says a word.
        self._said.last = tuple(info.heartbeat_details)
        beats = asyncio.create_task(self._beat())
        try:
            return await super().execute_activity(input)
        finally:
            beats.cancel()

    async def _beat(self) -> None:
        while True:
            await self._clock.sleep(BEAT_SECS)
            self._said.heartbeat(*self._said.last)


class _Said(ActivityOutboundInterceptor):
    """Remembers what was said last."""

    last: tuple[Any, ...] = ()

    def heartbeat(self, *details: Any) -> None:
        self.last = details
        super().heartbeat(*details)
