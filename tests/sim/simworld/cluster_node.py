"""The production node among neighbours: `domicile.node.neighbourhood` and all beneath it, over simulated links."""

from __future__ import annotations

from dataclasses import replace

from domicile.node.config import Config
from domicile.node.failpoints import NONE
from domicile.node.neighbourhood import Neighbourhood
from domicile.node.node import Node
from domicile.node.seams import Seams
from domicile.node.telemetry import Telemetry
from domicile.placement.keys import Keys
from simworld.cluster import ClusterWorld
from simworld.machine import Machine
from simworld.real import CONFIG, REGISTRY, Heartbeat, WorldLog, config_of, found, habits_of
from simworld.restore import check_moments
from simworld.world import Options

SECRET = b"the secret of a simulated cluster"
KEYS = Keys(CONFIG.cluster, CONFIG.region)


class ClusterNode:
    """A NodeHandle."""

    def __init__(self, node: Node, hood: Neighbourhood) -> None:
        self.front = node
        self.hood = hood

    async def stop(self) -> None:
        """As `main` does on SIGTERM."""
        self.front.leaving()
        await self.front.stop()
        await self.hood.close()


async def boot(machine: Machine) -> ClusterNode:
    """Start the node of a machine."""
    world, process = machine.world, machine.process
    assert process is not None
    config, log = cluster_config(machine), WorldLog(machine.note)
    rng = machine.rng(f"node-{machine.starts}")
    hood = Neighbourhood(
        loop=world.loop,
        config=config,
        clock=machine.clock,
        disk=machine.disk,
        rng=rng,
        workers=machine.workers,
        log=log,
        network=machine.nic,
        secret=SECRET,
    )
    await hood.open()
    if hood.replicas is not None:
        world.copies = {copy: of for copy, of in world.copies.items() if of is not machine}
        world.copies[hood.replicas.copy_id] = machine

    def named(node_id: str) -> None:
        machine.node_id = node_id
        machine.note(f"is {node_id}, copy {hood.replicas.copy_id if hood.replicas else ''}")

    seams = Seams(
        loop=world.loop,
        config=config,
        registry=REGISTRY,
        clock=machine.clock,
        disk=machine.disk,
        rng=rng,
        workers=machine.workers,
        blobs=world.blobs.through(machine.blobs_weather),
        store=machine.session(),
        telemetry=Telemetry(),
        log=log,
        failpoints=NONE,
        heartbeat=Heartbeat,
        replace_process=lambda why: machine.replace(process, why),
        http_address=machine.name,
        peers=hood.peers,
        replicas=hood.replicas,
        peer_address=lambda: hood.address,
        named=named,
    )
    node = Node(seams)
    await hood.listen(node)
    await node.start()
    await found(node, machine, world.shape.on_incident)
    return ClusterNode(node, hood)


def cluster_config(machine: Machine) -> Config:
    """Bounds as small as for one node, and the cluster's own, the same on every machine of a run."""
    world = machine.world
    rng, shape = world.rng("cluster-config"), world.shape
    times = rng.choice([(5.0, 3.0, 10.0, 5.0, 45), (1.0, 1.0, 4.0, 2.0, 10), (1.0, 1.0, 4.0, 2.0, 45)])
    heartbeat, timeout, admission, margin, ttl = times
    return replace(
        config_of(world),
        peer_listen=f"{machine.name}:7000",
        object_replicas=shape.replicas,
        object_quorum=shape.quorum,
        on_incident=shape.on_incident,
        object_journal_mb=1,
        object_replica_idle_secs=rng.choice([3.0, 1800.0]),
        object_store_lag_ms=2000,
        object_paged_mb=8,
        node_heartbeat_secs=heartbeat,
        node_renew_timeout_secs=timeout,
        node_admission_secs=admission,
        node_fence_margin_secs=margin,
        node_ttl_secs=ttl,
    )


def options() -> Options:
    """The production cluster."""
    return Options(
        boot,  # type: ignore[arg-type]
        judges=(lambda world: check_moments(world.blobs.moments),),
        habits=habits_of,
        world=lambda seed, options: ClusterWorld(seed, options, boot, KEYS),
    )
