"""FailoverRegion(project, to): a project goes on from its standing copy while its region is away (section 10).

    begin → assess → ask → hold → fork → flip → open → clear → away → close → drain → compare → done

The loss is stated as a number before anything is done. The new gate opens without the old one's closing; when the old
region returns, its gate is closed first, and what was answered there until then becomes incidents.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError

from domicile.workflows.attributes import mark
from domicile.workflows.endings import to_its_end
from domicile.workflows.failover_values import (
    AssessOrder,
    Compared,
    FailedOver,
    Failover,
    FailoverBegun,
    FailoverState,
    ForkOrder,
    Loss,
)
from domicile.workflows.move_values import DrainOrder, DrainResult, GateAt, GateChange, GateSeen, Marked, MarkStep
from domicile.workflows.queues import CONTROL_QUEUE, region_queue
from domicile.workflows.steps import HEARTBEAT_SECS

LONG = ("failover-assess", "failover-fork", "failover-compare", "failover-unfork", "move-drain")


@workflow.defn(name="FailoverRegion")
class FailoverRegion:
    """Id `failover-<project>`. Signal `go_on` accepts the loss."""

    def __init__(self) -> None:
        self._state = FailoverState()
        self._asked: Failover | None = None
        self._accepted = False

    @workflow.run
    async def run(self, asked: Failover) -> FailedOver:
        """Fails, changing nothing, where the loss is not accepted in time, or a move is under way."""
        self._asked = asked
        loss = await self._assess(asked)
        await self._ask(asked, loss)
        await self._take_over(asked)
        try:
            compared = await self._when_it_returns(asked)
        except ActivityError as error:
            if not _is_late(error):
                raise
            return FailedOver(asked.project, self._state.source, asked.to, loss, returned=False)
        self._at("done")
        return FailedOver(
            asked.project,
            self._state.source,
            asked.to,
            loss,
            True,
            compared.incidents,
            compared.listed_in_all,
            compared.listed,
        )

    @workflow.signal
    def go_on(self) -> None:
        """The loss, as stated, is accepted."""
        self._accepted = True

    @workflow.query
    def progress(self) -> dict[str, Any]:
        """{"step", "project", "source", "to", "cancellable", "lag_secs", "counted", "lost_objects", "missing_objects",
        "lost_bytes"}: `step` is `ask` while somebody has to accept the loss, `away` while the old region is waited
        for."""
        state, asked = self._state, self._asked
        loss = state.loss or Loss(-1.0)
        return {
            "step": state.step,
            "project": asked.project if asked else "",
            "source": state.source,
            "to": asked.to if asked else "",
            "cancellable": state.step in ("begin", "assess", "ask", "hold", "fork"),
            "lag_secs": loss.lag_secs,
            "counted": loss.counted,
            "lost_objects": loss.objects,
            "missing_objects": loss.missing,
            "lost_bytes": loss.bytes,
        }

    async def _assess(self, asked: Failover) -> Loss:
        state = self._state
        self._at("begin")
        begun: FailoverBegun = await self._control("failover-begin", self._mark_step(), FailoverBegun)
        state.source, state.mark = begun.source, begun.mark
        if begun.standing is None:
            raise ApplicationError(
                f"{asked.project} has no standing copy in {asked.to}: ReplicateProject makes one",
                type="NoStandingCopy",
                non_retryable=True,
            )
        self._at("assess")
        order = AssessOrder(asked.project, state.source, asked.to, begun.standing.at)
        loss: Loss = await self._in(asked.to, "failover-assess", order, Loss)
        state.loss = loss
        return loss

    async def _ask(self, asked: Failover, loss: Loss) -> None:
        self._at("ask")
        if asked.accept_loss:
            return
        try:
            await workflow.wait_condition(lambda: self._accepted, timeout=timedelta(seconds=asked.ask_secs))
        except TimeoutError:
            raise ApplicationError(
                f"nobody accepted the loss: {loss.objects} objects, {loss.lag_secs} seconds",
                type="NotAccepted",
                non_retryable=True,
            ) from None

    async def _take_over(self, asked: Failover) -> None:
        """Nothing writes into the copy any more; what it is now is kept; the home flips; the gate opens."""
        project = asked.project
        self._at("hold")
        gate: GateSeen = await self._in(asked.to, "move-read-gate", GateAt(asked.to, project), GateSeen)
        held: int = await self._control("move-draw", project, int)
        gate = await self._change(GateChange(asked.to, project, gate.version, False, held, self._state.source))
        self._at("fork")
        fork = ForkOrder(project, self._state.source, asked.to)
        try:
            await self._in(asked.to, "failover-fork", fork, None)
            await to_its_end(self._flip(asked, gate), lambda: not self._state.opened_at)
        except (ActivityError, asyncio.CancelledError):
            if not self._state.term:
                await to_its_end(self._in(asked.to, "failover-unfork", fork, None), lambda: False)
            raise

    async def _flip(self, asked: Failover, gate: GateSeen) -> None:
        """From here on it only goes forward."""
        state, project = self._state, asked.project
        self._at("flip")
        marked: Marked = await self._control("move-flip", self._mark_step(), Marked)
        state.mark, state.term = marked.mark, marked.term
        self._at("open")
        await self._change(GateChange(asked.to, project, gate.version, True, state.term))
        state.opened_at = workflow.now().timestamp()
        self._at("clear")
        await self._control("move-clear", self._mark_step(), None)

    async def _when_it_returns(self, asked: Failover) -> Compared:
        """Its gate is closed before anything else is looked at."""
        state, project = self._state, asked.project
        self._at("away")
        days = timedelta(days=asked.return_days)
        gate: GateSeen = await self._in(state.source, "move-read-gate", GateAt(state.source, project), GateSeen, days)
        self._at("close")
        closed = GateChange(state.source, project, gate.version, False, gate.term, asked.to)
        await self._change(closed, days)
        self._at("drain")
        await self._in(state.source, "move-drain", DrainOrder(project, state.source, True), DrainResult, days)
        self._at("compare")
        order = ForkOrder(project, state.source, asked.to, state.term)
        compared: Compared = await self._in(asked.to, "failover-compare", order, Compared, days)
        await self._in(asked.to, "failover-unfork", order, None)
        return compared

    def _at(self, step: str) -> None:
        assert self._asked is not None
        self._state.step = step
        mark(project=self._asked.project, region=self._asked.to, step=step)

    def _mark_step(self) -> MarkStep:
        assert self._asked is not None
        run = workflow.info().first_execution_run_id
        return MarkStep(self._asked.project, self._asked.to, self._state.mark, run)

    async def _change(self, change: GateChange, within: timedelta | None = None) -> GateSeen:
        seen: GateSeen = await self._in(change.region, "move-change-gate", change, GateSeen, within)
        return seen

    async def _control(self, name: str, given: Any, result: Any) -> Any:
        return await self._activity(CONTROL_QUEUE, name, given, result, None)

    async def _in(self, region: str, name: str, given: Any, result: Any, within: timedelta | None = None) -> Any:
        return await self._activity(region_queue(region), name, given, result, within)

    async def _activity(self, queue: str, name: str, given: Any, result: Any, within: timedelta | None) -> Any:
        return await workflow.execute_activity(
            name,
            given,
            result_type=result,
            task_queue=queue,
            schedule_to_close_timeout=within,
            start_to_close_timeout=timedelta(hours=24) if name in LONG else timedelta(seconds=30),
            heartbeat_timeout=timedelta(seconds=HEARTBEAT_SECS),
            retry_policy=RetryPolicy(maximum_interval=timedelta(seconds=10)),
        )


def _is_late(error: ActivityError) -> bool:
    """Whether the time in which the old region was to return is up."""
    return error.retry_state is not None and error.retry_state.name == "TIMEOUT"
