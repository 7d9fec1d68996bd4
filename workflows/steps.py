"""Steps of operations: activities on the control keyspace, or where a region is near (PROTOCOLS section 10)."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import RetryPolicy

from domicile.workflows.queues import CONTROL_QUEUE, region_queue

SHORT_SECS = 30.0
# A process that died in the middle of a step is noticed after this long; meanwhile a gate may be closed.
HEARTBEAT_SECS = 10.0
RETRY = RetryPolicy(initial_interval=timedelta(milliseconds=200), maximum_interval=timedelta(seconds=10))


async def in_control(name: str, given: Any, result: Any) -> Any:
    """A short step on control's rows, tried until it answers, or fails for good."""
    return await _step(CONTROL_QUEUE, name, given, result, SHORT_SECS)


async def in_region(region: str, name: str, given: Any, result: Any, secs: float = SHORT_SECS) -> Any:
    """A step in a region, which may take so long."""
    return await _step(region_queue(region), name, given, result, secs)


async def _step(queue: str, name: str, given: Any, result: Any, secs: float) -> Any:
    given_back = await workflow.execute_activity(
        name,
        given,
        result_type=result,
        task_queue=queue,
        start_to_close_timeout=timedelta(seconds=secs),
        heartbeat_timeout=timedelta(seconds=HEARTBEAT_SECS),
        cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        retry_policy=RETRY,
    )
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        # The step had ended before it heard of the cancel, which is not lost with that: the caller was told it counts.
        raise asyncio.CancelledError
    return given_back
