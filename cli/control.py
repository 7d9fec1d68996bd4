"""`domicile control`: the control plane's process: workers, schedules kept right, and the control API (section 10).

One worker for the control queue and one for each region it can reach; regions that come later are taken up as they
register. Any number of these processes may run: Temporal hands each task to one of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from temporalio.client import Client
from temporalio.service import RPCError
from temporalio.worker import Worker

from domicile.activities import schedules
from domicile.activities.search_attributes import NotRegisteredError, register
from domicile.activities.worker import workers
from domicile.activities.world import Opening, RegionUnknownError, World
from domicile.cli import settings
from domicile.cli.failures import CliError, Exit
from domicile.errors import NotServing
from domicile.node.clock import SystemClock
from domicile.node.config import Config, ConfigError
from domicile.node.errors import BlobError
from domicile.node.http.control_app import ControlApp
from domicile.node.http.server import HttpServer, Limits, serve
from domicile.node.operations import Operations
from domicile.node.peers import Peers
from domicile.node.telemetry import logger
from domicile.node.wire.hello import Identity
from domicile.node.wire.network import TcpNetwork
from domicile.node.wire.tls import peer_tls, secret_from
from domicile.node.wire.wiring import Wiring
from domicile.placement.open import SQLITE
from domicile.placement.store import PlacementError

LOOK_SECS = 5.0
RETRY_SECS = 1.0
REACH_SECS = 5.0
STOP_GRACE_SECS = 5.0


@dataclass(frozen=True)
class Control:
    """What the command line asked for. `regions`: only their queues, and not the control queue; empty: all."""

    regions: tuple[str, ...] = ()


def run(environ: Mapping[str, str], control: Control) -> None:
    """Returns when told to stop. Raises CliError when the settings cannot be used, or a part fails for good."""
    config = settings.loaded(environ).config
    if not config.temporal:
        raise CliError("TEMPORAL is not set", Exit.FAILED, "it is Temporal's frontend, host:port")
    embedded = [name for name in ("placement", "control") if getattr(config, name).startswith(SQLITE)]
    if embedded:
        raise CliError(
            f"{' and '.join(embedded).upper()}: an embedded store is its node's alone",
            Exit.FAILED,
            "`domicile node --control` runs the control plane inside the node's process",
        )
    try:
        asyncio.run(_run(config, control))
    except (ConfigError, NotRegisteredError, OSError, ValueError, PlacementError, RPCError, RuntimeError) as error:
        raise CliError(f"the control plane cannot run: {error}", Exit.FAILED) from None


async def _run(config: Config, control: Control) -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    log, clock = logger(config.log, config.log_level, sys.stderr, process="control"), SystemClock()
    rng = random.Random(int.from_bytes(os.urandom(16), "big"))
    world = Opening(config, clock, rng, log, _peers(config, clock, rng, log)).world
    process = ControlProcess(config, world, control.regions)
    running = loop.create_task(process.run(listen=not control.regions))
    stopping = loop.create_task(stop.wait())
    try:
        await asyncio.wait((running, stopping), return_when=asyncio.FIRST_COMPLETED)
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
    finally:
        stopping.cancel()
        await world.close()


def _peers(config: Config, clock: SystemClock, rng: random.Random, log: Any) -> Peers:
    """The client leg to nodes. Raises ConfigError."""
    secret = secret_from(Path(config.cluster_secret_file).read_bytes()) if config.cluster_secret_file else b""
    if not secret:
        raise ConfigError(["CLUSTER_SECRET_FILE is needed: the control plane proves to nodes that it belongs"])
    loop = asyncio.get_running_loop()
    network = TcpNetwork(loop, peer_tls(config.peer_ca_file, config.peer_cert_file, config.peer_key_file))
    identity = Identity(config.cluster, "control", "", "", secret)
    return Peers(Wiring(loop, network, lambda: identity, rng.randbytes, clock, log))


class ControlProcess:
    """Workers, schedules and the control API over a World; `only` these regions, and not the control queue."""

    def __init__(self, config: Config, world: World, only: Sequence[str] = ()) -> None:
        self._config = config
        self._only = only
        self._world = world
        self._clock = world.clock
        self._log = world.log
        self._operations = Operations(config)
        self._working: dict[str, asyncio.Task[None]] = {}

    async def run(self, *, listen: bool) -> None:
        """Connect, listen, work, and keep right what there should be; until cancelled, or a worker fails for good."""
        server: HttpServer | None = None
        try:
            client = await self._connected()
            await register(client, self._clock, self._log)
            if not self._only:
                self._work("", workers(client, self._world, ()))
            if listen:
                server = await self._listen()
            while True:
                await self._look(client)
                await self._wait()
        finally:
            if server is not None:
                await server.stop(STOP_GRACE_SECS)
            await self._stop_workers()
            self._log.info("control.stopped")

    async def _connected(self) -> Client:
        """Temporal may come up after this process."""
        while True:
            try:
                return await self._operations.client()
            except NotServing as error:
                self._log.warning("control.temporal", error=error.detail)
                await self._clock.sleep(RETRY_SECS)

    async def _listen(self) -> HttpServer:
        limits = Limits(body_bytes_max=self._config.body_max_mb << 20)
        app = ControlApp(self._operations, self._log, self._registered)
        server = await serve(app, self._config.listen, self._clock, limits)
        self._log.info("control.serving", http=f"{server.address[0]}:{server.address[1]}", pid=os.getpid())
        return server

    async def _look(self, client: Client) -> None:
        """Take up regions that have come, and put schedules right. What cannot be done now is done later."""
        try:
            names = await self._regions()
            # All at once, and before any schedule: one that is away, or slow, holds up no other's moves.
            await asyncio.gather(*(self._take_up(name, client) for name in names if name not in self._working))
            for name in names:
                for wanted in schedules.planned(self._config, name):
                    await schedules.keep(client, wanted, self._log)
        except (PlacementError, RPCError) as error:
            self._log.warning("control.look", error=str(error))

    async def _take_up(self, name: str, client: Client) -> None:
        if await self._reaches(name):
            self._work(name, workers(client, self._world, (name,), control=False))
            self._log.info("control.region", region=name)

    async def _registered(self) -> list[str]:
        """Raises NotServing."""
        try:
            return [row.name for row in await self._world.regions()]
        except PlacementError as error:
            raise NotServing(f"the control keyspace does not answer: {error}") from error

    async def _regions(self) -> list[str]:
        registered = [row.name for row in await self._world.regions()]
        return [name for name in {*registered, self._config.region} if not self._only or name in self._only]

    async def _reaches(self, name: str) -> bool:
        """Whether its placement store answers from here."""
        try:
            async with asyncio.timeout(REACH_SECS):
                region = await self._world.region(name)
                await region.nodes()
        except (TimeoutError, PlacementError, BlobError, RegionUnknownError, OSError, ValueError) as error:
            self._log.warning("control.unreachable", region=name, error=str(error))
            return False
        return True

    def _work(self, name: str, its_workers: Sequence[Worker]) -> None:
        async def work() -> None:
            await asyncio.gather(*(worker.run() for worker in its_workers))

        self._working[name] = asyncio.get_running_loop().create_task(work())

    async def _wait(self) -> None:
        """Until the next look. Raises what a worker failed with."""
        done, _ = await asyncio.wait(self._working.values(), timeout=LOOK_SECS)
        for task in done:
            task.result()

    async def _stop_workers(self) -> None:
        """Each ends what it is at. One that was made just now is not running yet, and would begin after the end."""
        for working in self._working.values():
            working.cancel()
        await asyncio.gather(*self._working.values(), return_exceptions=True)
