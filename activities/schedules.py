"""The schedules of a region, kept right: there, as they should be, with nothing else's (PROTOCOLS sections 9 and 10).

    sweep-<region>     SweepAlarms     every OBJECT_SWEEP_SECS
    incidents-<region> WatchIncidents  every OBJECT_SWEEP_SECS
    collect-<region>   CollectGarbage  every hour
    scrub-<region>     Scrub           every day

A run that takes longer than its interval is not overlapped: the next one is left out. What a person paused stays so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from temporalio.client import (
    Client,
    Schedule,
    ScheduleActionStartWorkflow,
    ScheduleAlreadyRunningError,
    ScheduleIntervalSpec,
    ScheduleOverlapPolicy,
    SchedulePolicy,
    ScheduleSpec,
    ScheduleUpdate,
    ScheduleUpdateInput,
)
from temporalio.service import RPCError, RPCStatusCode

from domicile.node.config import Config
from domicile.workflows.queues import CONTROL_QUEUE

CATCHUP = timedelta(seconds=60)  # what fell due while Temporal was down is one run, not all that were missed
RUN_MAX = timedelta(days=2)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Planned:
    """One schedule, as it should be. Its runs' ids are its own with the time of the run behind."""

    id: str
    workflow: str
    input: Mapping[str, Any]
    every: timedelta


def planned(config: Config, region: str) -> list[Planned]:
    """All of one region's."""
    every = timedelta(seconds=config.object_sweep_secs)
    return [
        Planned(f"sweep-{region}", "SweepAlarms", {"region": region, "rows": config.object_sweep_rows}, every),
        Planned(f"incidents-{region}", "WatchIncidents", {"region": region}, every),
        Planned(f"collect-{region}", "CollectGarbage", {"region": region}, HOUR),
        Planned(f"scrub-{region}", "Scrub", {"region": region}, DAY),
    ]


async def keep(client: Client, wanted: Planned, log: Any) -> bool:
    """Create the schedule, or put it right; whether anything had to be done. Raises RPCError."""
    handle = client.get_schedule_handle(wanted.id)
    try:
        found = (await handle.describe()).schedule
    except RPCError as error:
        if error.status != RPCStatusCode.NOT_FOUND:
            raise
        return await _create(client, wanted, log)
    if await _same(client, found, wanted):
        return False

    def as_wanted(now: ScheduleUpdateInput) -> ScheduleUpdate:
        schedule = _schedule(wanted)
        schedule.state = now.description.schedule.state
        return ScheduleUpdate(schedule)

    await handle.update(as_wanted)
    log.info("control.schedule", schedule=wanted.id, did="put right")
    return True


async def _create(client: Client, wanted: Planned, log: Any) -> bool:
    try:
        await client.create_schedule(wanted.id, _schedule(wanted))
    except ScheduleAlreadyRunningError:
        return False  # another control process was as quick
    log.info("control.schedule", schedule=wanted.id, did="created")
    return True


def _schedule(wanted: Planned) -> Schedule:
    return Schedule(
        action=ScheduleActionStartWorkflow(
            wanted.workflow,
            dict(wanted.input),
            id=wanted.id,
            task_queue=CONTROL_QUEUE,
            execution_timeout=RUN_MAX,
        ),
        spec=ScheduleSpec(intervals=[ScheduleIntervalSpec(every=wanted.every)]),
        policy=SchedulePolicy(overlap=ScheduleOverlapPolicy.SKIP, catchup_window=CATCHUP),
    )


async def _same(client: Client, found: Schedule, wanted: Planned) -> bool:
    action = found.action
    if not isinstance(action, ScheduleActionStartWorkflow):
        return False
    arguments = await client.data_converter.decode(action.args) if action.args else []
    return (
        [interval.every for interval in found.spec.intervals] == [wanted.every]
        and not found.spec.calendars
        and not found.spec.cron_expressions
        and found.policy.overlap == ScheduleOverlapPolicy.SKIP
        and (action.workflow, action.task_queue) == (wanted.workflow, CONTROL_QUEUE)
        and arguments == [dict(wanted.input)]
    )
