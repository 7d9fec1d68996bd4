"""ReplicateProject(project, to): a standing copy of a project in another region, pass after pass (section 10)."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError

from domicile.workflows.attributes import mark
from domicile.workflows.copy_values import CopyOrder, CopyProgress
from domicile.workflows.failover_values import Replicate, Replicated, ReplicateState, Standing
from domicile.workflows.move_values import Begun, CopyStep, Move
from domicile.workflows.queues import CONTROL_QUEUE, region_queue


@workflow.defn(name="ReplicateProject")
class ReplicateProject:
    """Id `replicate-<project>`. Runs until the signal `stop`, a cancel, or the project lives where its copy stands."""

    def __init__(self) -> None:
        self._state = ReplicateState()
        self._asked: Replicate | None = None
        self._step = "begin"
        self._stopping = False

    @workflow.run
    async def run(self, asked: Replicate) -> Replicated:
        """Pass after pass; each makes the copy one of the moment it began."""
        self._asked = asked
        self._state = asked.state or self._state
        while True:
            detail = await self._pass(asked)
            if detail or self._stopping:
                return Replicated(asked.project, asked.to, self._state.passes, self._state.bytes, detail or "stopped")
            self._step = "standing"
            mark(project=asked.project, region=asked.to, step=self._step)
            self._maybe_continue(asked)
            try:
                await workflow.wait_condition(lambda: self._stopping, timeout=timedelta(seconds=asked.every_secs))
            except TimeoutError:
                continue

    @workflow.signal
    def stop(self) -> None:
        """After the pass under way. The copy stays as it is."""
        self._stopping = True

    @workflow.query
    def progress(self) -> dict[str, Any]:
        """{"step", "project", "source", "to", "passes", "objects", "bytes", "standing_at", "lag_secs"}: the copy stands
        as of `standing_at`; what landed since is the lag."""
        state, asked = self._state, self._asked
        standing = state.standing
        return {
            "step": self._step,
            "project": asked.project if asked else "",
            "source": state.source,
            "to": asked.to if asked else "",
            "passes": state.passes,
            "objects": state.progress.objects or (standing.objects if standing else 0),
            "bytes": state.bytes,
            "standing_at": datetime.fromtimestamp(standing.at, UTC).isoformat() if standing else None,
            "lag_secs": round(workflow.now().timestamp() - standing.at, 1) if standing else None,
        }

    async def _pass(self, asked: Replicate) -> str:
        """Why it ends; empty when the pass is done."""
        state = self._state
        begun: Begun = await self._control("move-begin", Move(asked.project, asked.to), Begun)
        if not begun.moving:
            return f"{asked.project} lives in {asked.to}"
        if state.source != begun.source or not state.term:
            state.source, state.progress = begun.source, CopyProgress()
            state.term = await self._control("move-draw", asked.project, int)
        self._step = "copy"
        mark(project=asked.project, region=asked.to, step=self._step)
        if not state.progress.looked:
            state.began = workflow.now().timestamp()
        while not state.progress.done:
            why = await self._slice(asked)
            if why:
                return why
            self._maybe_continue(asked)
        done, state.progress = state.progress, CopyProgress()
        state.passes += 1
        state.bytes += done.bytes
        if not done.failing:
            standing = Standing(asked.project, state.source, asked.to, state.began, done.objects, done.unclean)
            await self._control("replicate-note", standing, None)
            state.standing = standing
        return ""

    async def _slice(self, asked: Replicate) -> str:
        state = self._state
        order = CopyOrder(asked.project, state.source, asked.to, state.term, asked.mb_per_sec)
        step = CopyStep(order, state.progress, asked.objects_per_step)
        try:
            state.progress = await workflow.execute_activity(
                "move-copy",
                step,
                result_type=CopyProgress,
                task_queue=region_queue(asked.to),
                start_to_close_timeout=timedelta(hours=24),
                heartbeat_timeout=timedelta(minutes=1),
                retry_policy=RetryPolicy(maximum_interval=timedelta(seconds=30)),
            )
        except ActivityError as error:
            kind = error.cause.type if isinstance(error.cause, ApplicationError) else None
            if kind == "TermTooLowError":  # the source opened its gate anew
                state.term, state.progress = await self._control("move-draw", asked.project, int), CopyProgress()
                return ""
            if kind == "TargetOpenError":
                return f"{asked.to} takes calls of {asked.project}"
            raise
        return ""

    def _maybe_continue(self, asked: Replicate) -> None:
        info = workflow.info()
        if info.is_continue_as_new_suggested() or info.get_current_history_length() > asked.history_max:
            workflow.continue_as_new(replace(asked, state=self._state))

    async def _control(self, name: str, given: Any, result: Any) -> Any:
        return await workflow.execute_activity(
            name,
            given,
            result_type=result,
            task_queue=CONTROL_QUEUE,
            start_to_close_timeout=timedelta(seconds=30),
            retry_policy=RetryPolicy(maximum_interval=timedelta(seconds=30)),
        )
