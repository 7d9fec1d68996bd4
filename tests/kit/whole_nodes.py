"""Several whole nodes in the test's own process: one placement store, one bucket, real sockets between them."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import waiting

from domicile import Object
from domicile.node.blobs.file import FileBlobs
from domicile.node.clock import SystemClock
from domicile.node.config import Config
from domicile.node.disk import SystemDisk
from domicile.node.failpoints import Failpoints
from domicile.node.neighbourhood import Neighbourhood
from domicile.node.node import Node
from domicile.node.seams import Seams
from domicile.node.telemetry import Telemetry, logger
from domicile.node.values import Call
from domicile.node.wire.network import TcpNetwork
from domicile.node.workers import ThreadWorkers
from domicile.placement.embedded import EmbeddedStore
from domicile.placement.heartbeat import HeartbeatThread
from domicile.placement.keys import ControlKeys
from domicile.placement.records import ObjectKey, RegionRow
from domicile.placement.regions import Regions
from domicile.placement.store import Store
from domicile.registry import from_classes
from domicile.schedule import CronSpec

SECRET = b"a secret of this test only"


class Watch(SystemClock):
    """The system's clock, whose wall time a test may put forward."""

    def __init__(self) -> None:
        self.ahead_ms = 0

    def wall_ms(self) -> int:
        return super().wall_ms() + self.ahead_ms


class One:
    """One node of the cluster, over its own directory."""

    def __init__(self, cluster: NodeGroup, name: str) -> None:
        self.cluster = cluster
        self.name = name
        self.root = cluster.root / name
        self.log = io.StringIO()
        self.node: Node
        self.hood: Neighbourhood

    async def start(self) -> None:
        loop, clock = asyncio.get_running_loop(), self.cluster.watch
        own = {"data": str(self.root), "projects": "first-use", "peer_listen": "127.0.0.1:0"}
        config = Config(**{**own, **self.cluster.settings})
        self.root.mkdir(exist_ok=True)
        self.workers = ThreadWorkers(loop)
        log = logger("json", "info", self.log)
        rng = random.Random()
        self.hood = Neighbourhood(
            loop=loop,
            config=config,
            clock=clock,
            disk=SystemDisk(),
            rng=rng,
            workers=self.workers,
            log=log,
            network=TcpNetwork(loop),
            secret=SECRET,
        )
        await self.hood.open()
        self.node = Node(
            Seams(
                loop=loop,
                config=config,
                registry=from_classes(*self.cluster.classes, crons=self.cluster.crons),
                clock=clock,
                disk=SystemDisk(),
                rng=rng,
                workers=self.workers,
                blobs=self.cluster.blobs,
                store=self.cluster.store,
                control=self.cluster.control,
                telemetry=Telemetry(),
                log=log,
                failpoints=Failpoints(),
                heartbeat=HeartbeatThread,
                replace_process=lambda why: None,
                http_address=self.name,
                peers=self.hood.peers,
                replicas=self.hood.replicas,
                peer_address=lambda: self.hood.address,
            )
        )
        await self.hood.listen(self.node)
        await self.node.start()

    async def stop(self) -> None:
        await self.node.stop()
        await self.hood.close()
        self.workers.close()

    async def crash(self) -> None:
        """As if the machine went: nothing is flushed or released; its row goes with its supervisor's word."""
        await self.hood.close()
        self.node._residents.leaving = True
        for residency in list(self.node._residents._awake.values()):
            residency.end(RuntimeError("crash"))
            await residency.over
        await self.node._heartbeat.leave("died")
        await self.node._cancel_all()
        self.workers.close()
        self.cluster.nodes.remove(self)

    async def call(
        self, cls: str, name: str, method: str, *args: Any, secs: float = 30.0, key: str | None = None
    ) -> Any:
        body = json.dumps(list(args)).encode()
        call = Call(ObjectKey("demo", cls, name), method, body, self.node.now() + secs, key)
        return json.loads((await self.node.call(call)).body)

    def home_of(self, cls: str, name: str) -> bool:
        residency = self.node._residents.find(ObjectKey("demo", cls, name).id)
        return residency is not None and residency.serving

    def residency(self, cls: str, name: str) -> Any:
        return self.node._residents.find(ObjectKey("demo", cls, name).id)


class NodeGroup:
    """Nodes n0, n1, … over one store and one bucket."""

    def __init__(self, root: Path, classes: tuple[type[Object], ...], settings: dict[str, Any]) -> None:
        self.root = root
        self.classes = classes
        self.settings = settings
        self.region: str = settings.get("region", "local")
        self.nodes: list[One] = []
        self.watch = Watch()
        self.store: EmbeddedStore
        self.blobs: FileBlobs
        self.crons: tuple[CronSpec, ...] = ()
        self.control: Store | None = None  # where control's keyspace is; None: in this region's own store

    async def start(self, count: int) -> None:
        clock = self.watch
        self.root.mkdir(exist_ok=True)
        self.store = EmbeddedStore(str(self.root / "placement.db"), clock.monotonic)
        self.blobs = FileBlobs(str(self.root / "blobs"), clock)
        self.nodes = [One(self, f"n{at}") for at in range(count)]
        for one in self.nodes:
            await one.start()
        await self.until(self._all_known, "every node knows every other")
        await self.open_ingress()

    async def open_ingress(self) -> None:
        """Other regions call here, at any node."""
        regions = Regions(self.control or self.store, ControlKeys("domicile"), self.watch.sleep)
        await regions.register(RegionRow(self.region, ",".join(one.hood.address for one in self.nodes)))

    async def stop(self) -> None:
        for one in self.nodes:
            with contextlib.suppress(Exception):
                await one.stop()
        await self.blobs.close()
        await self.store.close()

    async def add(self, name: str) -> One:
        """One more node, over a directory of that name; returns when every node knows it."""
        one = One(self, name)
        self.nodes.append(one)
        await one.start()
        await self.until(self._all_known, "every node knows every other")
        return one

    async def remove(self, one: One) -> None:
        """Stopped in order."""
        self.nodes.remove(one)
        await one.stop()

    def home(self, cls: str, name: str) -> One:
        return next(one for one in self.nodes if one.home_of(cls, name))

    def others(self, home: One) -> list[One]:
        return [one for one in self.nodes if one is not home]

    async def until(self, holds: Callable[[], Any], what: str) -> None:
        """Wait on the condition `what` (awaited if it is awaitable), not on time."""
        await waiting.until(holds, what)

    def _all_known(self) -> bool:
        return all(len(one.node._nodes.all()) == len(self.nodes) for one in self.nodes)
