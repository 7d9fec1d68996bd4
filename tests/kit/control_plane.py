"""The control plane in the test's own process: a World over the test's own stores and nodes, workers, a client."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import platform
import random
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import waiting
from temporalio import activity
from temporalio.client import Client, WorkflowHandle
from temporalio.service import RPCError
from whole_nodes import SECRET, NodeGroup

from domicile.activities import worker as production
from domicile.activities.world import RegionUnknownError, RegionWorld, World
from domicile.errors import DomicileError
from domicile.node.peers import Peers
from domicile.node.telemetry import logger
from domicile.node.wire.hello import Identity
from domicile.node.wire.network import TcpNetwork
from domicile.node.wire.wiring import Wiring
from domicile.placement.keys import ControlKeys, Keys
from domicile.placement.records import RegionRow
from domicile.placement.store import Store

CLUSTER = "domicile"


class ControlPlane:
    """`regions`: the nodes of each region by name; `control`: the control keyspace, else the first region's store.

    Workers run between `start_worker` and `stop_worker`, as often as a test likes; a run that is under way goes on with
    the next one.
    """

    def __init__(self, address: str, regions: Mapping[str, NodeGroup], control: Store | None = None) -> None:
        self.regions = dict(regions)
        self.log = io.StringIO()
        self.client: Client
        self.world: World
        self._address = address
        self._control = control or next(iter(regions.values())).store
        self._running: AsyncExitStack | None = None
        self._began = datetime.now(UTC)
        self.record_into: Path | None = None  # with the test's name, when histories are to be recorded
        self.before_ask: Callable[[str], Awaitable[None]] | None = None  # given the request's name; may wait, or raise

    async def start(self, *, worker: bool = True) -> None:
        """Connected, nothing left of earlier tests, and, unless told otherwise, with workers on every queue."""
        loop, rng = asyncio.get_running_loop(), random.Random()
        clock = next(iter(self.regions.values())).watch
        log = logger("json", "info", self.log)
        identity = Identity(CLUSTER, "control", "", "", SECRET)
        wiring = Wiring(loop, TcpNetwork(loop), lambda: identity, rng.randbytes, clock, log)
        self.peers = Peers(wiring)
        self.world = World(self._control, ControlKeys(CLUSTER), clock, rng, log, self._open_region)
        self.client = await Client.connect(self._address)
        await self.sweep_up()
        if worker:
            await self.start_worker()

    async def stop(self) -> None:
        await self.stop_worker()
        if self.record_into is not None:
            await record_histories(self.client, self._began, self.record_into)
        await self.sweep_up()
        await self.world.close()
        await self.peers.close()

    async def start_worker(self, **how: Any) -> None:
        """`how` goes to `workers`: `cached=0` replays the history for each decision."""
        self._running = await production.started(production.workers(self.client, self.world, list(self.regions), **how))

    async def stop_worker(self) -> None:
        """As if it had been killed, as far as Temporal can tell: activities under way are cut off, not completed."""
        if self._running is not None:
            running, self._running = self._running, None
            await running.aclose()

    async def sweep_up(self) -> None:
        """Nothing runs any more, and no schedule is left."""
        async for schedule in await self.client.list_schedules():
            with contextlib.suppress(RPCError):
                await self.client.get_schedule_handle(schedule.id).delete()
        async for run in self.client.list_workflows('ExecutionStatus = "Running"'):
            with contextlib.suppress(RPCError):
                await self.client.get_workflow_handle(run.id, run_id=run.run_id).terminate("the test is over")

    async def until(self, holds: Callable[[], Any], what: str) -> None:
        """Wait on the condition `what` (awaited if it is awaitable), not on time."""
        await waiting.until(holds, what)

    async def a_while(self, secs: float) -> None:
        """A fault lasts, a load goes on, or what must not happen has its chance."""
        await asyncio.sleep(secs)

    async def history_events(self, handle: WorkflowHandle[Any, Any]) -> int:
        """How many events the (latest run's) history has."""
        return len((await handle.fetch_history()).events)

    async def _open_region(self, name: str, row: RegionRow | None) -> RegionWorld:
        group = self.regions.get(name)
        if group is None:
            raise RegionUnknownError(f"there is no region {name}")

        async def ask(node: Any, method: str, body: bytes, secs: float) -> bytes:
            if self.before_ask is not None:
                await self.before_ask(method)
            return await self.peers.ask(node.peer, method, body, secs)

        return RegionWorld.of(Keys(CLUSTER, name), group.store, group.blobs, ask, self.world.clock)


async def record_histories(client: Client, since: datetime, into: Path) -> None:
    """Every history that began since then and has ended, as `<folder>/<workflow>.<status>.<test>.json`."""
    ended = f'ExecutionStatus != "Running" AND StartTime > "{since.isoformat()}"'
    async for run in client.list_workflows(ended):
        assert run.status is not None
        history = await client.get_workflow_handle(run.id, run_id=run.run_id).fetch_history()
        name = f"{run.workflow_type}.{run.status.name.lower()}.{into.name}.json"
        (into.parent / name).write_text(_shareable(history.to_json()) + "\n")


def _shareable(history: str) -> str:
    """Without what is this machine's: its name, and paths in traces."""
    told = json.dumps(json.loads(history), separators=(",", ":"))
    told = re.sub(rf"\d+@{re.escape(platform.node())}", "worker", told)
    return re.sub(r'"stackTrace":"(?:[^"\\]|\\.)*"', '"stackTrace":""', told)


async def settled(call: Callable[..., Awaitable[Any]], *args: Any, **how: Any) -> Any:
    """The call's answer, sent again while it is refused for a while."""
    async with asyncio.timeout(waiting.WAIT_SECS):
        while True:
            try:
                return await call(*args, **how)
            except DomicileError as error:
                if not error.retryable:
                    raise
                await asyncio.sleep(0.02)


async def beat_for_ever(busy: asyncio.Event) -> None:
    """For `before_ask`: an activity that gets nowhere, and hears with a heartbeat that it is cancelled."""
    while True:
        activity.heartbeat()
        busy.set()
        await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def plane_over(
    address: str, groups: Sequence[NodeGroup], nodes: int, *, worker: bool = True, record_into: Path | None = None
) -> AsyncIterator[ControlPlane]:
    """Each group is started as a region of its own, and the control plane over all of them."""
    async with AsyncExitStack() as stack:
        for group in groups:
            group.control = groups[0].store if group is not groups[0] else None
            await group.start(nodes)
            stack.push_async_callback(group.stop)
        plane = ControlPlane(address, {group.region: group for group in groups})
        plane.record_into = record_into
        await plane.start(worker=worker)
        stack.push_async_callback(plane.stop)
        yield plane
