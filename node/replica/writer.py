"""Records decided and written in batches: one sync for everything that arrived together (PROTOCOLS section 7).

Whoever wants something of a copy submits a decision. Decisions are taken one after the other, each on the state behind
the one before; what they write goes into the journal as one batch; then all of them are answered. Frames go to their
log file before the record, so that a full disk refuses them while nothing is promised yet.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from domicile.node.clock import Clock
from domicile.node.replica.copies import Copy, CopyFiles
from domicile.node.replica.journal import Journal
from domicile.node.replica.journal_record import Extended, Relabelled
from domicile.node.replica.rules import Message, Work, Write
from domicile.node.wire.messages import Answered, FenceAnswer, Unable
from domicile.node.workers import Job, Workers

INLINE_BYTES_MAX = 32 << 10
INLINE_RECORDS_MAX = 4

Answer = Answered | FenceAnswer
Decision = Callable[[Copy], Answer | Write | Work]


class Item:
    """One thing wanted of one copy; `heard` is told the answer, once.

    `inside`: by what makes it busy; `large`: its frames are in the file, synced.
    """

    __slots__ = ("copy", "decide", "heard", "inside", "large", "peer", "said")

    def __init__(self, copy: Copy, decide: Decision, heard: Callable[[Any], None]) -> None:
        self.copy = copy
        self.decide = decide
        self.heard: Callable[[Any], None] | None = heard
        self.inside = False
        self.large = False
        self.said: Message | None = None
        self.peer = ""

    def resolve(self, answer: Answer) -> None:
        heard, self.heard = self.heard, None
        if heard is not None:
            heard(answer)


class Writer:
    """The only one that adds to the journal. `on_work` is given what takes longer than a record."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        workers: Workers,
        files: CopyFiles,
        journal: Journal,
        *,
        clock: Clock,
        sync_appends: bool,
    ) -> None:
        self._loop = loop
        self._workers = workers
        self._files = files
        self._journal = journal
        self._clock = clock
        self._sync_appends = sync_appends
        self._pending: deque[Item] = deque()
        self._writing: asyncio.Future[None] | None = None
        self.dirty: dict[bytes, Copy] = {}
        self.broken: str | None = None
        self.on_work: Callable[[Item, Work | None], None] = lambda item, work: None
        self.make_room: Callable[[], str | None] = lambda: None
        self.synced: Callable[[float], None] = lambda secs: None
        self.batches = 0
        self._soon = False

    def submit(self, copy: Copy, decide: Decision, *, inside: bool = False, large: bool = False) -> asyncio.Future[Any]:
        """Queue one decision; `pump` after a handful of them. The future gives an answer, it never fails."""
        answer: asyncio.Future[Any] = self._loop.create_future()
        item = Item(copy, decide, partial(_settle, answer))
        item.inside, item.large = inside, large
        self._pending.append(item)
        return answer

    def say(self, copy: Copy, decide: Decision, peer: str, message: Message, heard: Callable[[Any], None]) -> None:
        """The same for an owner's message, which may turn out to be long work; `heard` is told the answer."""
        item = Item(copy, decide, heard)
        item.said, item.peer = message, peer
        self._pending.append(item)

    def queue(self, item: Item) -> None:
        self._pending.append(item)

    def free(self, copy: Copy) -> None:
        """The copy is busy no more: what waited for it comes first."""
        copy.busy = False
        self._pending.extendleft(reversed(copy.waiting))
        copy.waiting.clear()
        self.pump_soon()

    def pump_soon(self) -> None:
        """At the end of this turn of the loop, together with what else comes in it."""
        if not self._soon:
            self._soon = True
            self._loop.call_soon(self._pump_now)

    def _pump_now(self) -> None:
        self._soon = False
        self.pump()

    @property
    def idle(self) -> bool:
        """No batch is on its way: every state is the one behind a durable record."""
        return self._writing is None

    @property
    def quiet(self) -> bool:
        """Nothing is pending either."""
        return self._writing is None and not self._pending

    def pump(self) -> None:
        """Decide what is pending and write it; goes on by itself until nothing is."""
        while self._pending and self._writing is None:
            batch, sync = self._decide()
            if self._journal.gathered:
                self._write(batch, sync)
            elif batch:
                _answer(batch)
            elif self._pending and not self._room():
                return

    def _room(self) -> bool:
        """The ring is full. True when something changed: pending ones were refused, or there is room again."""
        refused = self.make_room()
        if refused is None:
            return False
        for item in self._pending:
            item.resolve(Unable(refused))
        self._pending.clear()
        return True

    def _decide(self) -> tuple[list[tuple[Item, Answer]], bool]:
        batch: list[tuple[Item, Answer]] = []
        cut: set[bytes] = set()
        sync = False
        while self._pending:
            item = self._pending[0]
            copy = item.copy
            if copy.busy and not item.inside:
                copy.waiting.append(self._pending.popleft())
                continue
            if self.broken is not None:
                batch.append((self._pending.popleft(), Unable(self.broken)))
                continue
            try:
                verdict = item.decide(copy)
                if isinstance(verdict, Write):
                    answer = self._add(item, verdict, cut)
                    if answer is None:
                        break
                    change = verdict.change
                    sync = sync or self._sync_appends or not isinstance(change, Extended)
                    verdict = answer
            except OSError as error:
                verdict = Unable(f"disk: {error}")
            self._pending.popleft()
            if isinstance(verdict, Work):
                self.on_work(item, verdict)
            elif verdict is not _LARGE:
                batch.append((item, verdict))
        return batch, sync

    def _add(self, item: Item, write: Write, cut: set[bytes]) -> Answer | None:
        """Put the record into the batch: the answer for when it is durable, or None: not in this batch."""
        copy, change = item.copy, write.change
        frames: bytes | memoryview = b""
        if isinstance(change, Extended):
            frames = change.frames
            if item.large:
                change = change._replace(frames=b"")
            elif len(frames) > self._journal.record_bytes_max:
                self.on_work(item, None)
                return _LARGE
            elif copy.object_id in cut:
                return None  # the file's bytes behind the cut are needed until the cut is durable
            else:
                assert copy.state is not None
                assert copy.state.held is not None
                self._files.write_log(copy.object_id, copy.state.held.log, change.offset, frames)
        elif isinstance(change, Relabelled):
            cut.add(copy.object_id)
        sequence = self._journal.add(copy.object_id, change)
        if sequence is None:
            return None
        copy.adopt(change, sequence, frames)
        self.dirty[copy.object_id] = copy
        return write.answer

    def _write(self, batch: list[tuple[Item, Answer]], sync: bool) -> None:
        self.batches += 1
        began = self._clock.monotonic() if sync else None
        small = self._journal.gathered <= INLINE_BYTES_MAX and len(batch) <= INLINE_RECORDS_MAX
        if small or not sync:
            error = self._try_write(sync)
            self._measure(began)
            self._landed(batch, error)
            return
        self._writing = self._loop.create_future()
        self._workers.then(partial(self._try_write, sync), partial(self._written, batch, began))

    def _written(self, batch: list[tuple[Item, Answer]], began: float | None, job: Job[str | None]) -> None:
        writing, self._writing = self._writing, None
        self._measure(began)
        self._landed(batch, job.result())
        self.pump()
        if writing is not None and not writing.done():
            writing.set_result(None)

    def _measure(self, began: float | None) -> None:
        """A write with a sync is over; `synced` is told how long it took, in seconds."""
        if began is not None:
            self.synced(self._clock.monotonic() - began)

    def _try_write(self, sync: bool) -> str | None:
        try:
            self._journal.write(sync=sync)
        except OSError as error:
            return f"the journal failed: {error}"
        return None

    def _landed(self, batch: list[tuple[Item, Answer]], error: str | None) -> None:
        if error is not None:
            # What is on the platter now only a new start can tell; until then nothing is promised.
            self.broken = error
            batch = [(item, Unable(error)) for item, _ in batch]
        _answer(batch)
        if error is None and self._journal.checkpoint_due:
            self.make_room()

    async def settled(self) -> None:
        """Wait for the batch that is on its way."""
        if self._writing is not None:
            await self._writing


_LARGE = Unable("its frames are on their way to the file")


def _settle(future: asyncio.Future[Any], answer: Answer) -> None:
    if not future.done():
        future.set_result(answer)


def _answer(batch: list[tuple[Item, Answer]]) -> None:
    for item, answer in batch:
        item.resolve(answer)
