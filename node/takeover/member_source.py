"""Fetching what a member holds, for a takeover that lays it: log and chunks, lacking ones only (section 5, step 3)."""

from __future__ import annotations

from collections.abc import Callable

from blake3 import blake3

from domicile.node.errors import BlobMissing, Corrupt, PeerGone
from domicile.node.host import Host
from domicile.node.peering import Peers, Replicas
from domicile.node.takeover.asking import MemberCopy
from domicile.node.wire.messages import FetchChunk, FetchLog

PIECE_BYTES = 4 << 20
FETCHES_PARALLEL = 8


class MemberSource:
    """One member's copy. It may be this node's own."""

    def __init__(self, host: Host, object_id: str, member: MemberCopy) -> None:
        self._host = host
        self._object = bytes.fromhex(object_id)
        self._member = member

    async def log(self) -> bytes:
        """All of the copy's log. Raises PeerGone, BlobMissing."""
        at, pieces = self._member.position, []
        for start in range(0, at.length, PIECE_BYTES):
            end = min(at.length, start + PIECE_BYTES)
            pieces.append(await self._log_piece(FetchLog(self._object, at.incarnation, at.generation, start, end)))
        return b"".join(pieces)

    async def base(self, place: Callable[[int, bytes], None]) -> None:
        """Every chunk of the base, verified, by `place(index, data)`: from the cache, else from the member."""
        lacking = iter(range(len(self._member.shape.hashes)))

        async def some() -> None:
            for index in lacking:
                place(index, await self.chunk(index))

        tasks = [self._host.loop.create_task(some()) for _ in range(FETCHES_PARALLEL)]
        try:
            for task in tasks:
                await task
        finally:
            for task in tasks:
                task.cancel()

    async def chunk(self, index: int) -> bytes:
        """One chunk of the base, verified. Raises PeerGone, PeerBusy, BlobMissing, Corrupt."""
        at, digest = self._member.position, self._member.shape.hashes[index]
        if (kept := self._host.cache.get(digest)) is not None:
            return kept
        fetch = FetchChunk(self._object, at.incarnation, at.generation, index, digest)
        if (replicas := self._mine()) is not None:
            data = await replicas.fetch_chunk(fetch)
        else:
            data = await self._peers().fetch_chunk(self._address(), fetch)
        if blake3(data).digest() != digest:
            raise Corrupt(f"member {self._member.copy_id} sent chunk {index} with the wrong content")
        self._host.cache.put(digest, data)
        return data

    async def _log_piece(self, fetch: FetchLog) -> bytes:
        if (replicas := self._mine()) is not None:
            data = await replicas.fetch_log(fetch)
        else:
            data = await self._peers().fetch_log(self._address(), fetch)
        if len(data) != fetch.end - fetch.start:
            raise BlobMissing(f"member {self._member.copy_id} no longer holds the log up to {fetch.end}")
        return data

    def _mine(self) -> Replicas | None:
        replicas = self._host.replicas
        return replicas if replicas is not None and replicas.copy_id == self._member.copy_id else None

    def _peers(self) -> Peers:
        assert self._host.peers is not None
        return self._host.peers

    def _address(self) -> str:
        address = self._host.nodes.address_of(self._member.copy_id)
        if address is None:
            raise PeerGone(f"no node keeps copy {self._member.copy_id} now", sent=False)
        return address
