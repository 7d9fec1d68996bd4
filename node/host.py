"""The node's shared parts, built once by `build.py` and handed to every residency."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from domicile.node.alarm_index import AlarmIndex
from domicile.node.blobs.base import Blobs
from domicile.node.chunk_cache import ChunkCache
from domicile.node.clock import Clock
from domicile.node.config import Config
from domicile.node.disk import Disk
from domicile.node.failpoints import Failpoints
from domicile.node.nodes import Nodes
from domicile.node.pace import Pace
from domicile.node.peering import Peers, Replicas
from domicile.node.permits import Permits
from domicile.node.telemetry import Telemetry
from domicile.node.values import Answer, Call
from domicile.node.workers import Workers
from domicile.placement.alarms import Alarms
from domicile.placement.incidents import Incidents
from domicile.placement.leases import Leases


@dataclass(slots=True)
class Host:
    """What a residency needs of its node. `call_out` and `replace_process` are set by the builder last."""

    loop: asyncio.AbstractEventLoop
    config: Config
    clock: Clock
    disk: Disk
    rng: random.Random
    workers: Workers
    blobs: Blobs
    cache: ChunkCache
    leases: Leases
    mirror: Alarms
    permits: Permits
    failpoints: Failpoints
    telemetry: Telemetry
    log: Any
    sql_mark: str
    objects_dir: str
    alarm_index: AlarmIndex
    nodes: Nodes
    incidents: Incidents
    call_out: Callable[[Call], Awaitable[Answer]]
    replace_process: Callable[[str], None]
    admitted: Callable[[], bool]
    on_incident: Callable[[str], str]
    peers: Peers | None = None
    replicas: Replicas | None = None
    pace: Pace = field(default_factory=Pace)
    untidy: Callable[[str], None] = lambda object_id: None  # told of objects that have left garbage in the store
    stirring: set[Any] = field(default_factory=set)  # residencies something waits in: those a tick has to look at

    def put_id(self) -> bytes:
        """A random id for one manifest put, 16 bytes."""
        return self.rng.randbytes(16)

    def jitter(self, secs: float) -> float:
        """`secs`, give or take a half."""
        return secs * self.rng.uniform(0.5, 1.5)
