"""Workers that die in the middle of an operation, when an activity has had its effect and has yet to say so."""

from __future__ import annotations

import asyncio
from typing import Any

from temporalio import activity
from temporalio import client as clients
from temporalio.client import Client
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

STRIKE_SECS = 60.0


class Killer(clients.Interceptor, Interceptor):
    """Holds each of these activities up for ever when it has run for the first time, and says so: `struck`."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.left = set(names)
        self.struck = asyncio.Event()

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        killer = self

        class Inbound(ActivityInboundInterceptor):
            async def execute_activity(self, input: ExecuteActivityInput) -> Any:
                result = await super().execute_activity(input)
                name = activity.info().activity_type
                if name in killer.left:
                    killer.left.discard(name)
                    killer.struck.set()
                    await asyncio.Event().wait()
                return result

        return Inbound(next)

    async def kill(self, plane: Any, names: tuple[str, ...] = ()) -> None:
        """The plane's worker, at each of the activities that are left (or `names` of them), and starts the next one."""
        while self.left & set(names or self.left):
            await asyncio.wait_for(self.struck.wait(), STRIKE_SECS)
            self.struck.clear()
            await plane.stop_worker()
            await plane.start_worker()


async def intercepted(plane: Any, interceptor: Killer) -> None:
    """The plane's workers from now on."""
    await plane.stop_worker()
    plane.client = await Client.connect(plane.client.service_client.config.target_host, interceptors=[interceptor])
    await plane.start_worker()
