"""The store leg of a flight: committed log to the blob store, then the manifest that names it (PROTOCOLS section 7).

One put in flight; what came meanwhile is the next. A flight starts at once when a caller waits for it, else when the
oldest unshipped frame is `OBJECT_STORE_INTERVAL_MS` old or 256 KiB have gathered; where many objects gather at once,
later, so that they fly less often and with more, and land within `OBJECT_STORE_LAG_MS`. Each starts where *the manifest
that landed* ends, not where memory thinks. A failing flight backs off and keeps the object dirty; only a newer owner's
manifest ends it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from blake3 import blake3

from domicile.node import manifest as manifests
from domicile.node import register
from domicile.node.chunks import Base, Segment, chunk_key, next_refs, segment_key
from domicile.node.errors import BlobError, Fenced
from domicile.node.flight import Flights
from domicile.node.host import Host
from domicile.node.log import Log
from domicile.node.manifest import Manifest, Reach, Stamp
from domicile.node.members import MemberSets
from domicile.node.register import Conflict
from domicile.node.tail import Tail
from domicile.node.takeover.lay import Laid
from domicile.placement.records import Epoch

GATHER_BYTES = 256 << 10
SEGMENT_BYTES_MAX = 8 << 20
BACKOFF_FIRST_SECS, BACKOFF_MAX_SECS = 0.05, 2.0
PUTS_PARALLEL = 8

ReadChunk = Callable[[int], Awaitable[bytes]]


class StoreLeg:
    """Ships one residency's log. `manifest` and `tag` are the last known to have landed."""

    def __init__(self, host: Host, epoch: Epoch, log: Log, flights: Flights, laid: Laid) -> None:
        self._host = host
        self._epoch = epoch
        self._log = log
        self._flights = flights
        self._tail = Tail(log)
        self.manifest, self.tag = laid.manifest, laid.tag
        self._based_on = log.rotations if laid.based else -1
        self._task: asyncio.Task[None] | None = None
        self._hurry: asyncio.Future[None] | None = None
        self._urgent = False
        self._behind_since: float | None = None
        self._flushing = 0
        self._sent: dict[bytes, int] = {}
        self.members: MemberSets | None = None
        self.closed_incidents: set[Epoch] = set()  # the next manifest drops them
        self.read_chunk: ReadChunk | None = None
        self.on_broken: Callable[[BaseException], None] | None = None
        self.on_landed: Callable[[], None] | None = None

    @property
    def behind(self) -> bool:
        """Whether the manifest lacks anything of the log, of its base or of its members."""
        if self.manifest.position != self._log.position or not self._base_landed or self._closes_incidents:
            return True
        return self.members is not None and self.members.waiting

    @property
    def _closes_incidents(self) -> bool:
        return bool(self.closed_incidents) and any(e in self.closed_incidents for e, _ in self.manifest.incidents)

    @property
    def _base_landed(self) -> bool:
        return self._based_on == self._log.rotations

    @property
    def unshipped(self) -> int:
        """Bytes of log that the manifest does not name yet."""
        return self._log.length - self.manifest.length if self._base_landed else self._log.length

    def lag(self, now: float) -> float:
        """How long the oldest of them has waited, in seconds."""
        return now - self._behind_since if self._behind_since is not None and self.behind else 0.0

    def committed(self, *, awaited: bool) -> None:
        """There is more to carry. It hurries for a caller whom no quorum of members is about to answer."""
        awaited = awaited and not (self.members is not None and self.members.hopeful)
        self._urgent = self._urgent or awaited
        if self._behind_since is None:
            self._behind_since = self._host.clock.monotonic()
        if self._task is None:
            self._task = self._host.loop.create_task(self._fly())
            self._task.add_done_callback(self._landed_or_broken)
        elif self._hurry is not None and (awaited or self.unshipped >= GATHER_BYTES):
            _resolve(self._hurry)

    def hurry(self) -> None:
        """Ship what is behind now: a caller has waited long for its quorum, or it is this leg that is waited for."""
        if not self.behind:
            return
        self._urgent = True
        self.committed(awaited=False)
        if self._hurry is not None:
            _resolve(self._hurry)

    async def flush(self) -> None:
        """Ship until nothing is behind, however long the store takes. Raises what broke the leg, Fenced foremost."""
        self._flushing += 1
        try:
            self.hurry()
            if self._task is not None:
                await asyncio.shield(self._task)
        finally:
            self._flushing -= 1

    def stop(self) -> None:
        """The residency is over. A put on its way may still land; the fence is what makes it harmless."""
        if self._task is not None:
            self._task.cancel()

    async def _fly(self) -> None:
        backoff = BACKOFF_FIRST_SECS
        while self.behind:
            await self._gather()
            try:
                await self._ship_once()
                backoff = BACKOFF_FIRST_SECS
            except BlobError as error:
                self._urgent = self._urgent or self._flights.awaited
                self._host.telemetry.flights.of("store", "failed").add()
                self._host.log.warning("flight.failed", object=self.manifest.object_id, error=str(error))
                await self._host.clock.sleep(self._host.jitter(backoff))
                backoff = min(backoff * 2, BACKOFF_MAX_SECS)
            except Conflict as conflict:
                await self._adopt(conflict)

    async def _adopt(self, conflict: Conflict) -> None:
        """An earlier put of this leg landed after all: go on from where the bucket is. Anything else is a fence."""
        current, tag = await register.read(self._host, self.manifest.object_id)
        if current is not None and current.put_id in self._sent:
            self.manifest, self.tag, self._based_on = current, tag, self._sent[current.put_id]
            if self.members is not None:
                self.members.landed(current)
        elif self.manifest.seq == 0 and current is not None and self._is_void(current):
            self.tag = tag  # a former life's burial, or its last put, came after this birth had looked
        else:
            raise Fenced(str(conflict)) from conflict

    def _is_void(self, current: Manifest) -> bool:
        """Whether it says nothing of this incarnation, and is of no newer owner."""
        mine = self.manifest.incarnation
        return current.epoch < self._epoch and (current.incarnation < mine or current.deleted)

    def _landed_or_broken(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if task.cancelled():
            return
        if (error := task.exception()) is None:
            if self.behind:  # committed in the moment between the last look and this one
                self.committed(awaited=self._flights.awaited)
            return
        if isinstance(error, Fenced):
            self._host.telemetry.fenced.of("manifest").add()
        if self.on_broken is not None:
            self.on_broken(error)

    async def _gather(self) -> None:
        """While nobody waits, let frames gather."""
        if self._urgent or self._flushing or self.unshipped >= GATHER_BYTES or not self._base_landed:
            return
        pace, config = self._host.pace, self._host.config
        rest = pace.rest_secs(config.object_store_interval_ms / 1000, config.object_store_lag_ms / 1000)
        left = rest - self.lag(self._host.clock.monotonic())
        self._hurry = self._host.loop.create_future()
        timer = self._host.loop.call_later(left, _resolve, self._hurry)
        pace.gathering += 1
        try:
            await self._hurry
        finally:
            timer.cancel()
            pace.gathering -= 1
            self._hurry = None

    async def _ship_once(self) -> None:
        """One flight: everything committed by now."""
        began = self._host.clock.monotonic()
        late = self.lag(began) > self._host.config.object_store_lag_ms / 1000
        async with self._host.permits.one(awaited=self._urgent or late):
            self._urgent = False
            if self.members is not None:
                self.members.begin()
            end, rotations, sent = self._log.length, self._log.rotations, self._host.clock.monotonic()
            mark = self._log.mark_at(end)
            reach = Reach(self._log.generation, self._log.start, end, self._log.checksum(end))
            self._host.failpoints.hit("flight.before-segment")
            following = await (self._extend(reach) if self._base_landed else self._rebase(reach))
            if self.members is not None:
                following = self.members.enter(following)
            if self._closes_incidents:
                still_open = tuple(one for one in following.incidents if one[0] not in self.closed_incidents)
                following = manifests.with_incidents(following, still_open)
            self._host.failpoints.hit("flight.before-manifest")
            self._sent[following.put_id] = rotations
            self.tag = await register.put(self._host, following, self.tag)
            if following.generation != self.manifest.generation:
                self._host.untidy(following.object_id)
            self.manifest, self._based_on = following, rotations
            self._behind_since = sent if self.behind else None
            self._sent.clear()
            if self.members is not None:
                self.members.landed(following)
            self._host.failpoints.hit("flight.after-manifest")
        self._host.telemetry.flights.of("store", "landed").add()
        self._host.telemetry.flight_seconds.of("store").observe(self._host.clock.monotonic() - began)
        self._flights.land(mark)
        if self.on_landed is not None:
            self.on_landed()

    async def _extend(self, reach: Reach) -> Manifest:
        """The same base, a longer log: what was the tail and what is new, as the new tail or as a segment."""
        old, stamp = self.manifest, self._stamp()
        segment, tail = await self._carried(reach, old.shipped)
        return manifests.extended(old, stamp, reach, segment=segment, tail=tail)

    async def _rebase(self, reach: Reach) -> Manifest:
        """Another base: the chunks the landed manifest does not name, then all of the log that has grown on it."""
        old, shape = self.manifest, self._log.base
        refs = next_refs(shape.hashes, old.base, reach.generation)
        named = set(old.base)
        base = Base(old.object_id, old.incarnation, refs, shape.size)
        await self._put_chunks(base, [i for i, ref in enumerate(refs) if ref not in named])
        segment, tail = await self._carried(reach, 0)
        self._host.failpoints.hit("rotate.before-manifest")
        return manifests.rotated(old, self._stamp(), reach, base, segment=segment, tail=tail)

    async def _carried(self, reach: Reach, start: int) -> tuple[Segment | None, bytes]:
        """The log from `start` on as a tail if there is room for it, else put as a segment."""
        tail = self._tail.of(start, reach.length)
        return (None, tail) if tail is not None else (await self._put_segment(reach, start), b"")

    async def _put_segment(self, reach: Reach, start: int) -> Segment:
        data = self._log.read(start, reach.length)
        segment = Segment(self._epoch, reach.generation, start, reach.length, blake3(data).digest())
        key = segment_key(self.manifest.object_id, self.manifest.incarnation, segment)
        await self._host.blobs.put(key, data)
        self._host.failpoints.hit("flight.after-segment")
        return segment

    async def _put_chunks(self, base: Base, which: list[int]) -> None:
        assert self.read_chunk is not None
        lacking = iter(which)
        read_chunk = self.read_chunk

        async def some() -> None:
            for index in lacking:
                data = await read_chunk(index)
                await self._host.blobs.put(chunk_key(base.object_id, base.incarnation, base.refs[index]), data)
                self._host.cache.put(base.refs[index].hash, data)
                self._host.failpoints.hit("rotate.after-chunk")

        tasks = [self._host.loop.create_task(some()) for _ in range(min(PUTS_PARALLEL, len(which)))]
        try:
            for task in tasks:
                await task
        finally:
            for task in tasks:
                task.cancel()

    def _stamp(self) -> Stamp:
        return Stamp(self._epoch, self._host.put_id())


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
