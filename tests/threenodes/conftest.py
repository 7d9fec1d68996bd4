"""Several whole nodes in the test's own process: see `tests/kit/whole_nodes.py`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from whole_nodes import NodeGroup

from domicile import Object


@pytest.fixture
def cluster(tmp_path: Path) -> Callable[..., Any]:
    """`cluster(scenario, *classes, nodes=3, **settings)` runs `async def scenario(cluster)`."""

    def go(
        scenario: Callable[[NodeGroup], Awaitable[None]], *classes: type[Object], nodes: int = 3, **settings: Any
    ) -> None:
        settings = {"object_replicas": 2, "object_quorum": 2, "object_journal_mb": 4, **settings}
        cluster = NodeGroup(tmp_path, classes, settings)

        async def main() -> None:
            await cluster.start(nodes)
            try:
                await scenario(cluster)
            finally:
                await cluster.stop()

        asyncio.run(main())

    return go
