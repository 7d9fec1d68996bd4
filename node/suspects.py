"""Nodes that seem not to answer: looked at again and again until their row is gone or renewed (PROTOCOLS section 3).

Suspicion decides when to look, nothing more. What evicts is an unchanged version, by this node's own clock.
"""

from __future__ import annotations

import asyncio

from domicile.node.host import Host
from domicile.placement.eviction import Evictor
from domicile.placement.store import StoreUnavailable

LOOK_SECS = 1.0


class Suspects:
    """One look-out for each suspected node."""

    def __init__(self, host: Host, evictor: Evictor) -> None:
        self._host = host
        self._evictor = evictor
        self._watching: dict[str, asyncio.Task[None]] = {}

    def suspect(self, node_id: str) -> None:
        """A call to the node failed, or its answers do not come."""
        if node_id not in self._watching and self._host.nodes.rows().get(node_id) is not None:
            task = self._host.loop.create_task(self._watch(node_id))
            self._watching[node_id] = task
            task.add_done_callback(lambda _: self._watching.pop(node_id, None))

    def stop(self) -> None:
        for task in self._watching.values():
            task.cancel()

    async def _watch(self, node_id: str) -> None:
        first = self._host.nodes.rows().get(node_id)
        while True:
            try:
                verdict = await self._evictor.suspect(node_id)
            except StoreUnavailable as error:
                self._host.log.warning("suspect.unknown", node=node_id, error=str(error))
                await self._host.clock.sleep(LOOK_SECS)
                continue
            if verdict.gone:
                self._host.log.warning("node.evicted", node=node_id)
                return
            now = self._host.nodes.rows().get(node_id)
            if now is None or first is None or now.version != first.version:
                return  # it renews: it is alive, whatever it does not answer
            await self._host.clock.sleep(min(verdict.wait_secs + 0.01, LOOK_SECS))
