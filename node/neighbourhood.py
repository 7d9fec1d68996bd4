"""This node among others: the copies it keeps, its connections out, its listener (PROTOCOLS sections 4 and 7).

Built before the node, which is given `peers` and `replicas`; begins to listen once the node is there to answer.
"""

from __future__ import annotations

import asyncio
import os
import random
from typing import Any

from domicile.node.clock import Clock
from domicile.node.config import Config
from domicile.node.disk import Disk
from domicile.node.errors import Corrupt
from domicile.node.node import Node
from domicile.node.peers import Peers
from domicile.node.replica.replicas import Replicas, Surroundings
from domicile.node.wire.hello import Identity
from domicile.node.wire.network import Network
from domicile.node.wire.server import PeerServer
from domicile.node.wire.wiring import Wiring
from domicile.node.workers import Workers
from domicile.placement.records import Epoch, Held


class Neighbourhood:
    """`open`, then `listen` with the node, in the end `close`. `address` is where others reach this node."""

    def __init__(
        self,
        *,
        loop: asyncio.AbstractEventLoop,
        config: Config,
        clock: Clock,
        disk: Disk,
        rng: random.Random,
        workers: Workers,
        log: Any,
        network: Network,
        secret: bytes,
    ) -> None:
        self._config = config
        self._disk = disk
        self._rng = rng
        self._workers = workers
        self._log = log
        self._loop = loop
        self._clock = clock
        self._secret = secret
        self._node: Node | None = None
        self._server: PeerServer | None = None
        self.address = ""
        self.replicas: Replicas | None = None
        self._wiring = Wiring(
            loop=loop, network=network, identity=self._identity, nonce=rng.randbytes, clock=clock, log=log
        )
        self.peers = Peers(self._wiring)

    async def open(self) -> None:
        """Open the copies. A node that cannot have a journal keeps none, and says so."""
        path = os.path.join(self._config.data, "replicas")
        try:
            self.replicas = await self._open_replicas(path)
        except (OSError, Corrupt) as error:
            self._log.error("replicas.unavailable", error=str(error))

    async def listen(self, node: Node) -> None:
        """Raises OSError when the address cannot be had."""
        self._node = node
        self._server = PeerServer(self._wiring, node.handler)
        listening = await self._server.listen(self._config.peer_listen)
        self.address = self._config.advertise or listening

    async def close(self) -> None:
        if self._server is not None:
            await self._server.stop()
        await self.peers.close()
        if self.replicas is not None:
            await self.replicas.close()

    async def _open_replicas(self, path: str) -> Replicas:
        config = self._config
        around = Surroundings(
            loop=self._loop,
            disk=self._disk,
            workers=self._workers,
            clock=self._clock,
            rng=self._rng,
            source=self.peers,
            claim_stands=self._claim_stands,
            root=path,
            lost=os.path.join(config.data, "lost"),
            journal_bytes=config.object_journal_mb << 20,
            sync_appends=config.object_replica_sync == "fsync",
            report_lost=lambda object_id, epoch: self._log.error("replica.lost", object=object_id, epoch=str(epoch)),
        )
        return await Replicas.open(around)

    def _identity(self) -> Identity:
        node_id = self._node.node_id if self._node is not None else ""
        copy_id = self.replicas.copy_id if self.replicas is not None else ""
        return Identity(self._config.cluster, node_id, copy_id, self.address, self._secret)

    async def _claim_stands(self, object_id: str, epoch: Epoch) -> bool:
        """Whether the lease row says that this epoch's claim is the object's (section 7, "Members")."""
        assert self._node is not None
        row = await self._node.leases.read(object_id)
        return row is not None and isinstance(row.row.state, Held) and Epoch(row.row.term, row.version) == epoch
