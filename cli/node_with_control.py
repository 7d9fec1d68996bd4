"""A node and the control plane in one process: `domicile node --control`, for one node with embedded stores.

Nobody else can open those stores. Started by the supervisor as `python -m domicile.cli.node_with_control`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from temporalio.service import RPCError

from domicile.activities.search_attributes import NotRegisteredError
from domicile.activities.world import RegionUnknownError, RegionWorld, World
from domicile.cli.control import ControlProcess
from domicile.node.inside import Inside
from domicile.node.main import main
from domicile.placement.keys import ControlKeys, Keys
from domicile.placement.records import NodeRow, RegionRow

AGAIN_SECS = 10.0


@asynccontextmanager
async def control(inside: Inside) -> AsyncIterator[None]:
    """The control plane runs while this is open. What stops it is logged and tried again: the node serves on."""
    running = asyncio.get_running_loop().create_task(_keep(inside))
    try:
        yield
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


async def _keep(inside: Inside) -> None:
    while True:
        try:
            # Without its own API: the node serves the same routes.
            await ControlProcess(inside.config, _world(inside)).run(listen=False)
        except (RPCError, RuntimeError, NotRegisteredError, TimeoutError) as error:
            inside.log.error("control.failed", error=str(error))
            await inside.clock.sleep(AGAIN_SECS)


def _world(inside: Inside) -> World:
    """Of this process's own parts: one region, one node, asked without a wire."""
    config = inside.config

    async def ask(node: NodeRow, method: str, body: bytes, secs: float) -> bytes:
        async with asyncio.timeout(secs):
            return await inside.node.handler.ask(method, body)

    async def open_region(name: str, row: RegionRow | None) -> RegionWorld:
        if name != config.region:
            raise RegionUnknownError(f"this process has one region, {config.region}; not {name}")
        return RegionWorld.of(Keys(config.cluster, name), inside.store, inside.blobs, ask, inside.clock)

    return World(inside.control, ControlKeys(config.cluster), inside.clock, inside.rng, inside.log, open_region)


if __name__ == "__main__":
    main(beside=control)
