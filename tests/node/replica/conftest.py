"""One node with copies, and an owner that ships to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from copies import Node, Owner, Story


@pytest.fixture
def play(tmp_path: Path) -> Callable[[Story], None]:
    """Run a story on a fresh node with a fresh owner."""

    def run(story: Story) -> None:
        async def told() -> None:
            owner = Owner(tmp_path / "owner.db")
            node = await Node(tmp_path / "node", owner).open()
            await story(node, owner)
            await node.replicas.close()
            node.workers.close()

        asyncio.run(told())

    return run
