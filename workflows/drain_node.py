"""DrainNode(node): the node releases everything it is home to, takes nothing new, and stays up empty (section 10)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError

from domicile.workflows.attributes import mark
from domicile.workflows.queues import region_queue


@dataclass(frozen=True)
class Drain:
    """The workflow's input: {"node": "n-0123456789abcdef", "region": "local"}."""

    node: str
    region: str


@dataclass(frozen=True)
class Drained:
    """`released` objects went to other nodes; `state` is `empty`, or `gone` when the node left before it was."""

    node: str
    released: int
    state: str


@workflow.defn(name="DrainNode")
class DrainNode:
    """Id `drain-<node id>`. A node is empty until a restart; one whose drain is cancelled, or fails, serves again."""

    def __init__(self) -> None:
        self._step = "begin"
        self._residents: int | None = None

    @workflow.run
    async def run(self, asked: Drain) -> Drained:
        """Fails, changing nothing, when no other node of the region serves."""
        self._at("check", asked)
        self._residents = await self._do("drain-check", asked, secs=60, result=int)
        self._at("release", asked)
        try:
            drained: Drained = await self._do("drain-release", asked, secs=24 * 3600, result=Drained)
        except (ActivityError, asyncio.CancelledError):
            self._at("undo", asked)
            await asyncio.shield(self._do("drain-undo", asked, secs=3600, result=None))
            raise
        self._at("done", asked)
        return drained

    @workflow.query
    def progress(self) -> dict[str, Any]:
        """{"step", "residents"}: the step it is at, and how many objects there were. How many are left by now is with
        the activity: `temporal workflow describe` shows its heartbeat."""
        return {"step": self._step, "residents": self._residents}

    def _at(self, step: str, asked: Drain) -> None:
        self._step = step
        mark(region=asked.region, step=step)

    async def _do(self, name: str, asked: Drain, *, secs: int, result: Any) -> Any:
        return await workflow.execute_activity(
            name,
            asked,
            result_type=result,
            task_queue=region_queue(asked.region),
            start_to_close_timeout=timedelta(seconds=secs),
            heartbeat_timeout=timedelta(seconds=30),
            cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
            retry_policy=RetryPolicy(maximum_interval=timedelta(seconds=10)),
        )
