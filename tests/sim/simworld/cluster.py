"""One seeded run of a cluster: machines that share the two stores and are neighbours, and the judgement at the end.

What one node is judged by, and beside it the **incidents**: a takeover may say that it lacked a read quorum only where
one really was out of reach, and only such an object may miss what was answered.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from domicile.node.values import Front
from domicile.placement.followed import decode
from domicile.placement.incidents import IncidentRow
from domicile.placement.keys import Keys
from domicile.placement.records import DepartureRow, Epoch, Held, LeaseRow, ObjectKey, encode
from domicile.placement.store import Delete, Event, Put
from simworld.checker import Violation, check
from simworld.client import NotReached
from simworld.cluster_plan import ClusterPlan, Fault, Kind, draw
from simworld.disk import SimDisk
from simworld.machine import Machine
from simworld.network import LinkOdds, Wires
from simworld.weather import CALM
from simworld.world import NodeHandle, Options, World

T = TypeVar("T")

QUIET_SECS = 25.0
LOSSES = ("lost", "taken-back", "stale", "forked", "not-linearizable", "lives-mixed", "alarm-lost", "miscounted")
BootNode = Callable[[Machine], Awaitable[NodeHandle]]


@dataclass(frozen=True)
class Incident:
    """An incident row, when it was written, and whether the members asked had all been well for long."""

    object_id: str
    epoch: Epoch
    at: float
    row: IncidentRow
    excused: bool


class ClusterWorld(World):
    """Machines named m0, m1, …; `boot_node` starts the node of one."""

    plan: ClusterPlan

    def __init__(self, seed: int, options: Options, boot_node: BootNode, keys: Keys) -> None:
        super().__init__(seed, options)
        self.boot = boot_node
        self.keys = keys
        self.shape = self.plan.shape
        self.wires = Wires(self.loop, self.rng("wires"))
        self.machines = [Machine(self, f"m{n}") for n in range(self.shape.machines)]
        self.copies: dict[str, Machine] = {}
        self.incidents: list[Incident] = []
        self.cut_at = float("-inf")
        self._route = self.rng("route")
        self.store.on_event = self._stored

    def start(self) -> None:
        self.wires.odds = self.plan.links
        for machine in self.machines:
            machine.store_weather.odds, machine.blobs_weather.odds = self.plan.store, self.plan.blobs
            machine.start()

    async def ask(self, make: Callable[[Front], Awaitable[T]]) -> T:
        """Send a request to some node."""
        answer = await self._route.choice(self.machines).ask(make)
        if answer is None:
            raise NotReached
        result: T = await answer
        return result

    def deregister(self, machine: Machine, node_id: str) -> None:
        """A supervisor's word: the node is dead, its row goes."""
        row = self.keys.node(node_id)
        if not machine.store_weather.out() and row in self.store.rows():
            departure = DepartureRow(machine.clock.wall_ms(), "died")
            self.note(f"{machine.name}: deregistered {node_id}")
            self.store.commit([Delete(row), Put(self.keys.departure(node_id), encode(departure))])

    def home_of(self, object_id: str) -> Machine | None:
        """Where the placement store says an object lives."""
        record = self.store.rows().get(self.keys.leases + object_id)
        state = decode(record, LeaseRow).row.state if record is not None else None
        owner = state.owner if isinstance(state, Held) else ""
        return next((machine for machine in self.machines if machine.node_id == owner), None)

    # the judgement

    def _judge(self) -> list[Violation]:
        known = {ObjectKey(*parts.split("/", 2)).id: parts for parts in self.history.of_objects()}
        told = {known.get(incident.object_id, "") for incident in self.incidents}
        found = [v for v in check(self.history) if not (v.object in told and v.kind in LOSSES)]
        return found + [
            Violation("false-incident", known.get(incident.object_id, incident.object_id), f"at {incident.at:.3f}")
            for incident in self.incidents
            if not incident.excused
        ]

    def _stored(self, event: Event) -> None:
        if event.record is None or not event.key.startswith(self.keys.incidents):
            return
        object_id, epoch = self.keys.incident_of(event.key)
        row = decode(event.record, IncidentRow).row
        asker = self.home_of(object_id)
        excused = not self._reachable(row.asked, asker)
        self.incidents.append(Incident(object_id, Epoch.parse(epoch), self.loop.time(), row, excused))

    def _reachable(self, asked: tuple[str, ...], asker: Machine | None) -> bool:
        """Whether every member was there for the asker, and had been for a good while."""
        since = self.loop.time() - QUIET_SECS
        machines = [self.copies.get(copy) for copy in asked]
        calm = self.cut_at < since and not self.wires.cuts and not self.wires.odds.slow and not self.wires.odds.reset
        return calm and all(
            machine is not None and machine.node is not None and machine.settled_at < since
            for machine in [*machines, asker]
        )

    def _disks(self) -> list[SimDisk]:
        return [machine.disk for machine in self.machines]

    def _draw(self) -> ClusterPlan:
        return draw(self.seed, self.options.secs)

    # what goes wrong

    def _strike(self, fault: Fault) -> None:  # type: ignore[override]
        machine = self.machines[fault.machine]
        if fault.kind.endswith("-home") or fault.kind == "row-lost":
            machine = self._some_home(fault) or machine
        other = self.machines[fault.other]
        self.note(f"{fault.kind} {machine.name} {fault.secs:.1f}")
        _STRIKES[fault.kind](self, fault, machine, other)

    def _some_home(self, fault: Fault) -> Machine | None:
        names = [ObjectKey("acme", "Ledger", f"object-{n}").id for n in range(self.options.objects)]
        homes = [home for home in map(self.home_of, names) if home is not None]
        return homes[fault.op % len(homes)] if homes else None

    def die(self, fault: Fault, machine: Machine, *, power: bool = False) -> None:
        """Its process, or all of it, now."""
        if machine.process is not None and machine.process.stopped:
            machine.process.resume()
        machine.crash(power=power, down_secs=fault.down_secs, deregister_secs=0.05 if fault.told else None)

    def die_at_op(self, fault: Fault, machine: Machine, *, power: bool) -> None:
        last = machine.disk.ops + fault.op

        def strike(ops: int) -> None:
            if ops >= last:
                machine.disk.on_op = None
                self.loop.in_world(lambda: self.die(fault, machine, power=power))

        machine.disk.on_op = strike

    def wipe(self, fault: Fault, machine: Machine, *roots: str) -> None:
        """It falls, and loses a directory while it is down."""
        self.die(fault, machine)
        for root in roots:
            machine.disk.wipe(root)

    def pause(self, fault: Fault, machine: Machine) -> None:
        if (process := machine.process) is not None:
            process.stop()
            machine.troubled(fault.secs)
            self.loop.call_later(fault.secs, self._go_on, process)

    def suspend(self, fault: Fault, machine: Machine) -> None:
        machine.troubled(fault.secs)
        machine.clock.jump(fault.secs)

    def leave(self, fault: Fault, machine: Machine) -> None:
        process, node = machine.process, machine.node
        if process is not None and node is not None:
            machine.troubled(5.0)
            process.spawn(self._left(machine, node, fault))

    async def _left(self, machine: Machine, node: NodeHandle, fault: Fault) -> None:
        process = machine.process
        await node.stop()

        def gone() -> None:
            if machine.process is process:
                machine.crash(down_secs=fault.down_secs, deregister_secs=0.05 if fault.told else None)

        self.loop.in_world(self.loop.call_soon, gone)

    def cut(self, fault: Fault, pairs: list[tuple[str, str]]) -> None:
        for pair in pairs:
            self.wires.cut(*pair)
        self.loop.call_later(fault.secs, self._heal, pairs)

    def _heal(self, pairs: list[tuple[str, str]]) -> None:
        for pair in pairs:
            self.wires.heal(*pair)
        self.cut_at = self.loop.time()

    def outage(self, fault: Fault, *weathers: Any) -> None:
        for weather in weathers:
            weather.outages.append((fault.at, fault.at + fault.secs))

    def slow_disk(self, fault: Fault, machine: Machine) -> None:
        machine.disk.faults.slow_secs = 0.2
        machine.troubled(fault.secs)
        self.loop.call_later(fault.secs, self._disk_well_again, machine)

    def _disk_well_again(self, machine: Machine) -> None:
        machine.disk.faults.slow_secs = 0.0

    def _calm(self) -> None:
        super()._calm()
        self.wires.odds = LinkOdds()
        self.wires.cuts.clear()
        self.cut_at = self.loop.time()
        for machine in self.machines:
            for weather in (machine.store_weather, machine.blobs_weather):
                weather.odds = CALM
                weather.outages.clear()
            machine.disk.on_op = None
            machine.disk.faults.slow_secs = 0.0
            if machine.process is not None and machine.process.stopped:
                machine.process.resume()
            machine.start_again()

    def _end(self) -> None:
        for machine in self.machines:
            machine.end()
        super()._end()
        for machine in self.machines:
            machine.mount.close()


Strike = Callable[[ClusterWorld, Fault, Machine, Machine], None]


def _alone(world: ClusterWorld, fault: Fault, machine: Machine) -> None:
    others = [other for other in world.machines if other is not machine]
    world.cut(fault, [pair for o in others for pair in ((machine.name, o.name), (o.name, machine.name))])


_STRIKES: dict[Kind, Strike] = {
    "kill": lambda w, f, m, o: w.die(f, m),
    "kill-home": lambda w, f, m, o: w.die(f, m),
    "power-home": lambda w, f, m, o: w.die(f, m, power=True),
    "power": lambda w, f, m, o: w.die(f, m, power=True),
    "kill-at-op": lambda w, f, m, o: w.die_at_op(f, m, power=False),
    "power-at-op": lambda w, f, m, o: w.die_at_op(f, m, power=True),
    "wipe-replicas": lambda w, f, m, o: w.wipe(f, m, "/data/replicas"),
    "wipe-objects": lambda w, f, m, o: w.wipe(f, m, "/data/objects", "/data/cache"),
    "wipe-all": lambda w, f, m, o: w.wipe(f, m, "/data"),
    "stop": lambda w, f, m, o: w.pause(f, m),
    "stop-home": lambda w, f, m, o: w.pause(f, m),
    "suspend": lambda w, f, m, o: w.suspend(f, m),
    "leave": lambda w, f, m, o: w.leave(f, m),
    "cut": lambda w, f, m, o: w.cut(f, [(m.name, o.name), (o.name, m.name)]),
    "cut-one-way": lambda w, f, m, o: w.cut(f, [(m.name, o.name)]),
    "alone": lambda w, f, m, o: _alone(w, f, m),
    "store-cut": lambda w, f, m, o: w.outage(f, m.store_weather),
    "blobs-cut": lambda w, f, m, o: w.outage(f, m.blobs_weather),
    "store-out": lambda w, f, m, o: w.outage(f, *(each.store_weather for each in w.machines)),
    "blobs-out": lambda w, f, m, o: w.outage(f, *(each.blobs_weather for each in w.machines)),
    "compact": lambda w, f, m, o: w.store.compact(),
    "disk-slow": lambda w, f, m, o: w.slow_disk(f, m),
    "row-lost": lambda w, f, m, o: w.deregister(m, m.node_id),
}
