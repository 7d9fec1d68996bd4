"""The control plane for tests: a Temporal dev server for the session, and in-process nodes with workers beside them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from control_plane import ControlPlane, plane_over
from temporal_server import TemporalServer
from whole_nodes import NodeGroup

from domicile import Object


@pytest.fixture(scope="session")
def temporal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TemporalServer]:
    """One for the session. A test may restart it, and leaves it running."""
    server = TemporalServer(tmp_path_factory.mktemp("temporal"))
    server.start()
    yield server
    server.stop()


# Set to a folder: histories of what runs in these tests are written there, to be kept in `histories/` beside them.
RECORD = os.environ.get("DOMICILE_RECORD_HISTORIES", "")


@pytest.fixture
def control(temporal: TemporalServer, tmp_path: Path, request: pytest.FixtureRequest) -> Callable[..., Any]:
    """`control(scenario, *classes, regions=("local",), nodes=1, worker=True, **settings)`.

    Runs `async def scenario(plane)` over started nodes, in one region or several: `plane.regions["local"]` has the
    nodes, `plane.client` is Temporal's, `plane.world` what activities act on.
    """

    def go(
        scenario: Callable[[ControlPlane], Awaitable[None]],
        *classes: type[Object],
        regions: tuple[str, ...] = ("local",),
        nodes: int = 1,
        worker: bool = True,
        **settings: Any,
    ) -> None:
        members = min(2, nodes - 1)
        settings = {"object_replicas": members, "object_quorum": members, "object_journal_mb": 4, **settings}

        async def main() -> None:
            groups = [NodeGroup(tmp_path / name, classes, {**settings, "region": name}) for name in regions]
            record_into = Path(RECORD) / request.node.name if RECORD else None
            async with plane_over(temporal.address, groups, nodes, worker=worker, record_into=record_into) as plane:
                await scenario(plane)

        asyncio.run(main())

    return go
