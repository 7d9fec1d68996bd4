"""Asking the nodes of a region about one object: its owner if that lives, else another that has its class."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from blake3 import blake3

from domicile.activities.object_rows import ObjectRows
from domicile.activities.refusals import cut
from domicile.activities.world import RegionWorld
from domicile.errors import DomicileError
from domicile.node.errors import PeerBusy, PeerGone
from domicile.placement.records import Held, NodeRow

ASK_SECS = 15.0


class NodeQuestions:
    """A node that does not answer, or cannot now, is asked again, or another is: nothing is raised for that."""

    def __init__(self, region: RegionWorld, log: Any) -> None:
        self._region = region
        self._log = log

    async def ask(self, node: NodeRow, method: str, body: bytes, secs: float = ASK_SECS) -> bytes | None:
        """None when there is no usable answer."""
        try:
            return await self._region.ask(node, method, body, secs)
        except (PeerGone, PeerBusy, DomicileError) as error:
            self._log.warning("node.asked", node=node.node_id, method=method, error=cut(str(error)))
            return None

    async def ask_about(
        self, rows: ObjectRows, method: str, body: bytes, answering: Collection[str] | None = None
    ) -> bytes | None:
        """`answering` are the nodes known to answer; None: nothing is known."""
        nodes = [node for node in await self._region.nodes() if node.peer]
        if answering is not None:
            nodes = [node for node in nodes if node.node_id in answering]
        node = chosen(rows, nodes)
        if node is None:
            self._log.warning("node.nobody", object=str(rows.key), region=self._region.name, method=method)
            return None
        return await self.ask(node, method, body)


def chosen(rows: ObjectRows, nodes: Collection[NodeRow]) -> NodeRow | None:
    """The owner; else one that serves the class, another one after each claim."""
    usable = [node for node in nodes if rows.key.cls in node.classes]
    owner = rows.state.owner if isinstance(rows.state, Held) else None
    if (home := next((node for node in usable if node.node_id == owner), None)) is not None:
        return home
    seed = f"{rows.key.id}{rows.lease.version if rows.lease is not None else 0}"
    serving = [node for node in usable if node.state == "serving"]
    return min(serving, key=lambda node: blake3((node.node_id + seed).encode()).digest(), default=None)
