"""Rotation: the log is folded into the base and the next generation begins (PROTOCOLS section 7, "Rotation").

Due when the log passes the greater of `OBJECT_WAL_ROTATE_KB` and `OBJECT_WAL_ROTATE_FRACTION` of the base, or when the
manifest names `OBJECT_MAX_SEGMENTS` pieces. One that is due by its log waits while the chunks it would put outweigh the
log, up to twice the limit. Nothing is folded that has not landed: the mailbox stands still, the last frames land, then
the checkpoint. The cost is what was written, in chunks: only the dirty ones are read, hashed and put.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from domicile.node.chunks import chunks_of, hash_chunks
from domicile.node.log import BaseShape
from domicile.node.sqlite import wal
from domicile.node.sqlite.wal import CHUNK_BYTES
from domicile.node.takeover.layer import Layer
from domicile.placement.records import Generation, Position

if TYPE_CHECKING:
    from domicile.node.host import Host
    from domicile.node.residency import Residency

STANDSTILL_SECS = 1.0


class Rotation:
    """The rotations of one residency. `_counter` is the highest generation counter it has used under its epoch."""

    def __init__(self, host: Host, residency: Residency) -> None:
        self._host = host
        self._residency = residency
        self._counter = 0
        self._task: asyncio.Task[None] | None = None
        self._postponed_until = 0
        self._folding = self._over = False

    @property
    def due(self) -> bool:
        """Whether to rotate now. One that would be is asked for again once a base in pages is whole."""
        config, log, manifest = self._host.config, self._residency.log, self._residency.leg.manifest
        if self._task is not None or not log.length:
            return False
        paged = self._residency.engine.paged
        if paged is not None and not paged.settled:
            return False  # it waits for the base
        if len(manifest.segments) + bool(manifest.tail) >= config.object_max_segments:
            return True
        limit = max(config.object_wal_rotate_kb << 10, int(log.base.size * config.object_wal_rotate_fraction))
        return log.length >= max(limit, min(self._postponed_until, 2 * limit))

    @property
    def running(self) -> bool:
        return self._task is not None

    def start(self) -> None:
        """Begin, beside the calls; they wait only while the log is folded."""
        self._task = self._host.loop.create_task(self._rotate())
        self._task.add_done_callback(self._ended)

    async def stop(self) -> None:
        """For a release: one that has not begun to fold is given up, one that has comes to its end."""
        self._give_up()
        if self._task is not None:
            await asyncio.wait([self._task])

    def cancel(self) -> None:
        """The residency has ended. A fold under way keeps its thread, and nothing comes of it here."""
        self._over = True
        self._give_up()

    def _give_up(self) -> None:
        if self._task is not None and not self._folding:
            self._task.cancel()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if not task.cancelled() and (error := task.exception()) is not None:
            self._residency.end(error)

    async def _rotate(self) -> None:
        residency, log = self._residency, self._residency.log
        async with residency.mailbox.alone():
            try:
                await asyncio.wait_for(residency.leg.flush(), STANDSTILL_SECS)
            except TimeoutError:
                return  # the store is slow: calls go on, the next landing tries again
            data = log.read(0, log.length)
            dirty = wal.dirty_chunks(data, log.base.size or residency.engine.birth_size)
            segments = len(residency.leg.manifest.segments) + bool(residency.leg.manifest.tail)
            outweighs = len(dirty.chunks) * CHUNK_BYTES > len(data)
            if outweighs and segments < self._host.config.object_max_segments and not self._postponed_until:
                self._postponed_until = 2 * len(data)
                return
            before, checksum = log.position, log.checksum(log.length)
            following = Generation(residency.epoch, self._counter + 1)
            self._folding = True
            log.hold(data)  # members are still told of it, and may still ask for it
            try:
                shape = await self._host.workers.run(lambda: self._fold(following, dirty.chunks))
            finally:
                self._folding = False
                log.hold(None)
            if shape is None or self._over:
                return
            self._counter += 1
            self._postponed_until = 0
            log.rotate(shape, following)
            if residency.replicas is not None:
                residency.replicas.folded(before, checksum, sorted(dirty.chunks))
        residency.leg.committed(awaited=False)
        self._host.failpoints.hit("rotate.after-checkpoint")

    def _fold(self, following: Generation, dirty: frozenset[int]) -> BaseShape | None:
        """In a thread, the object standing still: mark, checkpoint, hash the dirty chunks. None when it was busy."""
        residency = self._residency
        log, leg, engine = residency.log, residency.leg, residency.engine
        layer = Layer(self._host, engine.files)
        self._host.failpoints.hit("rotate.before-mark")
        layer.rotating(log.position, log.start, leg.manifest, leg.tag, following)
        self._host.failpoints.hit("rotate.before-checkpoint")
        if not engine.db.checkpoint():
            return None
        self._host.failpoints.hit("rotate.after-fold")
        size = engine.db.base_size()
        known = dict(enumerate(log.base.hashes))
        which = dirty if known else None
        known.update(hash_chunks(engine.db.read_base, size, which))
        shape = BaseShape(tuple(known[i] for i in range(chunks_of(size))), size)
        layer.rotated(Position(log.incarnation, following, 0), shape, leg.manifest, leg.tag)
        self._host.failpoints.hit("rotate.after-sidecar")
        return shape
