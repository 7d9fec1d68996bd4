"""WatchIncidents(region): every open incident has its RecoverIncident (PROTOCOLS section 10). By schedule."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError

from domicile.workflows.attributes import mark
from domicile.workflows.queues import region_queue
from domicile.workflows.recover_incident import Incident, RecoverIncident


@dataclass(frozen=True)
class WatchRegion:
    """The workflow's input: {"region": "local"}."""

    region: str


@dataclass(frozen=True)
class Watched:
    """`started` of the `open` incidents that were looked at, 200 at most; the others had their workflow already."""

    open: int
    started: int


@workflow.defn(name="WatchIncidents")
class WatchIncidents:
    """Id `incidents-<region>`."""

    @workflow.run
    async def run(self, asked: WatchRegion) -> Watched:
        """Starts what is missing and ends; the recoveries outlive it."""
        mark(region=asked.region, step="look")
        found: list[Incident] = await workflow.execute_activity(
            "incidents-open",
            asked,
            result_type=list[Incident],
            task_queue=region_queue(asked.region),
            start_to_close_timeout=timedelta(minutes=1),
            retry_policy=RetryPolicy(maximum_attempts=5),
        )
        return Watched(len(found), sum([await self._start(incident) for incident in found]))

    async def _start(self, incident: Incident) -> int:
        try:
            await workflow.start_child_workflow(
                RecoverIncident.run,
                incident,
                id=f"incident-{incident.object_id}-{incident.epoch}",
                parent_close_policy=workflow.ParentClosePolicy.ABANDON,
                id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
            )
        except WorkflowAlreadyStartedError:
            return 0
        return 1
