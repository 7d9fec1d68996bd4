"""The worker: every workflow and every activity there is, on the queues of this process (PROTOCOLS section 10).

A new workflow, or a class of activities, gets its line in `WORKFLOWS` or `_steps` and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

from temporalio.client import Client
from temporalio.worker import Worker

from domicile.activities.beating import Beating
from domicile.activities.collecting import CollectingActivities
from domicile.activities.draining import DrainingActivities
from domicile.activities.expiring import ExpiringActivities
from domicile.activities.failing_over import FailoverActivities
from domicile.activities.fork_compare import ForkActivities
from domicile.activities.moving_object import ObjectMovingActivities
from domicile.activities.moving_project import MovingActivities
from domicile.activities.recovering import RecoveringActivities
from domicile.activities.scrubbing import ScrubbingActivities
from domicile.activities.short_errors import ShortErrors
from domicile.activities.standing_copies import StandingCopies
from domicile.activities.sweeping import SweepingActivities
from domicile.activities.world import World
from domicile.workflows.collect_garbage import CollectGarbage
from domicile.workflows.drain_node import DrainNode
from domicile.workflows.expire_copy import ExpireCopy
from domicile.workflows.failover_region import FailoverRegion
from domicile.workflows.move_object import MoveObject
from domicile.workflows.move_project import MoveProject
from domicile.workflows.queues import CONTROL_QUEUE, region_queue
from domicile.workflows.recover_incident import RecoverIncident
from domicile.workflows.replicate_project import ReplicateProject
from domicile.workflows.scrub import Scrub
from domicile.workflows.sweep_alarms import SweepAlarms
from domicile.workflows.watch_incidents import WatchIncidents

HEARTBEAT_EVERY = timedelta(seconds=1)
CACHED = 1000
WORKFLOWS: tuple[type[Any], ...] = (
    CollectGarbage,
    DrainNode,
    ExpireCopy,
    FailoverRegion,
    MoveObject,
    MoveProject,
    RecoverIncident,
    ReplicateProject,
    Scrub,
    SweepAlarms,
    WatchIncidents,
)


def activities_of(world: World) -> list[Callable[..., Any]]:
    """Every activity, bound to this world."""
    return [step for steps in _steps(world) for step in steps]


def _steps(world: World) -> Iterable[Sequence[Callable[..., Any]]]:
    """One line for each class: its `steps()`."""
    return (
        CollectingActivities(world).steps(),
        DrainingActivities(world).steps(),
        ExpiringActivities(world).steps(),
        FailoverActivities(world).steps(),
        ForkActivities(world).steps(),
        MovingActivities(world).steps(),
        ObjectMovingActivities(world).steps(),
        RecoveringActivities(world).steps(),
        ScrubbingActivities(world).steps(),
        StandingCopies(world).steps(),
        SweepingActivities(world).steps(),
    )


def workers(
    client: Client, world: World, regions: Iterable[str], *, control: bool = True, cached: int = CACHED
) -> list[Worker]:
    """One for the control queue, where `control` says so, and one for each region. Not started yet.

    `cached`: workflows kept in memory; with 0 each decision is taken by replaying the history.
    """
    queues = [*([CONTROL_QUEUE] if control else []), *map(region_queue, regions)]
    steps = activities_of(world)
    return [
        Worker(
            client,
            task_queue=queue,
            workflows=WORKFLOWS,
            activities=steps,
            interceptors=[ShortErrors(), Beating(world.clock)],
            max_cached_workflows=cached,
            # A cancelled activity hears of it with its next heartbeat that is sent.
            max_heartbeat_throttle_interval=HEARTBEAT_EVERY,
            default_heartbeat_throttle_interval=HEARTBEAT_EVERY,
        )
        for queue in queues
    ]


async def started(all_workers: Sequence[Worker]) -> AsyncExitStack:
    """All of them running; closing what this gives ends them, each after what it is at."""
    stack = AsyncExitStack()
    for worker in all_workers:
        await stack.enter_async_context(worker)
    return stack
