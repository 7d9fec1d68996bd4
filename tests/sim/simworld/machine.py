"""One machine of a cluster: its disk, its clock, its process while it runs, and its ways to the stores."""

from __future__ import annotations

import asyncio
import random
import traceback
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from domicile.errors import DomicileError
from domicile.node.values import Front
from simworld.client import ConnectionLost
from simworld.clock import SimClock
from simworld.disk import SimDisk
from simworld.loop import SimFuture
from simworld.network import Nic
from simworld.process import Process
from simworld.store import Session
from simworld.threads import SimWorkers
from simworld.vfs import Mount
from simworld.weather import Weather
from simworld.world import NodeHandle, give

if TYPE_CHECKING:
    from simworld.cluster import ClusterWorld

BOOTS_APART_SECS = 100_000.0


class Machine:
    """`node` is set while a node is up on it. `settled_at`: since when nothing is wrong with it."""

    def __init__(self, world: ClusterWorld, name: str) -> None:
        self.world, self.name, self.loop = world, name, world.loop
        rng = self.rng("machine")
        offset = rng.random() * BOOTS_APART_SECS
        skew_ms = rng.randint(-5000, 5000) - round(offset * 1000)
        self.clock = SimClock(self.loop, skew_ms=skew_ms, offset_secs=1000.0 + offset)
        self.disk = SimDisk(self.rng("disk"))
        self.mount = Mount(self.disk, self.rng("sqlite"), lambda: self.clock.wall_ms() / 1000)
        self.workers = SimWorkers(self.loop, self.rng("workers"), self.disk)
        self.nic = Nic(world.wires, name)
        self.store_weather = Weather(self.loop, self.rng("store"))
        self.blobs_weather = Weather(self.loop, self.rng("blobs"))
        self.process: Process | None = None
        self.node: NodeHandle | None = None
        self.node_id = ""
        self.starts = 0
        self.wanted = True
        self.settled_at = 0.0
        self._asked: dict[SimFuture, None] = {}
        self._net = self.rng("net")

    def rng(self, what: str) -> random.Random:
        return self.world.rng(f"{self.name}/{what}")

    def note(self, text: str) -> None:
        self.world.note(f"{self.name}: {text}")

    def session(self) -> Session:
        """This machine's way to the placement store."""
        return Session(self.world.store, self.store_weather)

    def start(self) -> None:
        """Start the node's process."""
        self.starts += 1
        self.world.wires.powered_off.discard(self.name)
        self.process = Process(self.loop, f"{self.name}-{self.starts}")
        self.disk.make_dir("/data")
        self.process.spawn(self._boot(self.process))

    def crash(self, *, power: bool = False, down_secs: float = 0.3, deregister_secs: float | None = None) -> None:
        """The process is gone now, or the machine with it. `deregister_secs`: when a supervisor says so."""
        if self.process is None:
            return
        self.note("power" if power else "kill")
        self.process.kill()
        self.process = self.node = None
        self.settled_at = float("inf")
        self.disk.crash(power=power)
        self.world.wires.died(self.name, power=power)
        asked, self._asked = self._asked, {}
        for answer in asked:
            self.loop.in_world(self.loop.call_later, self._latency(), give, answer, ConnectionLost("reset"))
        if deregister_secs is not None and self.node_id:
            self.loop.in_world(self.loop.call_later, deregister_secs, self.world.deregister, self, self.node_id)
        self.loop.in_world(self.loop.call_later, down_secs, self.start_again)

    def fell(self, process: Process) -> None:
        """The process ended by itself, or asked to be replaced: its supervisor starts another."""
        if self.process is process:
            self.crash(deregister_secs=0.01)

    def replace(self, process: Process, why: str) -> None:
        self.note(f"replaced: {why}")
        self.world.internal.append(f"the process asked to be replaced: {why}")
        self.loop.in_world(self.loop.call_soon, self.fell, process)

    def start_again(self) -> None:
        if self.process is None and self.wanted:
            self.start()

    def troubled(self, secs: float) -> None:
        """Something is wrong with it for a while."""
        self.settled_at = max(self.settled_at, self.loop.time() + secs)

    async def ask(self, make: Callable[[Front], Awaitable[Any]]) -> SimFuture | None:
        """Send a request to the node; None when nobody listens."""
        await asyncio.sleep(self._latency())
        process, node = self.process, self.node
        if process is None or node is None:
            return None
        answer = self.loop.create_future()
        self._asked[answer] = None
        process.spawn(self._serve(make, node.front, answer))
        return answer

    def end(self) -> None:
        self.wanted = False
        if self.process is not None:
            self.process.alive = False
        self.disk.crash(power=False)
        self.process = self.node = None

    async def _boot(self, process: Process) -> None:
        try:
            node = await self.world.boot(self)
        except Exception as error:  # noqa: BLE001 - a node that cannot start exits; its supervisor tries again
            self.note(f"start failed: {error!r}")
            self.loop.in_world(self.loop.call_soon, self.fell, process)
            return
        if process.alive:
            self.node = node
            self.settled_at = self.loop.time()
            self.note("up")

    async def _serve(self, make: Callable[[Front], Awaitable[Any]], front: Front, answer: SimFuture) -> None:
        result: object
        try:
            result = await make(front)
        except DomicileError as error:
            result = error
        except Exception as error:  # noqa: BLE001 - HTTP answers `internal`, whose outcome is unknown
            self.world.internal.append("".join(traceback.format_exception(error)[-8:]))
            self.note(f"internal error: {error!r}")
            result = DomicileError(repr(error))
        self.loop.in_world(self.loop.call_later, self._latency(), self._answer, answer, result)

    def _answer(self, answer: SimFuture, result: object) -> None:
        self._asked.pop(answer, None)
        give(answer, result)

    def _latency(self) -> float:
        return 0.0005 + self._net.expovariate(1.0) * 0.001
