"""MoveProject(project, to): everything of a project goes to another region, and no answered write is lost (section 10).

    begin → mark → prepare → copy… → close → drain → settle → flip → open → name → clear

It copies while the project serves, pass after pass; then closes the old gate, waits until every object is released
clean, copies what had changed, and flips the home. From there on it only goes forward. Before, a cancel, or a failure,
puts the old gate back with a new term. At no time are two gates open.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError

from domicile.workflows.attributes import mark
from domicile.workflows.copy_values import CopyOrder, CopyProgress
from domicile.workflows.endings import to_its_end
from domicile.workflows.expire_copy import expire_later
from domicile.workflows.move_gates import change_gate, gate_seen
from domicile.workflows.move_values import (
    Begun,
    CopyStep,
    DrainOrder,
    DrainResult,
    Expire,
    GateChange,
    Marked,
    MarkStep,
    Move,
    Moved,
    MoveState,
)
from domicile.workflows.steps import in_control, in_region

PASSES_MAX = 3
ENOUGH_BYTES = 64 << 20
LONG_SECS = 24 * 3600.0

T = TypeVar("T")


@workflow.defn(name="MoveProject")
class MoveProject:
    """Id `move-<project>`. Signal `go_on` accepts the incidents that a drain met."""

    def __init__(self) -> None:
        self._state = MoveState()
        self._asked: Move | None = None
        self._run_id = ""
        self._undoing = False
        self._decided: bool | None = None

    @workflow.run
    async def run(self, asked: Move) -> Moved:
        """Moves the project, or says that it is there already. Cancelled, or failed before the flip, it goes back."""
        self._asked = asked
        self._run_id = workflow.info().first_execution_run_id
        self._state = asked.state or self._state
        try:
            if not self._state.past_return and not await self._until_flipped():
                how = "serves again in" if self._state.opened_at else "is already in"
                return self._state.moved(asked, moved=False, detail=f"{asked.project} {how} {asked.to}")
        except (ActivityError, ApplicationError, asyncio.CancelledError) as error:
            if not self._state.past_return:
                await self._to_its_end(self._go_back())
                if workflow.cancellation_reason() is not None:
                    raise asyncio.CancelledError("the move was cancelled") from error
                raise
        await self._to_its_end(self._roll_forward())
        return self._state.moved(asked, moved=True)

    @workflow.query
    def progress(self) -> dict[str, Any]:
        """{"step", "project", "source", "to", "cancellable", "pass", "objects", "done", "total", "copied_objects",
        "copied_bytes", "landed", "incidents", "unserved_secs"}; the steps under way tell more by their heartbeats."""
        shown = self._state.shown()
        to, project = (self._asked.to, self._asked.project) if self._asked else ("", "")
        going_back = {"step": "going back", "cancellable": False} if self._undoing else {}
        return {"project": project, "to": to, **shown, **going_back}

    @workflow.signal
    def go_on(self) -> None:
        """The objects at which the drain stopped are served from what is there, with an incident each."""
        self._decided = True

    # Up to the point of no return.

    async def _until_flipped(self) -> bool:
        """False: there is nothing to do."""
        while not self._state.past_return:
            step = self._state.step
            mark(project=self._given.project, step=step)
            if step == "begin":
                if not await self._begin():
                    return False
            elif step == "prepare":
                await self._to_its_end(self._prepare())
            elif step == "copy":
                await self._copy_while_it_serves()
            elif step == "close":
                await self._to_its_end(self._close())
            elif step == "drain":
                await self._drain()
            elif step == "settle":
                await self._settle()
            elif step == "flip":
                self._at("open")  # whatever becomes of the attempt, it may have happened
                await self._to_its_end(self._flip())
        return True

    async def _begin(self) -> bool:
        begun: Begun = await in_control("move-begin", self._given, Begun)
        self._state.source, self._state.mark = begun.was or begun.source, begun.mark
        if not begun.moving:
            if begun.cut_off:
                await self._to_its_end(self._open_again())
            return False
        self._state.opens_with = begun.term  # 0 unless it is flipped
        self._at("open" if begun.flipped else "prepare")
        return True

    async def _open_again(self) -> None:
        """A move away was ended from outside. Its mark is taken over first: what comes late of it has no effect."""
        marked: Marked = await in_control("move-mark", self._mark_step(), Marked)
        self._state.mark = marked.mark
        gate = await gate_seen(self._state.source, self._given.project)
        if not gate.open:
            await change_gate(GateChange(gate.region, self._given.project, gate.version, True, marked.term))
            self._state.opened_at = workflow.now().timestamp()
        await in_control("move-clear", self._mark_step(), None)

    async def _prepare(self) -> None:
        """Mark the project; touch the target's gate: nothing that goes by its old version is written, and calls that
        meet it go to where the project is as yet."""
        state, asked = self._state, self._given
        state.source_gate = await gate_seen(state.source, self._given.project)
        before = await gate_seen(asked.to, asked.project)
        if before.open:
            raise ApplicationError(
                f"the gate of {asked.project} in {asked.to} is open", type="TwoGates", non_retryable=True
            )
        marked: Marked = await in_control("move-mark", self._mark_step(), Marked)
        state.mark, state.term = marked.mark, marked.term
        touched = GateChange(asked.to, asked.project, before.version, False, marked.term, state.source)
        state.target_gate = await change_gate(touched)
        self._at("copy")

    async def _copy_while_it_serves(self) -> None:
        while self._state.passes < PASSES_MAX:
            done = await self._pass()
            if done.bytes < ENOUGH_BYTES:
                break
        self._at("close")

    async def _close(self) -> None:
        state = self._state
        gate = state.source_gate
        assert gate is not None
        state.closed_at = workflow.now().timestamp()
        closed = GateChange(state.source, self._given.project, gate.version, False, gate.term)
        state.source_gate = await change_gate(closed)
        self._at("drain")

    async def _drain(self) -> None:
        """Until everything is released clean. At an incident it stops and asks."""
        state, asked = self._state, self._given
        while True:
            order = DrainOrder(asked.project, state.source, state.accept)
            drained: DrainResult = await in_region(state.source, "move-drain", order, DrainResult, LONG_SECS)
            state.objects = max(state.objects, drained.objects)
            state.landed += drained.landed
            state.incidents = drained.incidents
            if not drained.incidents_in_all:
                break
            await self._ask(drained)
        self._at("settle")

    async def _ask(self, drained: DrainResult) -> None:
        mark(step="asks")
        self._decided = None
        try:
            await workflow.wait_condition(
                lambda: self._decided is not None, timeout=timedelta(seconds=self._given.ask_secs)
            )
        except TimeoutError:
            first = drained.incidents[0] if drained.incidents else ""
            raise ApplicationError(
                f"{drained.incidents_in_all} objects may lack answered writes, and nobody said `go_on`: {first}",
                type="Incident",
                non_retryable=True,
            ) from None
        self._state.accept = True

    async def _settle(self) -> None:
        """One more pass, and another, until no row differs and none is unclean."""
        state = self._state
        while True:
            done = await self._pass()
            if done.unclean:
                self._at("drain")
                return
            state.last_bytes += done.bytes
            if not done.differing:
                self._at("flip")
                return

    async def _pass(self) -> CopyProgress:
        """One pass, in slices; a long one goes on in another run of this workflow."""
        state, asked = self._state, self._given
        order = CopyOrder(asked.project, state.source, asked.to, state.term, asked.mb_per_sec, state.since)
        while not state.progress.done:
            step = CopyStep(order, state.progress, asked.objects_per_step)
            state.progress = await in_region(asked.to, "move-copy", step, CopyProgress, LONG_SECS)
            if state.progress.failing:
                raise ApplicationError(
                    f"{len(state.progress.failing)} objects cannot be copied: {state.progress.failing[0]}",
                    type="CannotCopy",
                    non_retryable=True,
                )
            if not state.progress.done:
                self._rest()
        done, state.progress = state.progress, CopyProgress()
        state.passes += 1
        state.since = done.next_since
        state.objects = done.objects
        state.copied_objects += done.differing
        state.copied_bytes += done.bytes
        return done

    def _rest(self) -> None:
        """Between two slices: a long history ends here, and the move goes on in a new one."""
        info = workflow.info()
        if info.is_continue_as_new_suggested() or info.get_current_history_length() > self._given.history_max:
            workflow.continue_as_new(replace(self._given, state=self._state))

    async def _flip(self) -> None:
        marked: Marked = await in_control("move-flip", self._mark_step(), Marked)
        self._state.mark, self._state.opens_with = marked.mark, marked.term

    # After it.

    async def _roll_forward(self) -> None:
        """Each step may have been done before, by this run or an earlier one."""
        state, asked = self._state, self._given
        mark(project=asked.project, step="open")
        if not state.opens_with:
            await self._flip()
        if state.target_gate is None:  # an earlier move's flip, whose steps are not known here
            state.target_gate = await gate_seen(asked.to, asked.project)
        gate = state.target_gate
        opened = GateChange(asked.to, asked.project, gate.version, True, state.opens_with)
        state.target_gate = gate if gate.open else await change_gate(opened)
        state.opened_at = workflow.now().timestamp()
        self._at("name")
        if state.source != asked.to:
            closed = state.source_gate or await gate_seen(state.source, asked.project)
            named = GateChange(state.source, asked.project, closed.version, False, closed.term, asked.to)
            state.source_gate = await change_gate(named)
            kept = state.source_gate.version, asked.to, state.opens_with, asked.keep_hours * 3600
            await expire_later(Expire(asked.project, state.source, *kept))
        self._at("clear")
        await in_control("move-clear", self._mark_step(), None)
        self._at("done")

    async def _go_back(self) -> None:
        """The old gate is open with a new term: attempts that were cut off go by versions that are gone."""
        state, asked = self._state, self._given
        self._undoing = True
        if not state.term:
            return  # nothing was begun
        mark(project=asked.project, step="going back")
        if state.closed_at:
            gate = await gate_seen(state.source, self._given.project)
            term = await in_control("move-draw", asked.project, int)
            await change_gate(GateChange(state.source, asked.project, gate.version, True, term))
        await in_control("move-clear", self._mark_step(), None)

    # Parts of steps.

    @property
    def _given(self) -> Move:
        assert self._asked is not None
        return self._asked

    def _at(self, step: str) -> None:
        self._state.step = step

    def _mark_step(self) -> MarkStep:
        state = self._state
        return MarkStep(self._given.project, self._given.to, state.mark, self._run_id, state.source)

    async def _to_its_end(self, work: Coroutine[Any, Any, T]) -> T:
        """Past the point of no return, and on the way back, a cancel is too late."""
        return await to_its_end(work, lambda: not self._state.past_return and not self._undoing)
