"""One seeded run: a node in the world, clients that use it, faults that come as planned, and the judgement at the end.

First safety under faults; then, from `calm_at` on, nothing goes wrong any more and every client's next call must be
answered within bounded virtual time.
"""

from __future__ import annotations

import asyncio
import gc
import random
import traceback
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar
from unittest.mock import patch

from domicile.errors import DomicileError
from domicile.node import manifest
from domicile.node.values import Front
from domicile.placement.records import ObjectKey
from simworld.blobs import SimBlobs
from simworld.checker import Violation, check
from simworld.client import PROJECT, Client, ConnectionLost, Habits, NotReached
from simworld.clock import SimClock
from simworld.disk import SimDisk
from simworld.history import History
from simworld.loop import SimFuture, SimLoop, SimulationError
from simworld.plan import Fault, Plan, draw
from simworld.process import Process
from simworld.store import SimStore
from simworld.threads import SimWorkers
from simworld.vfs import Mount
from simworld.weather import CALM

T = TypeVar("T")

START_AGAIN_SECS = 0.3
SETTLE_SECS = 5.0
OWED_SECS = 60.0
ALARMS_OWED_SECS = 150.0
CLIENTS = 3
BURST = 8


class NodeHandle(Protocol):
    """A started node."""

    @property
    def front(self) -> Front: ...

    async def stop(self) -> None:
        """End in good order, as on SIGTERM."""
        ...


StartNode = Callable[["World"], Awaitable[NodeHandle]]
Judge = Callable[["World"], list[Violation]]


@dataclass
class Options:
    """What a run is made of."""

    start_node: StartNode
    judges: tuple[Judge, ...] = ()
    secs: float | None = None
    objects: int = 2
    wishes: int = 30
    traced: bool = False
    plan: Plan | None = None
    habits: Callable[[random.Random], Habits] = lambda rng: Habits()
    world: Callable[[int, Options], World] | None = None


@dataclass
class Report:
    """What came of a run."""

    seed: int
    plan: Plan
    violations: list[Violation]
    history: History
    digest: str
    answered: int
    steps: int
    notes: list[str] = field(default_factory=list)


class World:
    """Everything outside the node, and the node while it runs. Build, `run`, read the report."""

    def __init__(self, seed: int, options: Options) -> None:
        self.seed = seed
        self.options = options
        self.plan = options.plan or self._draw()
        self.loop = SimLoop(seed, traced=options.traced)
        self.clock = SimClock(self.loop, skew_ms=self.rng("skew").randint(-5000, 5000))
        self.disk = SimDisk(self.rng("disk"))
        self.mount = Mount(self.disk, self.rng("sqlite"), lambda: self.clock.wall_ms() / 1000)
        self.blobs = SimBlobs(self.loop, self.rng("blobs"))
        self.store = SimStore(self.loop, self.rng("store"))
        self.workers = SimWorkers(self.loop, self.rng("workers"), self.disk)
        self.history = History()
        self.process: Process | None = None
        self.node: NodeHandle | None = None
        self.starts = 0
        self.notes: list[str] = []
        self.internal: list[str] = []
        self._net = self.rng("net")
        self._asked: dict[SimFuture, None] = {}
        self._want_node = True

    def _draw(self) -> Plan:
        return draw(self.seed, self.options.secs)

    def _disks(self) -> list[SimDisk]:
        return [self.disk]

    def rng(self, what: str) -> random.Random:
        """A stream of randomness of its own for each use, so that one more draw here changes nothing there."""
        return random.Random(f"{what}/{self.seed}")

    def run(self) -> Report:
        """The whole run. What ends it early (a deadlock, a stuck client) is a violation like any other."""
        violations: list[Violation] = []
        try:
            self.loop.secs_max = self.plan.calm_at + SETTLE_SECS + 1000
            violations += self.loop.run(self._main())
        except SimulationError as error:
            violations.append(Violation("stuck", "world", str(error)))
        finally:
            violations += self._judge()
            for judge in self.options.judges:
                violations += judge(self)
            complaints = [*self.loop.complaints, *self.loop.unheard()]
            violations += [Violation("unhandled", "node", complaint) for complaint in complaints]
            violations += [Violation("internal-error", "node", error) for error in self.internal[:3]]
            violations += [Violation("locks-dropped", "disk", sin) for disk in self._disks() for sin in disk.sins[:3]]
            digest = self.loop.digest() if self.options.traced else ""
            self._end()
        answered = self.history.answered()
        return Report(
            self.seed, self.plan, violations, self.history, digest, answered, self.loop.steps, list(self.notes)
        )

    def _judge(self) -> list[Violation]:
        return check(self.history)

    # the node

    def start(self) -> None:
        """Start the node's process; it is up when `node` is set."""
        self.starts += 1
        self.process = Process(self.loop, f"node-{self.starts}")
        self.disk.make_dir("/data")
        self.process.spawn(self._boot(self.process))

    def crash(self, *, power: bool = False) -> None:
        """The process is gone now, or the machine with it; it is started again after a moment."""
        if self.process is None:
            return
        self.note("power" if power else "kill")
        self.process.kill()
        self.process = self.node = None
        self.disk.crash(power=power)
        asked, self._asked = self._asked, {}
        for answer in asked:
            self.loop.in_world(self.loop.call_later, self._latency(), give, answer, ConnectionLost("reset"))
        self.loop.in_world(self.loop.call_later, START_AGAIN_SECS, self._start_again)

    async def ask(self, make: Callable[[Front], Awaitable[T]]) -> T:
        """Send a request to the node and wait for its answer; a lost client stops nothing that began."""
        await asyncio.sleep(self._latency())
        process, node = self.process, self.node
        if process is None or node is None:
            raise NotReached
        answer = self.loop.create_future()
        self._asked[answer] = None
        process.spawn(self._serve(make, node.front, answer))
        result: T = await answer
        return result

    def note(self, text: str) -> None:
        """One line of the run's log."""
        self.notes.append(f"{self.loop.time():.4f} {text}")

    async def _boot(self, process: Process) -> None:
        try:
            node = await self.options.start_node(self)
        except Exception as error:  # noqa: BLE001 - a node that cannot start exits; its supervisor tries again
            self.note(f"start failed: {error!r}")
            self.loop.in_world(self.loop.call_soon, self._fell, process)
            return
        if process.alive:
            self.node = node
            self.note("up")

    def replace(self, process: Process, why: str) -> None:
        """The process asks for its own end."""
        self.note(f"replaced: {why}")
        self.internal.append(f"the process asked to be replaced: {why}")
        self.loop.in_world(self.loop.call_soon, self._fell, process)

    def _fell(self, process: Process) -> None:
        if self.process is process:
            self.crash()

    def _start_again(self) -> None:
        if self.process is None and self._want_node:
            self.start()

    async def _serve(self, make: Callable[[Front], Awaitable[Any]], front: Front, answer: SimFuture) -> None:
        result: object
        try:
            result = await make(front)
        except DomicileError as error:
            result = error
        except Exception as error:  # noqa: BLE001 - HTTP answers `internal`, whose outcome is unknown
            self.internal.append("".join(traceback.format_exception(error)[-8:]))
            self.note(f"internal error: {error!r}")
            result = DomicileError(repr(error))
        self.loop.in_world(self.loop.call_later, self._latency(), self._answer, answer, result)

    def _answer(self, answer: SimFuture, result: object) -> None:
        self._asked.pop(answer, None)
        give(answer, result)

    def _latency(self) -> float:
        return 0.0005 + self._net.expovariate(1.0) * 0.001

    # the run

    async def _main(self) -> list[Violation]:
        self.blobs.weather.odds, self.store.weather.odds = self.plan.blobs, self.plan.store
        for fault in self.plan.faults:
            self.loop.call_later(fault.at, self._strike, fault)
        self.start()
        keys = [ObjectKey(PROJECT, "Ledger", f"object-{n}") for n in range(self.options.objects)]
        names = [f"client-{n}" for n in range(CLIENTS)]
        clients = [Client(name, self, self.loop, self.history, self.rng(name)) for name in names]
        habits = self.options.habits(self.rng("habits"))
        for client in clients:
            client.habits = replace(habits)
        busy = [self.loop.create_task(self._use(client, keys)) for client in clients]
        await asyncio.sleep(self.plan.calm_at)
        self._calm()
        await asyncio.sleep(SETTLE_SECS)
        await self._all(busy)
        return await self._progress(clients, keys)

    async def _use(self, client: Client, keys: list[ObjectKey]) -> None:
        rng = self.rng(f"use/{client.name}")
        steady = client.habits.think_secs is not None
        client.habits.think_secs = client.habits.think_secs or rng.choice([0.01, 0.1, 0.3, 1.5])
        for n in range(self.options.wishes):
            await client.think()
            if not steady and n % BURST == BURST - 1 and client.habits.think_secs < 1.0:
                await asyncio.sleep(rng.random() * self.plan.calm_at / 3)
            if self.loop.time() > self.plan.calm_at:
                return
            key = rng.choice(keys)
            if client.habits.batch and rng.random() < client.habits.batch:
                together = [rng.choice(keys) for _ in range(rng.randint(2, 4))]
                wishes = [
                    (key, client.wish(key, rng.choice(["append", "append", "increment", "read"]))) for key in together
                ]
                await client.perform_together(wishes)
            elif len(keys) > 1 and client.habits.odd and rng.random() < client.habits.odd / 3:
                via = rng.choice([other for other in keys if other != key])
                await client.perform(key, client.relayed(key, via))
            else:
                await client.perform(key, client.wish(key))

    async def _progress(self, clients: list[Client], keys: list[ObjectKey]) -> list[Violation]:
        """Nothing goes wrong any more: what is asked now must be answered."""
        stuck = []
        for key in keys:
            for client in clients:
                for op in ("append", "read"):
                    wish = client.wish(key, op)
                    work = self.loop.create_task(client.perform(key, wish, OWED_SECS))
                    await asyncio.wait([work], timeout=OWED_SECS + 30)
                    if wish.outcome not in ("answered",):
                        codes = [attempt.code or attempt.outcome for attempt in wish.attempts][-3:]
                        stuck.append(Violation("no-progress", str(key), f"{op} of {client.name}: {codes}"))
        for key in keys:
            stuck += await self._alarms(clients[0], key)
        if stuck:
            self.note(f"stuck:\n{self.loop.waiting()}")
        return stuck

    async def _alarms(self, client: Client, key: ObjectKey) -> list[Violation]:
        """Every alarm whose setting was answered comes, once nothing goes wrong."""
        armed = [op for op in self.history.operations if op.op == "arm" and op.object == str(key)]
        owed = {op.item for op in armed if op.outcome == "answered"}
        until = self.loop.time() + ALARMS_OWED_SECS
        while owed and self.history.steady(str(key)):
            wish = client.wish(key, "read")
            await client.perform(key, wish, OWED_SECS)
            owed -= set(wish.shown.items if wish.shown else ())
            if owed and self.loop.time() > until:
                return [Violation("alarm-lost", str(key), f"{min(owed)} was armed, and did not come")]
            await asyncio.sleep(5.0)
        return []

    async def _all(self, tasks: list[Any]) -> None:
        for task in tasks:
            await task

    def _strike(self, fault: Fault) -> None:
        if fault.kind in ("kill", "power"):
            self.crash(power=fault.kind == "power")
        elif fault.kind in ("kill-at-op", "power-at-op"):
            self._crash_at_op(self.disk.ops + fault.op, power=fault.kind == "power-at-op")
        elif fault.kind == "stop" and (process := self.process) is not None:
            self.note(f"stop for {fault.secs:.1f}")
            process.stop()
            self.loop.call_later(fault.secs, self._go_on, process)
        elif fault.kind == "suspend":
            self.note(f"suspend for {fault.secs:.1f}")
            self.clock.jump(fault.secs)
        elif fault.kind == "restart":
            self._restart()
        elif fault.kind == "evict":
            self.note("evicted")
            self.store.drop_grants()
        elif fault.kind == "compact":
            self.store.compact()
        elif fault.kind == "disk-ill":
            self.disk.faults.errors = 0.03
            self.loop.call_later(fault.secs, self._disk_well)
        elif fault.kind == "blobs-out":
            self.blobs.weather.outages.append((fault.at, fault.at + fault.secs))
        elif fault.kind == "store-out":
            self.store.weather.outages.append((fault.at, fault.at + fault.secs))
        elif fault.kind == "disk-full":
            self.disk.faults.capacity = self.disk.used
            self.loop.call_later(fault.secs, self._disk_well)
        elif fault.kind == "disk-slow":
            self.disk.faults.slow_secs = 0.05
            self.loop.call_later(fault.secs, self._disk_well)

    def _restart(self) -> None:
        """SIGTERM, and the node is started again."""
        process, node = self.process, self.node
        if process is not None and node is not None:
            self.note("term")
            process.spawn(self._leave(process, node))

    async def _leave(self, process: Process, node: NodeHandle) -> None:
        await node.stop()
        self.loop.in_world(self.loop.call_soon, self._fell, process)

    def _crash_at_op(self, op: int, *, power: bool) -> None:
        def strike(ops: int) -> None:
            if ops >= op:
                self.disk.on_op = None
                self.loop.in_world(self._crash_now, power)

        self.disk.on_op = strike

    def _crash_now(self, power: bool) -> None:
        self.crash(power=power)

    def _go_on(self, process: Process) -> None:
        if process.alive:
            process.resume()

    def _disk_well(self) -> None:
        faults = self.disk.faults
        faults.capacity, faults.slow_secs, faults.errors = None, 0.0, 0.0

    def _calm(self) -> None:
        self.note("calm")
        self.blobs.weather.odds = self.store.weather.odds = CALM
        self.blobs.weather.outages.clear()
        self.store.weather.outages.clear()
        self.disk.on_op = None
        self._disk_well()
        if self.process is not None and self.process.stopped:
            self.process.resume()

    def _end(self) -> None:
        self._want_node = False
        if self.process is not None:
            self.process.alive = False
        self.disk.crash(power=False)
        self.process = self.node = None
        self.loop.end()
        self.mount.close()


def run_seed(seed: int, options: Options) -> Report:
    """One run from its seed."""
    collecting = gc.isenabled()
    gc.disable()  # finalizers run when references go, not when an unrelated allocation triggers a collection
    try:
        with patch.object(manifest, "TAIL_LOG_MAX", _tail_log_max(seed)):
            return (options.world or World)(seed, options).run()
    finally:
        gc.collect(1)  # the world goes at once: it is young, and what of the last one was still held is not much older
        if collecting:
            gc.enable()


def _tail_log_max(seed: int) -> int:
    """A quarter of the runs has long tails; in the others a flight is more often two puts, and more can go wrong."""
    return manifest.TAIL_LOG_MAX if seed % 4 == 0 else manifest.TAIL_BYTES_MAX


def in_world(seed: int, main: Callable[[World], Coroutine[Any, Any, T]], start_node: StartNode) -> T:
    """A hand-written scenario in a world without a plan: `main` drives it."""
    world = World(seed, Options(start_node, plan=Plan((), CALM, CALM, 0.0)))
    try:
        return world.loop.run(main(world))
    finally:
        world._end()


def give(answer: SimFuture, result: object) -> None:
    if answer.done():
        return
    if isinstance(result, Exception):
        answer.set_exception(result)
    else:
        answer.set_result(result)
