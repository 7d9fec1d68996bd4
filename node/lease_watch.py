"""A resident looks at its lease again, at most once per `LEASE_VERIFY_SECS`, beside its calls (PROTOCOLS section 4).

A lease lost or moved ends the residency unflushed. No call waits for the look.
"""

from __future__ import annotations

import asyncio

from domicile.node.errors import Fenced
from domicile.node.host import Host
from domicile.node.residency import Residency
from domicile.placement.store import StoreUnavailable


class LeaseWatch:
    """Remembers when each residency looked last."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._looking: set[asyncio.Task[None]] = set()

    def due(self, residency: Residency, now: float) -> bool:
        """Used since the last look, and that was long ago."""
        secs = self._host.config.lease_verify_secs
        return now - residency.verified > secs and residency.last_used > residency.verified

    def look(self, residency: Residency, now: float) -> None:
        """Begin a look; a store that does not answer proves nothing."""
        residency.verified = now
        task = self._host.loop.create_task(self._look(residency))
        self._looking.add(task)
        task.add_done_callback(self._looking.discard)

    async def _look(self, residency: Residency) -> None:
        try:
            row = await self._host.leases.read(residency.key.id)
        except StoreUnavailable as error:
            self._host.log.warning("lease.unverified", object=str(residency.key), error=str(error))
            return
        if residency.serving and (row is None or row.version != residency.claimed.version):
            residency.end(Fenced(f"{residency.key}: its lease row is not the one it claimed"))
