"""The node's process: reads the settings, builds every part from the real world, serves until it is told to stop.

Nothing else builds parts. Run by the supervisor as `python -m domicile.node.main`; exit statuses are the supervisor's.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import resource
import signal
import sys
import threading
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import uvloop

from domicile.errors import BadApp
from domicile.node.app import App
from domicile.node.blobs.base import Blobs, UnfitStoreError
from domicile.node.blobs.opening import open_blobs
from domicile.node.blobs.probe import probe
from domicile.node.clock import SystemClock
from domicile.node.config import Config, ConfigError, load
from domicile.node.disk import SystemDisk
from domicile.node.errors import BlobError
from domicile.node.etcd_gateway import GRANT_VARIABLE, note_node
from domicile.node.failpoints import Failpoints
from domicile.node.http.server import HttpServer, Limits, serve
from domicile.node.inside import Beside, Inside
from domicile.node.neighbourhood import Neighbourhood
from domicile.node.node import Node
from domicile.node.operations import Operations
from domicile.node.seams import Seams
from domicile.node.sqlite.setup import configure_sqlite
from domicile.node.sqlite.temp_vfs import TempVfs
from domicile.node.supervisor import EXIT_HOPELESS, EXIT_REPLACE, LOCK_FD_VARIABLE
from domicile.node.telemetry import Telemetry, exposition, logger, node_registry, watch_loop
from domicile.node.wire.network import TcpNetwork
from domicile.node.wire.tls import peer_tls, secret_from
from domicile.node.workers import ThreadWorkers
from domicile.placement.heartbeat import HeartbeatThread
from domicile.placement.loop_watch import LoopWatch
from domicile.placement.node_registry import Membership
from domicile.placement.open import ETCD, open_store
from domicile.placement.store import Grant, PlacementError, Store
from domicile.registry import Registry
from domicile.registry import load as load_app

SWITCH_INTERVAL_SECS = 0.0005
GC_THRESHOLDS = (20_000, 20, 100)  # a call leaves no cycles: the default looks for some every few dozen calls
TEMP_VFS = "domicile"
TEMP_FACTOR = 4  # a statement's temporary files, in sizes of the largest database
STOP_GRACE_SECS = 10.0
LAST_WORD_SECS = 1.0
FILES_WANTED = 65_536
FAILPOINTS_VARIABLE = "DOMICILE_FAILPOINTS"


@dataclass
class Process:
    """What the process was started with, and what became of it."""

    config: Config
    registry: Registry
    failpoints: Failpoints
    log: Any
    grant: str  # made by the supervisor for this process; empty: none
    supervised: bool
    status: int = 0


def main(beside: Beside | None = None) -> None:
    """Exit 0 in order, 78 when it cannot start as configured, 86 to be replaced."""
    environ = dict(os.environ)
    failpoints = Failpoints.parse(environ.pop(FAILPOINTS_VARIABLE, ""))
    grant, supervised = environ.pop(GRANT_VARIABLE, ""), environ.pop(LOCK_FD_VARIABLE, "") != ""
    try:
        config = _settings(environ)
        registry = load_app(config.app, script=config.name or None)
    except (ConfigError, BadApp) as error:
        sys.stderr.write(f"domicile: {error}\n")
        raise SystemExit(EXIT_HOPELESS) from None
    log = logger(config.log, config.log_level, sys.stderr)
    process = Process(config, registry, failpoints, log, grant, supervised)
    _prepare(config)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(process, beside))
    raise SystemExit(process.status)


def _settings(environ: Mapping[str, str]) -> Config:
    toml = Path("domicile.toml")
    return load(environ, toml.read_text() if toml.exists() else None).config


def _prepare(config: Config) -> None:
    """What belongs to the process as a whole."""
    os.makedirs(os.path.join(config.data, "temp"), exist_ok=True)
    configure_sqlite(os.path.join(config.data, "temp"))
    sys.setswitchinterval(SWITCH_INTERVAL_SECS)
    gc.set_threshold(*GC_THRESHOLDS)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(FILES_WANTED, hard), hard))


async def _run(process: Process, beside: Beside | None) -> None:
    loop, log = asyncio.get_running_loop(), process.log
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, partial(_told, process, stopping))
    parts = Parts(process)
    try:
        await parts.open()
        server = await parts.serve()
    except (PlacementError, BlobError, OSError, ValueError, ConfigError) as error:
        log.error("node.cannot-start", error=str(error))
        hopeless = isinstance(error, UnfitStoreError | ValueError | ConfigError)
        process.status = EXIT_HOPELESS if hopeless else 1
        return
    async with beside(parts.inside()) if beside is not None else nullcontext():
        await stopping.wait()
    await parts.stop(server)


class Parts:
    """Everything of this process's node, built from the real world."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._config = process.config
        self._log = process.log
        self._loop = asyncio.get_running_loop()
        self._clock = SystemClock()
        self._rng = random.Random(int.from_bytes(os.urandom(16), "big"))
        self._telemetry = Telemetry()
        self._workers = ThreadWorkers(self._loop)
        self._disk = SystemDisk()
        self._temp = TempVfs(TEMP_VFS, "", TEMP_FACTOR * (self._config.object_db_max_mb << 20))
        self._disk.vfs = TEMP_VFS
        self._hood: Neighbourhood | None = None
        self._lag: asyncio.Task[None] | None = None
        self._blobs: Blobs
        self._store: Store
        self._control: Store  # of the control keyspace: another one, or the same
        self._node: Node

    async def open(self) -> None:
        """Stores, copies, the node. Raises what keeps the node from starting."""
        config, clock = self._config, self._clock
        self._blobs = await open_blobs(config, clock, self._rng)
        # A store that cannot tell what it holds is opened anew, and all that stands on it begins anew with it.
        on_broken = partial(_replace, self._log)
        self._store = self._control = open_store(config, clock.monotonic, clock.sleep, on_broken=on_broken)
        if config.control not in ("", config.placement):
            apart = replace(config, placement=config.control)
            self._control = open_store(apart, clock.monotonic, clock.sleep, on_broken=on_broken)
        await probe(self._blobs, f"probe/{self._rng.getrandbits(128):032x}")
        if config.peer_listen:
            self._hood = self._neighbours()
            await self._hood.open()
        self._node = Node(self._seams())

    async def serve(self) -> HttpServer:
        """Listen, register, serve."""
        config, node = self._config, self._node
        if self._hood is not None:
            await self._hood.listen(node)
        metrics = partial(exposition, node_registry(self._telemetry))
        limits = Limits(body_bytes_max=config.body_max_mb << 20)
        app = App(
            node,
            self._log,
            metrics,
            body_bytes_max=limits.body_bytes_max,
            deadline_secs=config.call_deadline_secs,
            operations=Operations(config),
        )
        await node.start()
        server = await serve(app, config.listen, self._clock, limits)
        self._lag = self._loop.create_task(watch_loop(self._telemetry, self._clock))
        gc.collect()
        gc.freeze()  # code and parts stay for good: no collection looks at them again
        http = f"{server.address[0]}:{server.address[1]}"
        self._log.info("node.serving", node=node.node_id, http=http, data=config.data)
        return server

    def inside(self) -> Inside:
        """What can be lent."""
        stores = (self._store, self._control, self._blobs)
        return Inside(self._config, self._clock, self._rng, self._log, *stores, self._node)

    async def stop(self, server: HttpServer) -> None:
        """In the order of PROTOCOLS section 3. Where others serve, callers are forwarded while objects are released;
        a node alone answers what it has read first."""
        node = self._node
        node.leaving()
        if node.alone:
            await server.stop(STOP_GRACE_SECS)
        self._process.failpoints.hit("stop.before-leave")
        await node.stop()
        await server.stop(STOP_GRACE_SECS)
        if self._hood is not None:
            await self._hood.close()
        if self._lag is not None:
            self._lag.cancel()
        self._workers.close()
        await self._blobs.close()
        await self._store.close()
        if self._control is not self._store:
            await self._control.close()
        self._log.info("node.stopped", node=node.node_id)

    def _neighbours(self) -> Neighbourhood:
        """Raises ConfigError."""
        config = self._config
        secret = secret_from(Path(config.cluster_secret_file).read_bytes()) if config.cluster_secret_file else b""
        if not secret:
            raise ConfigError(["PEER_LISTEN needs CLUSTER_SECRET_FILE: nodes prove to each other that they belong"])
        tls = peer_tls(config.peer_ca_file, config.peer_cert_file, config.peer_key_file)
        return Neighbourhood(
            loop=self._loop,
            config=config,
            clock=self._clock,
            disk=self._disk,
            rng=self._rng,
            workers=self._workers,
            log=self._log,
            network=TcpNetwork(self._loop, tls),
            secret=secret,
        )

    def _seams(self) -> Seams:
        config, hood = self._config, self._hood
        return Seams(
            loop=self._loop,
            config=config,
            registry=self._process.registry,
            clock=self._clock,
            disk=self._disk,
            rng=self._rng,
            workers=self._workers,
            blobs=self._blobs,
            store=self._store,
            control=self._control,
            telemetry=self._telemetry,
            log=self._log,
            failpoints=self._process.failpoints,
            heartbeat=self._heartbeat,
            replace_process=partial(_replace, self._log),
            http_address=config.listen,
            peers=hood.peers if hood is not None else None,
            replicas=hood.replicas if hood is not None else None,
            peer_address=lambda: hood.address if hood is not None else "",
            grant=Grant(self._process.grant) if self._process.grant else None,
            named=self._named,
        )

    def _heartbeat(self, membership: Membership) -> HeartbeatThread:
        """Renewals, for as long as this loop turns."""
        watch = LoopWatch(self._config.node_loop_secs, self._clock, partial(_replace, self._log))
        return HeartbeatThread(membership, watch)

    def _named(self, node_id: str) -> None:
        """So that the supervisor can deregister it when this process dies."""
        if self._process.supervised and self._config.placement.startswith(ETCD):
            replicas = self._hood.replicas if self._hood is not None else None
            note_node(self._config.data, node_id, replicas.copy_id if replicas is not None else "")


def _told(process: Process, stopping: asyncio.Event) -> None:
    if stopping.is_set():
        os._exit(1)
    stopping.set()


def _replace(log: Any, why: str) -> None:
    """The supervisor starts another process; what this one holds cannot be freed otherwise. A log that takes no line
    holds it up no longer than this."""
    telling = threading.Thread(target=partial(log.error, "node.replace", why=why), daemon=True)
    try:
        telling.start()
        telling.join(LAST_WORD_SECS)
    finally:
        os._exit(EXIT_REPLACE)


if __name__ == "__main__":
    main()
