"""ExpireCopy(project, region): what a move left behind is kept for a while, then goes (PROTOCOLS section 10)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import RetryPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import ChildWorkflowError

from domicile.workflows.attributes import mark
from domicile.workflows.move_values import Expire, ExpireProgress
from domicile.workflows.queues import CONTROL_QUEUE, region_queue


@workflow.defn(name="ExpireCopy")
class ExpireCopy:
    """Id `expire-<project>-<region>`, started by the move that left the copy; the next one from there replaces it."""

    def __init__(self) -> None:
        self._step = "keep"
        self._progress = ExpireProgress()

    @workflow.run
    async def run(self, asked: Expire) -> ExpireProgress:
        """Waits, then removes object after object, as long as the gate is as the move left it."""
        mark(project=asked.project, region=asked.region, step="keep")
        await workflow.sleep(timedelta(seconds=asked.after_secs))
        self._step = "expire"
        mark(step="expire")
        while not self._progress.done:
            self._progress = await workflow.execute_activity(
                "expire-copy",
                args=[asked, self._progress],
                result_type=ExpireProgress,
                task_queue=region_queue(asked.region),
                start_to_close_timeout=timedelta(hours=24),
                heartbeat_timeout=timedelta(seconds=60),
                cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
                retry_policy=RetryPolicy(maximum_interval=timedelta(seconds=60)),
            )
        self._step = "done"
        mark(step="done")
        return self._progress

    @workflow.query
    def progress(self) -> dict[str, Any]:
        """{"step", "objects", "expired", "cancellable"}."""
        now = self._progress
        return {"step": self._step, "objects": now.objects, "expired": now.expired, "cancellable": True}


async def expire_later(expire: Expire) -> None:
    """Started by a move that ends; it goes on by itself, in the place of one that an earlier move from there began."""
    try:
        await workflow.start_child_workflow(
            ExpireCopy.run,
            expire,
            id=f"expire-{expire.project}-{expire.region}",
            task_queue=CONTROL_QUEUE,
            parent_close_policy=workflow.ParentClosePolicy.ABANDON,
            id_reuse_policy=WorkflowIDReusePolicy.TERMINATE_IF_RUNNING,
        )
    except ChildWorkflowError as error:
        workflow.logger.warning("the old copy will not expire by itself: %s", error)
