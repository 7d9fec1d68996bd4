"""One data node: its parts, its beginning and its end (PROTOCOLS section 3). `main.py` and the simulation build it."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Coroutine
from typing import Any

from domicile.node.activation import Activation
from domicile.node.alarm_index import AlarmIndex
from domicile.node.call import CallPath
from domicile.node.chunk_cache import ChunkCache
from domicile.node.control.copy_proof import CopyProofs
from domicile.node.control.draining import Draining
from domicile.node.control.incident_desk import IncidentDesk
from domicile.node.control.moving import ClosedGates
from domicile.node.control.sweep import Sweep
from domicile.node.control.tidying import Tidying
from domicile.node.deletion import Deletion
from domicile.node.errors import Fenced
from domicile.node.front import NodeFront
from domicile.node.gauges import bind_gauges
from domicile.node.host import Host
from domicile.node.nodes import Nodes
from domicile.node.peer_handler import PeerHandler
from domicile.node.permits import Permits
from domicile.node.reads import ReplicaReads
from domicile.node.replica.idle_copies import IdleCopies
from domicile.node.residents import TICK_SECS, Residents
from domicile.node.routing.control_view import ControlView
from domicile.node.routing.crossing import Crossing
from domicile.node.routing.listings import Listings
from domicile.node.routing.repin import Repin
from domicile.node.routing.router import Router
from domicile.node.schedules import Schedules
from domicile.node.seams import Heartbeat, Seams
from domicile.node.sleepers import Sleepers
from domicile.node.suspects import Suspects
from domicile.placement.admission import Admission
from domicile.placement.alarms import Alarms
from domicile.placement.claims import Registration
from domicile.placement.directory import Directory
from domicile.placement.eviction import Evictor
from domicile.placement.gates import Gates
from domicile.placement.incidents import Incidents
from domicile.placement.keys import Keys
from domicile.placement.leases import Leases
from domicile.placement.node_registry import Membership
from domicile.placement.records import NodeRow


class Node(NodeFront):
    """Builds the parts, registers, ends in order."""

    def __init__(self, seams: Seams) -> None:
        self._seams = seams
        config = seams.config
        self._registry, self._http = seams.registry, seams.http_address
        self._keys = Keys(config.cluster, config.region)
        self._gates = Gates(seams.store, self._keys, seams.clock.sleep)
        self._control = ControlView(seams, self._gates)
        self._projects = self._control.projects
        self._nodes = Nodes(seams.store, self._keys, seams.clock.sleep)
        self._incidents = Incidents(seams.store, self._keys)
        self._host = self._make_host()
        self._sleepers = Sleepers(seams.loop, seams.clock, lambda keys: self._sweep.wake(keys))
        self._activation = self._make_activation()
        self._residents = Residents(self._host, self._activation, self._sleepers)
        self._sweep = Sweep(self._host, self._residents, lambda node_id: self._suspects.suspect(node_id))
        path = CallPath(self._residents, self._host, lambda: self.admission)
        self._evictor = Evictor(seams.store, self._keys, self._seams.timing, seams.clock)
        self._suspects = Suspects(self._host, self._evictor)
        self._homes = self._control.homes
        self._crossing = Crossing(self._homes, self._control.regions, seams.telemetry)
        self._router = self._make_router(path)
        self._draining = Draining(self._host, self._residents, self._set_state)
        self._listings = Listings(self._host, Directory(seams.store, self._keys), self._homes, self._crossing)
        self._repin = Repin(self._host, self._control, self._crossing)
        self.handler = self._make_handler(self._follow_gates())
        bind_gauges(seams.telemetry, seams.clock, self._residents, self._nodes)
        self._nodes.departed = self._departed
        self._nodes.seen = self._evictor.saw
        self._deletion = Deletion(self._host, self._residents)
        self._tasks: list[asyncio.Task[None]] = []
        self._registration: Registration | None = None
        self._registrations, self._stopping = 0, False
        self._heartbeat: Heartbeat | None = None
        self._state, self.node_id = "serving", ""
        self.admission = Admission(self._seams.timing, seams.clock.monotonic)

    # Beginning and end.

    async def start(self) -> None:
        """Register and begin to serve. Raises StoreUnavailable."""
        await self._register()
        for part in (
            self._nodes.followed.run(),
            self._gates.followed.run(),
            *self._control.parts(),
            self._sweep.run(),
            Schedules(self._host, self._registry, self._projects).run(),
            self._tick(),
            *([] if self._seams.config.temporal else [Tidying(self._host).run()]),
            *([] if self._seams.replicas is None else [IdleCopies(self._host, self._seams.replicas).run()]),
        ):
            self._spawn(part)

    def leaving(self) -> None:
        """From here on nothing wakes, and the node says that it is not ready."""
        self._stopping = True
        self._set_state("leaving")

    def _set_state(self, state: str) -> None:
        """`serving`, or `leaving`: nothing wakes here, callers are sent on, and others are told with the next beat."""
        if self._stopping and state != "leaving":
            return
        self._state = state
        self._residents.leaving = state == "leaving"
        if self._heartbeat is not None:
            self._heartbeat.hurry()

    @property
    def alone(self) -> bool:
        """Whether no other node is there to serve in this one's place."""
        return not any(row.state == "serving" for row in self._nodes.others())

    async def stop(self, why: str = "stopped") -> None:
        """SIGTERM: no new residencies, every object released clean within the flush budget, then deregistered."""
        self.leaving()
        await self._draining.leave()
        self._seams.failpoints.hit("stop.after-release")
        if self._heartbeat is not None:
            await self._heartbeat.leave(why)
        await self._cancel_all()

    async def _register(self) -> None:
        """As a new node id: a node id is one run, or one registration of it."""
        self.node_id = self._nodes.me = f"n-{self._seams.rng.getrandbits(64):016x}"
        self._seams.named(self.node_id)
        # A grant that was made for the first registration may have gone with it.
        grant = self._seams.grant if self._registrations == 0 else None
        self._registrations += 1
        membership = Membership(
            self._seams.store, self._keys, self._seams.timing, self._seams.clock, self._describe_node, self._lost, grant
        )
        self.admission = membership.admission
        self._heartbeat = self._seams.heartbeat(membership)
        self._registration = await self._heartbeat.start()

    def _lost(self) -> None:
        """From the heartbeat's thread: the node's row is gone."""
        self._seams.loop.call_soon_threadsafe(lambda: self._spawn(self._register_anew()))

    async def _register_anew(self) -> None:
        self._seams.log.error("node.lost", node=self.node_id)
        self._registration = None
        self._residents.abandon(Fenced("this node lost its row in the placement store"))
        if self._heartbeat is not None:
            await self._heartbeat.stop()
        while not self._stopping and self._registration is None:
            try:
                await self._register()
            except Exception as error:  # noqa: BLE001 - whatever the store says, the node tries again
                self._seams.log.warning("node.register", error=str(error))
                await self._seams.clock.sleep(1.0)

    async def _tick(self) -> None:
        telemetry = self._seams.telemetry
        while True:
            self._residents.tick()
            telemetry.admission_remaining_seconds.value = max(0.0, self.admission.remaining())
            await self._seams.clock.sleep(TICK_SECS)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._seams.loop.create_task(work)
        self._tasks.append(task)
        task.add_done_callback(self._report)

    def _report(self, task: asyncio.Task[None]) -> None:
        self._tasks.remove(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._seams.log.error("node.task", error=repr(error))
            self._seams.replace_process(f"a part of the node failed: {error!r}")

    def _departed(self, row: NodeRow) -> None:
        """A node's row is gone."""
        self._router.departed(row.node_id)
        if self._seams.peers is not None and row.peer:
            self._seams.peers.forget(row.peer)

    async def _cancel_all(self) -> None:
        self._sleepers.stop()
        self._suspects.stop()
        for task in list(self._tasks):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    # Parts.

    @property
    def leases(self) -> Leases:
        """The region's lease rows."""
        return self._host.leases

    def _on_incident(self, project: str) -> str:
        """The project's choice; the node's where the project is not known here."""
        row = self._projects.known(project)
        return row.on_incident if row is not None else self._seams.config.on_incident

    def _copy_id(self) -> str:
        """A node whose copies take nothing any more is no member's keeper."""
        replicas = self._seams.replicas
        return replicas.copy_id if replicas is not None and replicas.healthy else ""

    def _describe_node(self) -> NodeRow:
        return NodeRow(
            node_id=self.node_id,
            http=self._http,
            peer=self._seams.peer_address(),
            copy_id=self._copy_id(),
            weight=self._seams.config.weight,
            capacity=self._seams.config.capacity,
            zone=self._seams.config.zone,
            classes=tuple(sorted(self._seams.registry.classes)),
            state=self._state,
            load=len(self._residents),
        )

    def _make_router(self, path: CallPath) -> Router:
        seams = self._seams
        reads = ReplicaReads(self._host, seams.replicas) if seams.replicas is not None else None
        parts = (self._host, seams.registry, self._residents, path, self._suspects, self._crossing)
        return Router(*parts, reads, lambda: self.admission)

    def _make_activation(self) -> Activation:
        control, seams = self._control, self._seams
        mine = (lambda: self.admission, lambda: self._registration)
        activation = Activation(self._host, seams.registry, self._projects, control.pins, self._gates, *mine)
        control.class_changed = activation.forget_class
        activation.first_use_creates = seams.config.projects == "first-use"
        return activation

    def _follow_gates(self) -> ClosedGates:
        """What a closed gate does here."""
        closed = ClosedGates(self._host, self._gates, self._residents, lambda node_id: self._suspects.suspect(node_id))
        self._gates.followed.changed = closed.changed
        self._activation.found_closed, self._residents.woke = closed.found_closed, closed.woke
        return closed

    def _make_handler(self, closed: ClosedGates) -> PeerHandler:
        """With everything that is asked of a node by name."""
        copies = self._seams.replicas
        desk = IncidentDesk(self._host, self._residents, copies, lambda fence: self.handler.fence(fence))
        requests = {
            **self.requests(),
            **desk.requests(),
            **CopyProofs(self._host, copies).requests(),
            **self._draining.requests(),
            "wake-alarm": self._sweep.asked,
            "drain-project": closed.drain_project,
            "drain-object": closed.drain_object,
            "settle-object": closed.settle_object,
        }
        return PeerHandler(self._host, self._residents, self._router, requests, lambda: self.admission)

    def _make_host(self) -> Host:
        seams, config = self._seams, self._seams.config
        objects_dir = os.path.join(config.data, "objects")
        seams.disk.make_dir(objects_dir)
        cache = ChunkCache(seams.disk, os.path.join(config.data, "cache"), config.object_cache_mb << 20)
        return Host(
            loop=seams.loop,
            config=config,
            clock=seams.clock,
            disk=seams.disk,
            rng=seams.rng,
            workers=seams.workers,
            blobs=seams.blobs,
            cache=cache,
            leases=Leases(seams.store, self._keys),
            mirror=Alarms(seams.store, self._keys),
            permits=Permits(seams.loop, config.object_ship_concurrency, config.object_ship_reserved),
            failpoints=seams.failpoints,
            telemetry=seams.telemetry,
            log=seams.log,
            sql_mark=f"{seams.rng.getrandbits(128):032x}",
            objects_dir=objects_dir,
            alarm_index=AlarmIndex(seams.disk, os.path.join(config.data, "alarms.index")),
            call_out=self.call,
            nodes=self._nodes,
            incidents=self._incidents,
            replace_process=seams.replace_process,
            admitted=lambda: self.admission.remaining() > 0,
            on_incident=self._on_incident,
            peers=seams.peers,
            replicas=seams.replicas,
        )
