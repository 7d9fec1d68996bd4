"""The production node in the world: `domicile.node.node.Node`, given twins for everything it stands on."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from domicile.errors import DomicileError
from domicile.node.config import Config
from domicile.node.failpoints import NONE
from domicile.node.node import Node
from domicile.node.seams import Seams
from domicile.node.telemetry import Telemetry
from domicile.placement.claims import Registration
from domicile.placement.node_registry import Membership
from domicile.registry import from_classes
from simworld.client import PROJECT, Habits
from simworld.ledger import Ledger
from simworld.restore import check_moments
from simworld.world import Options, World

CONFIG = Config(data="/data", placement="sqlite:")
REGISTRY = from_classes(Ledger)


class Heartbeat:
    """One membership, renewed by a task of the node's process: the world has no threads that could block it."""

    def __init__(self, membership: Membership) -> None:
        self._membership = membership
        self._running: asyncio.Task[None] | None = None

    async def start(self) -> Registration:
        registration = await self._membership.register()
        self._running = asyncio.get_running_loop().create_task(self._membership.run())
        return registration

    def hurry(self) -> None:
        self._membership.hurry()

    async def leave(self, why: str) -> bool:
        left = await self._membership.leave(why)
        await self.stop()
        return left

    async def stop(self) -> None:
        if self._running is not None:
            self._running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._running


class WorldLog:
    """Warnings and errors go into the run's notes."""

    def __init__(self, note: Callable[[str], None], fields: str = "") -> None:
        self._note = note
        self._fields = fields

    def bind(self, **fields: Any) -> WorldLog:
        return WorldLog(self._note, f"{self._fields} {_text(fields)}")

    def debug(self, event: str, **fields: Any) -> None:
        """Too much for a run's notes."""

    def info(self, event: str, **fields: Any) -> None:
        self._note(f"{event} {_text(fields)}{self._fields}")

    warning = error = info


class RealNode:
    """A NodeHandle."""

    def __init__(self, node: Node) -> None:
        self.front = node

    async def stop(self) -> None:
        await self.front.stop()


async def start_node(world: World) -> RealNode:
    """Start a node as its supervisor would: the grants of earlier runs are gone."""
    world.store.restarted()
    number = world.starts
    process = world.process
    assert process is not None
    seams = Seams(
        loop=world.loop,
        config=config_of(world),
        registry=REGISTRY,
        clock=world.clock,
        disk=world.disk,
        rng=world.rng(f"node-{number}"),
        workers=world.workers,
        blobs=world.blobs,
        store=world.store.session(),
        telemetry=Telemetry(),
        log=WorldLog(world.note),
        failpoints=NONE,
        heartbeat=Heartbeat,
        replace_process=lambda why: world.replace(process, why),
    )
    node = Node(seams)
    await node.start()
    await found(node, world)
    return RealNode(node)


async def found(node: Node, world: Any, on_incident: str | None = None) -> None:
    """Create the project, as its operator would: until it stands."""
    while True:
        try:
            await node.put_project(PROJECT, None, on_incident)
        except DomicileError as error:
            world.note(f"no project yet: {error.detail}")
            await world.clock.sleep(1.0)
        else:
            return


def config_of(world: World) -> Config:
    """Small bounds, so that what is rare on a long day happens in a minute; the same for every start of a run."""
    rng = world.rng("config")
    return replace(
        CONFIG,
        object_idle_secs=rng.choice([0.3, 6.0, 300.0]),
        object_residents=rng.choice([1, 5000, 5000]),
        object_wal_rotate_kb=rng.choice([16, 64, 4096]),
        object_max_segments=rng.choice([2, 8, 64]),
        object_store_interval_ms=rng.choice([50, 1000]),
        object_sweep_secs=rng.choice([3.0, 30.0]),
        object_mailbox=rng.choice([1, 128]),
        lease_verify_secs=rng.choice([1.0, 600.0]),
    )


def habits_of(rng: random.Random) -> Habits:
    """Plain clients in some runs; in others alarms, batches, slow methods, calls between objects, deletions."""
    return Habits(
        arm=rng.choice([0.0, 0.1]),
        delete=rng.choice([0.0, 0.0, 0.05]),
        odd=rng.choice([0.0, 0.3]),
        batch=rng.choice([0.0, 0.15]),
    )


def options() -> Options:
    """The production node, judged by its blobs as well."""
    return Options(start_node, judges=(lambda world: check_moments(world.blobs.moments),), habits=habits_of)


def _text(fields: dict[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in fields.items())
