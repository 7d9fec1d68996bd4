"""Copies nobody ships to any more: the disk is given back once the manifest covers them (PROTOCOLS section 7).

What is left is a stub with fence, position and checksum, so that a takeover can tell a copy that was let go from one
that was lost.
"""

from __future__ import annotations

from domicile.node import register
from domicile.node.errors import NodeError
from domicile.node.host import Host
from domicile.node.replica.replicas import Replicas

LOOKS_PER_IDLE = 4
LOOK_SECS_MAX = 60.0


class IdleCopies:
    """Looks over this node's copies, now and then."""

    def __init__(self, host: Host, replicas: Replicas) -> None:
        self._host = host
        self._replicas = replicas

    async def run(self) -> None:
        """Until cancelled."""
        idle = self._host.config.object_replica_idle_secs
        while True:
            await self._host.clock.sleep(min(LOOK_SECS_MAX, max(idle / LOOKS_PER_IDLE, 0.1)))
            for object_id in self._replicas.idle(idle):
                await self._look_at(object_id)

    async def _look_at(self, object_id: str) -> None:
        """Let one go, if the store has all of it. A store that does not answer proves nothing."""
        try:
            manifest, _ = await register.read(self._host, object_id)
            if manifest is not None:
                await self._replicas.let_go(object_id, manifest.position, manifest.incidents)
        except (NodeError, OSError) as error:
            self._host.log.warning("copy.kept", object=object_id, error=str(error))
