"""What a node needs of other nodes, and of the copies it keeps for them: the seams between the core and `peers.py`,
`replica/` (PROTOCOLS sections 5, 7 and 8).

An address is "host:port" of a node's peer listener.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from domicile.errors import NotServing
from domicile.node.errors import PeerBusy, PeerGone
from domicile.node.values import Answer, Call
from domicile.node.wire.messages import (
    Answered,
    Append,
    Dropped,
    Fence,
    FenceAnswer,
    FetchChunk,
    FetchLog,
    Fold,
    Hops,
    NewBase,
    Relabel,
    Said,
)

REGION_ASK_SECS = 10.0
Request = Callable[[bytes], Awaitable[bytes]]
"""Answers what is asked by name: msgpack in, msgpack or JSON out."""


class Peers(Protocol):
    """Other nodes, by address. Everything raises PeerGone when no answer came in time."""

    def say(self, peer: str, message: Said, copy_id: str = "") -> asyncio.Future[Answered]:
        """On the append stream: batched per loop turn, order kept; only the keeper of `copy_id` is told."""
        ...

    def tell(
        self, peer: str, message: Said, copy_id: str, heard: Callable[[Answered | PeerGone | PeerBusy], None]
    ) -> None:
        """The same; the answer, or why there is none, is told to `heard`, perhaps before this returns."""
        ...

    async def fence(self, peer: str, fence: Fence, secs: float) -> FenceAnswer: ...

    async def fetch_log(self, peer: str, fetch: FetchLog) -> bytes: ...

    async def fetch_chunk(self, peer: str, fetch: FetchChunk) -> bytes: ...

    async def drop(self, peer: str, dropped: Dropped) -> None: ...

    def forget(self, peer: str) -> None:
        """The node has departed."""
        ...

    async def call(self, peer: str, call: Call, hops: Hops, secs: float) -> Answer:
        """A forwarded call, with what is left of its hops. Raises PeerBusy, and what the other node raised."""
        ...

    async def ask(self, peer: str, method: str, body: bytes, secs: float) -> bytes: ...

    async def close(self) -> None: ...


def ask_region(peers: Peers | None, method: str, body: bytes) -> Callable[[str], Awaitable[bytes]]:
    """A request by name, for `Crossing` to put to a region's ingress. It raises what `Peers.ask` does, NotServing."""

    async def ask(address: str) -> bytes:
        if peers is None:
            raise NotServing("this node cannot reach other regions: set PEER_LISTEN")
        return await peers.ask(address, method, body, REGION_ASK_SECS)

    return ask


class Replicas(Protocol):
    """The copies this node keeps of objects it does not own."""

    @property
    def copy_id(self) -> str:
        """The member that this node's directory of copies is."""
        ...

    def on_synced(self, told: Callable[[float], None]) -> None:
        """`told` gets the seconds of every sync pass of the journal."""
        ...

    def take(self, said: Sequence[tuple[str, Append | Relabel | Fold | NewBase, Callable[[Answered], None]]]) -> None:
        """What arrived together, each with its speaker's address and who is told the answer; one sync pass for all."""
        ...

    async def fence(self, fence: Fence) -> FenceAnswer: ...

    async def fetch_log(self, fetch: FetchLog) -> bytes:
        """Raises BlobMissing when the copy is of another generation or shorter."""
        ...

    async def fetch_chunk(self, fetch: FetchChunk) -> bytes:
        """Raises BlobMissing when the copy's base is another."""
        ...

    async def dropped(self, dropped: Dropped) -> None: ...
