"""The node's process: reads the settings, builds every part from the real world, serves until it is told to stop.

Nothing else builds parts. Run by the supervisor as `python -m domicile.node.main`; exit statuses are the supervisor's.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import random
import resource
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import uvloop

from domicile.errors import BadApp
from domicile.node.app import App
from domicile.node.blobs.base import Blobs, UnfitStoreError
from domicile.node.blobs.file import FileBlobs
from domicile.node.blobs.probe import probe
from domicile.node.clock import SystemClock
from domicile.node.config import Config, ConfigError, load
from domicile.node.disk import SystemDisk
from domicile.node.errors import BlobError
from domicile.node.failpoints import Failpoints
from domicile.node.http.server import HttpServer, Limits, serve
from domicile.node.node import Node, Seams
from domicile.node.sqlite_setup import configure_sqlite
from domicile.node.supervisor import EXIT_HOPELESS, EXIT_REPLACE
from domicile.node.telemetry import Telemetry, exposition, logger, node_registry, watch_loop
from domicile.node.temp_vfs import TempVfs
from domicile.node.workers import ThreadWorkers
from domicile.placement.heartbeat import HeartbeatThread
from domicile.placement.open import open_store
from domicile.placement.store import PlacementError
from domicile.registry import Registry
from domicile.registry import load as load_app

SWITCH_INTERVAL_SECS = 0.0005
TEMP_VFS = "domicile"
TEMP_FACTOR = 4  # a statement's temporary files, in sizes of the largest database
STOP_GRACE_SECS = 10.0
FILES_WANTED = 65_536
_PR_SET_PDEATHSIG = 1
FAILPOINTS_VARIABLE = "DOMICILE_FAILPOINTS"


@dataclass
class Process:
    """What the process was started with, and what became of it."""

    config: Config
    registry: Registry
    failpoints: Failpoints
    log: Any
    status: int = 0


def main() -> None:
    """Exit 0 in order, 78 when it cannot start as configured, 86 to be replaced."""
    environ = dict(os.environ)
    failpoints = Failpoints.parse(environ.pop(FAILPOINTS_VARIABLE, ""))
    try:
        config = _settings(environ)
        registry = load_app(config.app, script=config.name or None)
    except (ConfigError, BadApp) as error:
        sys.stderr.write(f"domicile: {error}\n")
        raise SystemExit(EXIT_HOPELESS) from None
    process = Process(config, registry, failpoints, logger(config.log, config.log_level, sys.stderr))
    _prepare(config)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(process))
    raise SystemExit(process.status)


def _settings(environ: Mapping[str, str]) -> Config:
    known = {name: value for name, value in environ.items() if name != "DOMICILE_LOCK_FD"}
    toml = Path("domicile.toml")
    return load(known, toml.read_text() if toml.exists() else None).config


def _prepare(config: Config) -> None:
    """What belongs to the process as a whole."""
    os.makedirs(os.path.join(config.data, "temp"), exist_ok=True)
    configure_sqlite(os.path.join(config.data, "temp"))
    sys.setswitchinterval(SWITCH_INTERVAL_SECS)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(FILES_WANTED, hard), hard))


async def _run(process: Process) -> None:
    loop, config, log = asyncio.get_running_loop(), process.config, process.log
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, partial(_told, process, stopping))
    clock, rng = SystemClock(), random.Random(int.from_bytes(os.urandom(16), "big"))
    try:
        blobs = await open_blobs(config, clock, rng)
        # A store that cannot tell what it holds is opened anew, and all that stands on it begins anew with it.
        store = open_store(config, clock.monotonic, clock.sleep, on_broken=partial(_replace, log))
        await probe(blobs, f"probe/{rng.getrandbits(128):032x}")
    except (UnfitStoreError, PlacementError, BlobError, OSError, ValueError) as error:
        log.error("node.cannot-start", error=str(error))
        process.status = EXIT_HOPELESS if isinstance(error, UnfitStoreError | ValueError) else 1
        return
    telemetry, workers = Telemetry(), ThreadWorkers(loop)
    disk, _temp = SystemDisk(), TempVfs(TEMP_VFS, "", TEMP_FACTOR * (config.object_db_max_mb << 20))
    disk.vfs = TEMP_VFS
    node = Node(
        Seams(
            loop=loop,
            config=config,
            registry=process.registry,
            clock=clock,
            disk=disk,
            rng=rng,
            workers=workers,
            blobs=blobs,
            store=store,
            telemetry=telemetry,
            log=log,
            failpoints=process.failpoints,
            heartbeat=HeartbeatThread,
            replace_process=partial(_replace, log),
            http_address=config.advertise or config.listen,
        )
    )
    metrics = partial(exposition, node_registry(telemetry))
    app = App(node, log, metrics, body_bytes_max=config.body_max_mb << 20, deadline_secs=config.call_deadline_secs)
    lag = loop.create_task(watch_loop(telemetry, clock))
    try:
        await node.start()
        server = await serve(app, config.listen, clock, Limits(body_bytes_max=config.body_max_mb << 20))
    except (OSError, PlacementError) as error:
        log.error("node.cannot-start", error=str(error))
        process.status = 1
        return
    log.info("node.serving", node=node.node_id, http=f"{server.address[0]}:{server.address[1]}", data=config.data)
    await stopping.wait()
    await _stop(process, node, server)
    lag.cancel()
    workers.close()
    await blobs.close()
    await store.close()


async def _stop(process: Process, node: Node, server: HttpServer) -> None:
    """In the order of PROTOCOLS section 3: refuse new work, let answers leave, flush and release, deregister."""
    node.leaving()
    await server.stop(STOP_GRACE_SECS)
    process.failpoints.hit("stop.before-leave")
    await node.stop()
    process.log.info("node.stopped", node=node.node_id)


def _told(process: Process, stopping: asyncio.Event) -> None:
    if stopping.is_set():
        os._exit(1)
    stopping.set()


def _replace(log: Any, why: str) -> None:
    """The supervisor starts another process; what this one holds cannot be freed otherwise."""
    log.error("node.replace", why=why)
    os._exit(EXIT_REPLACE)


async def open_blobs(config: Config, clock: SystemClock, rng: random.Random) -> Blobs:
    """The blob store the settings name. `domicile doctor` opens it the same way. Sends nothing yet."""
    kind, _, where = config.blobs.partition(":")
    if kind == "file":
        return FileBlobs(where or os.path.join(config.data, "blobs"), clock)
    from domicile.node.blobs.retries import Retries
    from domicile.node.blobs.s3 import S3Blobs, S3Config

    bucket, _, prefix = where.removeprefix("//").partition("/")
    s3 = S3Config(
        bucket=bucket,
        prefix=f"{prefix.rstrip('/')}/" if prefix else "",
        endpoint=config.blobs_endpoint or None,
        access_key=config.blobs_access_key_id or None,
        secret_key=config.blobs_secret_access_key or None,
    )
    return await S3Blobs.open(s3, Retries(clock, rng.random))


def die_with_parent() -> None:
    """Ask the kernel to end this process when its supervisor does."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    main()
