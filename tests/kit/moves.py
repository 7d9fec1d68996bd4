"""A project of ledgers that moves between the regions of a control plane: how it is begun, and what the rows say."""

from __future__ import annotations

import asyncio
from typing import Any

from domicile.activities.object_rows import ObjectRows, read_rows
from domicile.placement.records import GateRow, ObjectKey
from domicile.workflows.queues import CONTROL_QUEUE

PROJECT = "demo"
REGIONS = ("a", "b")


async def begin(plane: Any, to: str, **more: Any) -> Any:
    """The handle of the move."""
    asked = {"project": PROJECT, "to": to, **more}
    return await plane.client.start_workflow("MoveProject", asked, id=f"move-{PROJECT}", task_queue=CONTROL_QUEUE)


async def gate(plane: Any, region: str) -> GateRow | None:
    """The project's, there."""
    world = await plane.world.region(region)
    seen = await world.gates.get(world.keys.gate_project(PROJECT))
    return seen.row if seen is not None else None


def hold_drain(plane: Any) -> tuple[asyncio.Event, asyncio.Event]:
    """The move stands still where it drains: set when it is there, and to be set so that it goes on."""
    draining, go = asyncio.Event(), asyncio.Event()

    async def hold(method: str) -> None:
        if method == "drain-project":
            draining.set()
            await go.wait()

    plane.before_ask = hold
    return draining, go


async def rows(plane: Any, region: str, name: str) -> ObjectRows:
    """A ledger's, there."""
    found = await read_rows(await plane.world.region(region), [ObjectKey(PROJECT, "Ledger", name)])
    return found[0]
