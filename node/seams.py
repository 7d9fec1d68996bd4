"""What a node is given: the world, real or simulated. `main.py` and the simulation fill it in."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from domicile.node.blobs.base import Blobs
from domicile.node.clock import Clock
from domicile.node.config import Config
from domicile.node.disk import Disk
from domicile.node.failpoints import Failpoints
from domicile.node.peering import Peers
from domicile.node.replica.replicas import Replicas
from domicile.node.telemetry import Telemetry
from domicile.node.workers import Workers
from domicile.placement.admission import Timing
from domicile.placement.claims import Registration
from domicile.placement.node_registry import Membership
from domicile.placement.store import Grant, Store
from domicile.registry import Registry


class Heartbeat(Protocol):
    """Runs one membership where nothing of the node can block it."""

    async def start(self) -> Registration: ...

    def hurry(self) -> None:
        """The row has changed: renew now."""
        ...

    async def leave(self, why: str) -> bool: ...

    async def stop(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Seams:
    """Everything a node is given: the world, real or simulated."""

    loop: asyncio.AbstractEventLoop
    config: Config
    registry: Registry
    clock: Clock
    disk: Disk
    rng: random.Random
    workers: Workers
    blobs: Blobs
    store: Store
    telemetry: Telemetry
    log: Any
    failpoints: Failpoints
    heartbeat: Callable[[Membership], Heartbeat]
    replace_process: Callable[[str], None]
    control: Store | None = None  # of the control keyspace; None: the same store
    http_address: str = ""
    peers: Peers | None = None
    replicas: Replicas | None = None
    peer_address: Callable[[], str] = lambda: ""
    grant: Grant | None = None  # the supervisor's, for the first registration
    named: Callable[[str], None] = lambda node_id: None  # called before each registration

    @property
    def timing(self) -> Timing:
        """The membership's times, as the settings have them."""
        config = self.config
        return Timing(
            ttl=config.node_ttl_secs,
            heartbeat=config.node_heartbeat_secs,
            timeout=config.node_renew_timeout_secs,
            admission=config.node_admission_secs,
            margin=config.node_fence_margin_secs,
        )
