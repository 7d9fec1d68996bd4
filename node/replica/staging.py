"""A base on its way to a replica: staged beside the copy, invisible to positions (PROTOCOLS section 7, "base").

Chunks by hash: from what an attempt before this one left behind, from the copy's own base, else from the owner. Killed
between two pieces nothing is wrong: what is staged is no copy until one record, written after it is synced, says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Protocol

from blake3 import blake3

from domicile.node.errors import Corrupt
from domicile.node.replica.copies import STAGE, STAGE_LOG, Copy, CopyFiles
from domicile.node.replica.journal_record import Based, BaseFile
from domicile.node.sqlite.checksum import LogHasher, base_hash, seed
from domicile.node.sqlite.wal import CHUNK_BYTES
from domicile.node.wire.messages import FetchChunk, FetchLog, NewBase
from domicile.node.workers import Workers
from domicile.placement.records import Epoch

STAGINGS_MAX = 4
FETCHES_PARALLEL = 4
LOG_PIECE_BYTES = 1 << 20

ClaimStands = Callable[[str, Epoch], Awaitable[bool]]
"""Reads an object's lease row. Raises StoreUnavailable."""


class Source(Protocol):
    """Where a base is pulled from, by the owner's address. Both raise NodeError when it is not to be had."""

    async def fetch_log(self, peer: str, fetch: FetchLog) -> bytes: ...

    async def fetch_chunk(self, peer: str, fetch: FetchChunk) -> bytes: ...


class Stager:
    """Pulls bases, a few at once for the whole node."""

    def __init__(self, files: CopyFiles, workers: Workers, source: Source) -> None:
        self._files = files
        self._workers = workers
        self._source = source
        self._turns = asyncio.Semaphore(STAGINGS_MAX)

    async def pull(self, copy: Copy, base: NewBase, peer: str) -> None:
        """Stage base and log, verified and synced. Raises NodeError, OSError."""
        if not base.hashes and not base.start:
            return
        async with self._turns:
            await self._workers.run(lambda: self._prepare(base))
            lacking = iter(range(len(base.hashes)))
            many = min(FETCHES_PARALLEL, len(base.hashes))
            tasks = [asyncio.ensure_future(self._pull_chunks(copy, base, peer, lacking)) for _ in range(many)]
            try:
                await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
            await self._pull_log(base, peer)
            await self._workers.run(lambda: self._sync(base))

    def place(self, copy: Copy, base: NewBase) -> Based:
        """Give the staged files their numbers, durably: the record that makes them the copy. Raises OSError."""
        files, disk, number = self._files, self._files.disk, (copy.state.files if copy.state is not None else 0) + 1
        object_id = base.object_id
        if base.hashes:
            disk.rename(files.path(object_id, STAGE), files.path(object_id, number))
        if base.start:
            disk.rename(files.path(object_id, STAGE_LOG), files.path(object_id, number + 1))
        if base.hashes or base.start:
            disk.sync_many([files.directory(object_id), files.root])
        file = BaseFile(base.hashes, base.size, number if base.hashes else 0)
        return Based(base.incarnation, base.epoch, base.generation, base.start, file, number + 1)

    def _prepare(self, base: NewBase) -> None:
        files, disk = self._files, self._files.disk
        disk.make_dir(files.directory(base.object_id))
        disk.write(files.path(base.object_id, STAGE_LOG), b"", sync=False)
        if base.hashes:
            path = files.path(base.object_id, STAGE)
            if disk.size(path) is None:
                disk.write(path, b"", sync=False)
            disk.truncate(path, base.size, sync=False)

    async def _pull_chunks(self, copy: Copy, base: NewBase, peer: str, lacking: Iterator[int]) -> None:
        for index in lacking:
            data = await self._workers.run(lambda index=index: self._near(copy, base, index))  # type: ignore[misc]
            if data is None:
                fetch = FetchChunk(base.object_id, base.incarnation, base.generation, index, base.hashes[index])
                data = await self._source.fetch_chunk(peer, fetch)
                if blake3(data).digest() != base.hashes[index]:
                    raise Corrupt(f"object {base.object_id.hex()}: chunk {index} of its base came with another content")
            if data:
                await self._workers.run(lambda index=index, data=data: self._put(base, index, data))  # type: ignore[misc]

    def _put(self, base: NewBase, index: int, data: bytes) -> None:
        self._files.disk.write_at(self._files.path(base.object_id, STAGE), index * CHUNK_BYTES, data)

    def _near(self, copy: Copy, base: NewBase, index: int) -> bytes | None:
        """The chunk from this node's own files; empty when it is in its place already."""
        digest = base.hashes[index]
        path, at = self._files.path(base.object_id, STAGE), index * CHUNK_BYTES
        staged = self._files.disk.read_at(path, at, min(CHUNK_BYTES, base.size - at))
        if blake3(staged).digest() == digest:
            return b""
        held = copy.state.held if copy.state is not None else None
        if held is None or digest not in held.base.hashes:
            return None
        data = self._files.read_chunk(base.object_id, held.base, held.base.hashes.index(digest))
        return data if blake3(data).digest() == digest else None

    async def _pull_log(self, base: NewBase, peer: str) -> None:
        hasher = LogHasher(seed(base.object_id.hex(), base.incarnation, base_hash(base.hashes, base.size)))
        path = self._files.path(base.object_id, STAGE_LOG)
        while (at := hasher.length) < base.start:
            end = min(at + LOG_PIECE_BYTES, base.start)
            fetch = FetchLog(base.object_id, base.incarnation, base.generation, at, end)
            data = await self._source.fetch_log(peer, fetch)
            if not 0 < len(data) <= end - at:
                raise Corrupt(f"object {base.object_id.hex()}: {len(data)} bytes of its log came, not {end - at}")
            await self._workers.run(lambda at=at, data=data: self._files.disk.write_at(path, at, data))  # type: ignore[misc]
            hasher.update(data)
        if hasher.digest() != base.checksum:
            raise Corrupt(
                f"object {base.object_id.hex()}: the base it was sent has another checksum than the owner said"
            )

    def _sync(self, base: NewBase) -> None:
        names = ([STAGE] if base.hashes else []) + [STAGE_LOG]
        self._files.disk.sync_many([self._files.path(base.object_id, name) for name in names])
