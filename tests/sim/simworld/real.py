"""The production node in the world: `domicile.node.node.Node`, given twins for everything it stands on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from domicile.errors import DomicileError
from domicile.node.config import Config
from domicile.node.failpoints import NONE
from domicile.node.node import Node, Seams
from domicile.node.telemetry import Telemetry
from domicile.placement.claims import Registration
from domicile.placement.node_registry import Membership
from domicile.registry import from_classes
from simworld.ledger import Ledger
from simworld.restore import check_moments
from simworld.world import PROJECT, Options, World

CONFIG = Config(data="/data", placement="sqlite:", object_wal_rotate_kb=64, object_idle_secs=6.0, object_max_segments=8)
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
        config=CONFIG,
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
    await _found(node, world)
    return RealNode(node)


async def _found(node: Node, world: World) -> None:
    """Create the project, as its operator would: until it stands."""
    while True:
        try:
            await node.put_project(PROJECT, None, None)
        except DomicileError as error:
            world.note(f"no project yet: {error.detail}")
            await world.clock.sleep(1.0)
        else:
            return


def options() -> Options:
    """The production node, judged by its blobs as well."""
    return Options(start_node, judges=(lambda world: check_moments(world.blobs.moments),))


def _text(fields: dict[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in fields.items())
