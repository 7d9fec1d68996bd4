"""The copies this node keeps of objects it does not own: the server side of replication (PROTOCOLS sections 5 and 7).

An owner's messages, a takeover's fence, and what this node itself wants of a copy (let it go, become home) all pass
through one writer: decided by pure rules on the present state, written to one journal with one sync for everything that
arrived together, then answered. What is answered is on the disk: positions, and fences before all.
"""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

from blake3 import blake3

from domicile.node.clock import Clock
from domicile.node.disk import Disk
from domicile.node.errors import BlobMissing, Corrupt
from domicile.node.replica.checkpoint import Checkpoint
from domicile.node.replica.copies import Copy, CopyFiles
from domicile.node.replica.copy_view import CopyView
from domicile.node.replica.journal import Journal
from domicile.node.replica.journal_record import Gone
from domicile.node.replica.leaving import Leaving
from domicile.node.replica.recovery import open_copies
from domicile.node.replica.rules import Message, Work, Write, fence_answer, raised
from domicile.node.replica.staging import ClaimStands, Source, Stager
from domicile.node.replica.state import State, apply
from domicile.node.replica.work import LongWork, Outside
from domicile.node.replica.writer import Answer, Writer
from domicile.node.takeover.own_copy import Files
from domicile.node.wire.messages import (
    Answered,
    Dropped,
    Elsewhere,
    Fence,
    FenceAnswer,
    FetchChunk,
    FetchLog,
    Incident,
    Unable,
)
from domicile.node.workers import Workers
from domicile.placement.records import Epoch, ObjectKey, Position

COPIES_KNOWN_MAX = 4096
LOOKED_AT_MAX = 512


@dataclass(slots=True)
class Surroundings:
    """What the copies need. `root` is DATA/replicas, `lost` DATA/lost; `claim_stands` reads a lease row."""

    loop: asyncio.AbstractEventLoop
    disk: Disk
    workers: Workers
    clock: Clock
    rng: random.Random
    source: Source
    claim_stands: ClaimStands
    root: str
    lost: str
    journal_bytes: int
    sync_appends: bool = True
    report_lost: Callable[[str, Epoch], None] = lambda object_id, epoch: None


class Replicas:
    """All copies of one node. Use `open`."""

    def __init__(self, around: Surroundings, journal: Journal, known: dict[bytes, Copy]) -> None:
        self._around = around
        self._files = CopyFiles(around.disk, around.root)
        self._journal = journal
        self._copies = OrderedDict(known)
        self._to_look_at: list[bytes] = []
        self._opened_at = around.clock.monotonic()
        loop, workers = around.loop, around.workers
        self.writer = Writer(loop, workers, self._files, journal, clock=around.clock, sync_appends=around.sync_appends)
        self.checkpoints = Checkpoint(loop, workers, around.clock, self._files, journal, self.writer)
        outside = Outside(around.claim_stands, around.lost, around.report_lost)
        stager = Stager(self._files, workers, around.source)
        self._work = LongWork(loop, workers, self._files, self.writer, stager, outside)
        self._leaving = Leaving(self._files, workers, self.writer, self.checkpoints, self._work)
        self.writer.on_work = self._work.begin
        self.writer.make_room = self.checkpoints.want
        self.writer.dirty = dict(known)

    @classmethod
    async def open(cls, around: Surroundings) -> Replicas:
        """What is on the disk, recovered. A directory without its journal is another copy: it begins empty.

        Raises OSError when there is no room (then this node is no replica), Corrupt when the journal is rotten.
        """
        journal, known = await around.workers.run(
            partial(open_copies, around.disk, around.root, around.journal_bytes, around.rng)
        )
        return cls(around, journal, known)

    @property
    def copy_id(self) -> str:
        """The member this directory is: 32 hex digits."""
        return self._journal.copy_id

    @property
    def healthy(self) -> bool:
        """Whether a message would be taken now, as far as is known."""
        return self.writer.broken is None and self.checkpoints.failed is None

    def on_synced(self, told: Callable[[float], None]) -> None:
        """`told` gets the seconds of every sync pass."""
        self.writer.synced = told

    @property
    def syncs(self) -> int:
        """Syncs of the journal so far: one for each batch."""
        return self._journal.syncs

    # What owners say, and what takeovers ask.

    def take(self, said: Sequence[tuple[str, Message, Callable[[Answered], None]]]) -> None:
        """What arrived together, each with its speaker's address and who is told the answer, once; one sync pass for
        all of it.

        A base's answer comes when it is the copy; what else comes for the object meanwhile is answered `staging`.
        """
        now = self._around.clock.monotonic()
        self._forget_some()
        for peer, message, heard in said:
            copy = self._copy(message.object_id, now)
            self.writer.say(copy, partial(self._work.decide, message), peer, message, heard)
        self.writer.pump()

    async def fence(self, fence: Fence) -> FenceAnswer:
        """Raise the fence, durably, then say what is held. Raises OSError when that cannot be made durable."""
        answer = await self._decided(fence.object_id, lambda copy: self._fenced(fence, copy))
        if isinstance(answer, Unable):
            raise OSError(answer.why)
        assert isinstance(answer, FenceAnswer)
        await self._folded(self._copy(fence.object_id))
        return answer

    async def _folded(self, copy: Copy) -> None:
        """Finish a fold whose record outlived its process, or a full disk: until then the base is not to be had."""
        if copy.state is None or copy.state.unfolded is None:
            return
        await self._work.be_alone(copy)
        try:
            await self._work.finish_fold(copy)
        finally:
            self.writer.free(copy)

    def _fenced(self, fence: Fence, copy: Copy) -> Answer | Write:
        if copy.unreadable:
            return FenceAnswer("", None, None)
        change = raised(copy.state, fence)
        after = apply(copy.state, change) if change is not None else copy.state
        answer = fence_answer(self.copy_id, after, fence, copy.digest)
        return Write(change, answer) if change is not None else answer  # type: ignore[arg-type]

    async def fetch_log(self, fetch: FetchLog) -> bytes:
        """Raises BlobMissing when the copy is of another generation, or shorter."""
        copy = self._copy(fetch.object_id)
        state = copy.state
        held = state.held if state is not None else None
        asked = (fetch.incarnation, fetch.generation)
        if held is None or state is None or (state.incarnation, held.generation) != asked:
            raise BlobMissing(f"object {fetch.object_id.hex()}: no copy of generation {fetch.generation} here")
        if not 0 <= fetch.start <= fetch.end <= held.length:
            raise BlobMissing(f"object {fetch.object_id.hex()}: the copy's log has {held.length} bytes")
        read = partial(self._files.read_log, fetch.object_id, held, fetch.start, fetch.end)
        return await self._read(fetch.object_id, read)

    async def fetch_chunk(self, fetch: FetchChunk) -> bytes:
        """A chunk, verified. Raises BlobMissing (the copy's base is another), Corrupt (it has rotted), OSError."""
        copy = self._copy(fetch.object_id)
        await self._folded(copy)
        state = copy.state
        held = state.held if state is not None else None
        if held is None or state is None or state.unfolded or fetch.hash not in held.base.hashes:
            raise BlobMissing(f"object {fetch.object_id.hex()}: no copy with that chunk here")
        index = held.base.hashes.index(fetch.hash)
        data = await self._read(fetch.object_id, partial(self._files.read_chunk, fetch.object_id, held.base, index))
        if blake3(data).digest() != fetch.hash:
            raise Corrupt(f"object {fetch.object_id.hex()}: chunk {index} of the copy's base has another content")
        return data

    async def _read(self, object_id: bytes, work: Callable[[], bytes]) -> bytes:
        try:
            return await self._around.workers.run(work)
        except OSError as error:
            raise BlobMissing(f"object {object_id.hex()}: {error}") from error

    async def dropped(self, dropped: Dropped) -> None:
        """The object was deleted: a copy, stub and fence of before its next life go."""

        def decision(copy: Copy) -> Answered | Write:
            if copy.state is None or copy.state.incarnation >= dropped.incarnation:
                return Elsewhere(None)
            return Write(Gone(), Elsewhere(None))

        await self._decided(dropped.object_id, decision)

    # What this node wants of a copy.

    def copy(self, object_id: str) -> CopyView | None:
        """The copy as it is now, for reading: close it soon. None where there is none, or it is being changed."""
        copy = self._copy(bytes.fromhex(object_id))
        state = copy.state
        if state is None or state.held is None or state.unfolded is not None or copy.busy:
            return None
        return CopyView(self._files, copy)

    def state_of(self, object_id: str) -> State | None:
        """What is known of the copy, its stub and its fence, by the last record written; None: nothing."""
        return self._copy(bytes.fromhex(object_id)).state

    def idle(self, secs: float) -> list[str]:
        """Some of the objects whose copies nothing was said to for so long, or since the start: let them go if you can.

        Each call looks at a bounded number of directories, and goes on where the last one stopped.
        """
        before = self._around.clock.monotonic() - secs
        if self._opened_at > before:
            return []
        if not self._to_look_at:
            self._to_look_at = self._files.object_ids()
        looked_at = self._to_look_at[-LOOKED_AT_MAX:]
        del self._to_look_at[-LOOKED_AT_MAX:]
        return [object_id.hex() for object_id in looked_at if self._is_idle(object_id, before)]

    def _is_idle(self, object_id: bytes, before: float) -> bool:
        copy = self._copies.get(object_id)
        if copy is not None:
            return copy.used <= before and copy.state is not None and copy.state.held is not None
        meta = self._files.load(object_id)
        return meta is not None and meta.state is not None and meta.state.held is not None

    async def let_go(self, object_id: str, covered: Position, incidents: Sequence[Incident] = ()) -> bool:
        """Leave a stub of a copy that the manifest, at `covered`, has all of. False: it has not, or there is none.

        What an open incident may want is kept first. Raises OSError.
        """
        return await self._leaving.let_go(self._copy(bytes.fromhex(object_id)), covered, incidents)

    async def promote(self, key: ObjectKey, epoch: Epoch, files: Files) -> Position | None:
        """This node is home under `epoch`: the copy, synced, moves to the object's own directory; a stub stays.

        Gives its position, or None: there is no copy, or `epoch` is fenced. Nothing of the object may be open. Raises
        OSError; asked again, or at the next start, it goes on where it stopped.
        """
        return await self._leaving.promote(self._copy(bytes.fromhex(key.id)), key, epoch, files)

    async def checkpoint(self) -> None:
        """Bring all files up to what was answered, and give the journal's space back. Raises OSError."""
        await self.checkpoints.run()

    async def close(self) -> None:
        """Nothing that was answered is lost by it; what is on its way is not answered."""
        await self._work.close()
        await self.checkpoints.close()
        await self.writer.settled()
        self._journal.close()

    async def _decided(self, object_id: bytes, decision: Callable[[Copy], Answer | Write | Work]) -> Answer:
        done = self.writer.submit(self._copy(object_id), decision)
        self.writer.pump_soon()
        answer: Answer = await done
        return answer

    def _copy(self, object_id: bytes, now: float | None = None) -> Copy:
        copy = self._copies.get(object_id)
        if copy is None:
            copy = self._copies[object_id] = Copy(self._files, object_id, self._files.load(object_id))
        else:
            self._copies.move_to_end(object_id)
        if now is not None:
            copy.used = now
        return copy

    def _forget_some(self) -> None:
        """Copies at rest are read again when they are wanted."""
        excess = len(self._copies) - COPIES_KNOWN_MAX
        if excess <= 0 or not self.writer.quiet:
            return
        for object_id in list(islice(self._copies, excess + COPIES_KNOWN_MAX // 16)):
            copy = self._copies[object_id]
            if copy.at_rest and object_id not in self.writer.dirty and copy not in self.checkpoints.saving:
                del self._copies[object_id]
