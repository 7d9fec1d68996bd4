"""What activities act on: the control keyspace, and every region through its own stores and nodes.

A region is opened when it is first asked for, from its row in the control keyspace with this process's credentials,
and kept. Who wants other parts (an embedded store, a simulated one) gives `World` another `open_region`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from domicile.errors import DomicileError
from domicile.node.blobs.base import Blobs
from domicile.node.blobs.opening import open_blobs
from domicile.node.clock import Clock
from domicile.node.config import Config
from domicile.node.peers import Peers
from domicile.placement.followed import decode
from domicile.placement.gates import Gates
from domicile.placement.keys import ControlKeys, Keys
from domicile.placement.leases import Leases
from domicile.placement.open import SQLITE, open_store
from domicile.placement.records import NodeRow, RegionRow
from domicile.placement.store import Store

Ask = Callable[[NodeRow, str, bytes, float], Awaitable[bytes]]
"""One request to one node: (node, method, msgpack body, seconds) → msgpack answer."""


class RegionUnknownError(Exception):
    """The control keyspace has no such region and it is not this process's own, or it cannot be opened from here."""


@dataclass(frozen=True, slots=True)
class RegionWorld:
    """One region. `ask_node` is for `ask`."""

    name: str
    keys: Keys
    store: Store
    blobs: Blobs
    gates: Gates
    leases: Leases
    ask_node: Ask

    @classmethod
    def of(cls, keys: Keys, store: Store, blobs: Blobs, ask: Ask, clock: Clock) -> RegionWorld:
        """From its stores; `keys` say its name."""
        gates, leases = Gates(store, keys, clock.sleep), Leases(store, keys)
        return cls(keys.region, keys, store, blobs, gates, leases, ask)

    async def nodes(self) -> list[NodeRow]:
        """Every node with a row, by node id. Raises StoreUnavailable."""
        return [row for _, row in await scan_rows(self.store, self.keys.nodes, NodeRow)]

    async def ask(self, node: NodeRow, method: str, body: bytes, secs: float) -> bytes:
        """A request by name over the peer wire. Raises PeerGone, PeerBusy, and the node's error as it raised it."""
        return await self.ask_node(node, method, body, secs)


class World:
    """`control` and `control_keys`: the control keyspace. `close` it in the end."""

    def __init__(
        self,
        control: Store,
        control_keys: ControlKeys,
        clock: Clock,
        rng: random.Random,
        log: Any,
        open_region: Callable[[str, RegionRow | None], Awaitable[RegionWorld]],
    ) -> None:
        """`open_region` is given the region's row, None where control has none; it may raise RegionUnknownError."""
        self.control = control
        self.control_keys = control_keys
        self.clock = clock
        self.rng = rng
        self.log = log
        self._open_region = open_region
        self._regions: dict[str, tuple[RegionRow | None, RegionWorld]] = {}
        self._opening = asyncio.Lock()
        self.on_close: list[Callable[[], Awaitable[None]]] = []

    async def region(self, name: str) -> RegionWorld:
        """As its row says it is reached. Raises StoreUnavailable, RegionUnknownError, ValueError, OSError."""
        key = self.control_keys.region(name)
        record = (await self.control.read([key])).get(key)
        row = decode(record, RegionRow).row if record else None
        async with self._opening:
            known = self._regions.get(name)
            if known is None or known[0] != row:
                known = self._regions[name] = (row, await self._open_region(name, row))
            return known[1]

    async def regions(self) -> list[RegionRow]:
        """Every region that is registered, by name. Raises StoreUnavailable."""
        return [row for _, row in await scan_rows(self.control, self.control_keys.regions, RegionRow)]

    async def close(self) -> None:
        """Every store that was opened, and the connections to nodes."""
        for close in reversed(self.on_close):
            await close()


class Opening:
    """Opens what a World needs from settings: control at once, regions when they are asked for."""

    def __init__(self, config: Config, clock: Clock, rng: random.Random, log: Any, peers: Peers) -> None:
        self._config = config
        self._clock = clock
        self._rng = rng
        self._peers = peers
        self._stores: dict[str, Store] = {}
        placement = config.control or config.placement
        keys = ControlKeys(config.cluster)
        self.world = World(self._store(placement), keys, clock, rng, log, self._open_region)
        self.world.on_close += [self._close_stores, peers.close]

    async def _open_region(self, name: str, row: RegionRow | None) -> RegionWorld:
        config = self._config
        if row is None:
            # Before its first node has registered it, or where regions are no matter: this process's own.
            if name != config.region:
                raise RegionUnknownError(f"there is no region {name}")
            row = RegionRow(name, placement=config.placement, blobs=config.blobs, blobs_endpoint=config.blobs_endpoint)
        if row.placement.startswith(SQLITE):
            raise RegionUnknownError(f"region {name} has an embedded store, which is its one node's alone")
        store = self._store(row.placement)
        its = replace(config, region=name, blobs=row.blobs, blobs_endpoint=row.blobs_endpoint)
        blobs = await open_blobs(its, self._clock, self._rng)
        self.world.on_close.append(blobs.close)
        return RegionWorld.of(Keys(config.cluster, name), store, blobs, self._ask, self._clock)

    def _store(self, placement: str) -> Store:
        """Regions may share one: an embedded store cannot be opened twice."""
        if placement not in self._stores:
            settings = replace(self._config, placement=placement)
            self._stores[placement] = open_store(settings, self._clock.monotonic, self._clock.sleep)
        return self._stores[placement]

    async def _ask(self, node: NodeRow, method: str, body: bytes, secs: float) -> bytes:
        if not node.peer:
            raise DomicileError(f"node {node.node_id} listens to nobody: set PEER_LISTEN")
        return await self._peers.ask(node.peer, method, body, secs)

    async def _close_stores(self) -> None:
        for store in self._stores.values():
            await store.close()


async def scan_rows(store: Store, prefix: str, kind: type[Any]) -> list[tuple[str, Any]]:
    """(key, row) of everything under a prefix, from one snapshot. For tables that fit in memory.

    Raises StoreUnavailable, ScanExpired.
    """
    found: list[tuple[str, msgspec.Struct]] = []
    token: str | None = None
    while True:
        page = await store.scan(prefix, token=token)
        found += [(record.key, decode(record, kind).row) for record in page.records]
        token = page.token
        if token is None:
            return found
