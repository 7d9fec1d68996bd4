"""What a replica does that takes longer than a record: folds, staged bases, large appends, keeping what may be wanted.

Each ends with a decision of its own, taken anew on the state of that moment: a fence may have been raised meanwhile.
While a copy is busy its later messages wait; staging alone goes on beside them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from domicile.node.errors import NodeError
from domicile.node.replica.copies import Copy, CopyFiles
from domicile.node.replica.fold import patch, verify
from domicile.node.replica.handover import keep_lost
from domicile.node.replica.journal_record import Extended, Folded, Relabelled
from domicile.node.replica.rules import Message, Work, Write, as_base, at_stake, decide
from domicile.node.replica.staging import ClaimStands, Stager
from domicile.node.replica.writer import Item, Writer
from domicile.node.wire.messages import Answered, Elsewhere, Fold, Holds, Incident, NewBase, Relabel, Unable
from domicile.node.workers import Workers
from domicile.placement.records import Epoch
from domicile.placement.store import StoreUnavailable


@dataclass(slots=True)
class Outside:
    """What long work needs besides the files."""

    claim_stands: ClaimStands
    lost_dir: str
    report_lost: Callable[[str, Epoch], None]
    interrupt_secs: float = 1.0


class LongWork:
    """Runs as tasks; `close` ends them."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        workers: Workers,
        files: CopyFiles,
        writer: Writer,
        stager: Stager,
        outside: Outside,
    ) -> None:
        self._loop = loop
        self._workers = workers
        self._files = files
        self._writer = writer
        self._stager = stager
        self._outside = outside
        self._tasks: set[asyncio.Task[Any]] = set()

    def decide(self, message: Message, copy: Copy) -> Answered | Write | Work:
        """The rules' verdict on one message, where nothing of an open incident is at stake."""
        if copy.state is not None and copy.state.unfolded is not None:
            return Work.FOLD
        verdict = decide(copy.state, message, copy.agreed)
        if isinstance(verdict, Elsewhere) and verdict.position is None and copy.state is not None:
            copy.doubted = copy.state.held is not None and copy.state.incarnation == message.incarnation
        if isinstance(verdict, Elsewhere) and copy.in_birth:
            return Work.WAIT
        if isinstance(verdict, Elsewhere) and copy.staging is not None:
            return Elsewhere(verdict.position, staging=True)
        if isinstance(verdict, Write) and isinstance(verdict.change, Relabelled) and isinstance(message, Relabel):
            return Work.SAVE if at_stake(copy.state, message.length, message.incidents) else verdict
        return verdict

    def begin(self, item: Item, work: Work | None) -> None:
        """Start what `decide` called for; None: the item's frames are too large for a record."""
        copy, message = item.copy, item.said
        assert message is not None
        if work is Work.WAIT:
            copy.waiting.append(item)
            return
        if work is Work.STAGE:
            assert isinstance(message, NewBase | Fold)
            self._begin_staging(item, as_base(message))
            return
        copy.busy = True
        if copy.state is not None and copy.state.unfolded is not None:
            self._start(self._go_on_folding(item))
        elif work is Work.FOLD:
            self._start(self._fold(item))
        elif work is Work.SAVE:
            self._start(self._save_and_go_on(item))
        else:
            self._start(self._large(item))

    async def close(self) -> None:
        """Nothing half done is wrong: it is begun again, or swept away."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _start(self, work: Awaitable[None]) -> asyncio.Task[None]:
        task: asyncio.Task[None] = self._loop.create_task(work)  # type: ignore[arg-type]
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _answer(self, item: Item, done: asyncio.Future[Answered]) -> None:
        self._writer.pump_soon()
        item.resolve(await done)

    async def _large(self, item: Item) -> None:
        """Its frames go into the file and are synced there; the record only names them."""
        copy = item.copy
        try:
            verdict = item.decide(copy)
            if isinstance(verdict, Write) and isinstance(verdict.change, Extended):
                await self._workers.run(partial(self._put_synced, copy, verdict.change))
            await self._answer(item, self._writer.submit(copy, item.decide, inside=True, large=True))
        except OSError as error:
            item.resolve(Unable(f"disk: {error}"))
        finally:
            self._writer.free(copy)

    def _put_synced(self, copy: Copy, change: Extended) -> None:
        assert copy.state is not None
        assert copy.state.held is not None
        number = copy.state.held.log
        self._files.write_log(copy.object_id, number, change.offset, change.frames)
        directory = self._files.directory(copy.object_id)
        self._files.disk.sync_many([self._files.path(copy.object_id, number), directory, self._files.root])

    async def _fold(self, item: Item) -> None:
        copy, message = item.copy, item.said
        assert isinstance(message, Fold)
        try:
            await self._readers_gone(copy)
            assert copy.state is not None
            assert copy.state.held is not None
            number = copy.state.files + 1
            base = await self._workers.run(partial(verify, self._files, copy.state.held, message, number + 1))
            if base is None:
                self._begin_staging(item, as_base(message))
                return
            owner = (message.epoch, message.generation, message.length, message.to)
            write = Write(Folded(*owner, base, number), Holds(message.incarnation, message.to, 0))
            done = self._writer.submit(copy, partial(_again, message, Work.FOLD, write), inside=True)
            self._writer.pump_soon()
            answer = await done
            if isinstance(answer, Holds):
                await self.finish_fold(copy)
            item.resolve(answer)
        except OSError as error:
            item.resolve(Unable(f"disk: {error}"))
        finally:
            self._writer.free(copy)

    async def _go_on_folding(self, item: Item) -> None:
        """One that a full disk stopped after its record was written."""
        try:
            await self.finish_fold(item.copy)
            self._writer.queue(item)
        except OSError as error:
            item.resolve(Unable(f"disk: {error}"))
        finally:
            self._writer.free(item.copy)

    async def finish_fold(self, copy: Copy) -> None:
        """Make the base what the state calls it, if it is not. Raises OSError; the next attempt goes on."""
        state = copy.state
        if state is None or state.held is None or state.unfolded is None:
            return
        await self._workers.run(partial(patch, self._files, copy.object_id, state.held.base, state.unfolded))
        copy.folded()
        self._writer.dirty[copy.object_id] = copy

    async def _readers_gone(self, copy: Copy) -> None:
        """A base is not changed beneath a reader; one that stays for a second is interrupted."""
        if not copy.views:
            return
        copy.views_gone = self._loop.create_future()
        timer = self._loop.call_later(self._outside.interrupt_secs, lambda: [view.interrupt() for view in copy.views])
        try:
            await copy.views_gone
        finally:
            timer.cancel()
            copy.views_gone = None

    async def _save_and_go_on(self, item: Item) -> None:
        """A relabel that cuts what an open incident may want."""
        copy, message = item.copy, item.said
        assert isinstance(message, Relabel)
        try:
            await self.keep_at_stake(copy, message.incidents, message.length)
            await self._answer(item, self._writer.submit(copy, partial(_again, message, None, None), inside=True))
        except OSError as error:
            item.resolve(Unable(f"disk: {error}"))
        finally:
            self._writer.free(copy)

    async def keep_at_stake(self, copy: Copy, incidents: Sequence[Incident], kept: int) -> None:
        """Before all but the first `kept` bytes of its log go: what an open incident may want. Raises OSError."""
        epochs, state = at_stake(copy.state, kept, incidents), copy.state
        if not epochs or state is None:
            return
        await self._workers.run(partial(keep_lost, self._files, self._outside.lost_dir, copy.object_id, state, epochs))
        for epoch in epochs:
            self._outside.report_lost(copy.object_id.hex(), epoch)

    def _begin_staging(self, item: Item, base: NewBase) -> None:
        copy = item.copy
        if copy.staging is not None:
            position = copy.state.position if copy.state is not None else None
            item.resolve(Elsewhere(position, staging=True))
            return
        copy.in_birth = not base.hashes and not base.start
        copy.staging = self._start(self._stage(item, base))

    async def _stage(self, item: Item, base: NewBase) -> None:
        copy, state = item.copy, item.copy.state
        try:
            known = state is not None and (state.held is not None or state.stub is not None)
            if not known and not await self._outside.claim_stands(copy.object_id.hex(), base.epoch):
                item.resolve(Unable("the lease row names another claim"))
                return
            await self._stager.pull(copy, base, item.peer)
            await self._swap(item, base)
        except (NodeError, OSError, StoreUnavailable) as error:
            item.resolve(Unable(f"the base could not be staged: {error}"))
        finally:
            copy.staging, copy.in_birth = None, False
            if not copy.busy:
                self._writer.free(copy)

    async def _swap(self, item: Item, base: NewBase) -> None:
        """The staged files are the copy by one record, if the rules still want them."""
        copy = item.copy
        await self.be_alone(copy)
        try:
            await self._readers_gone(copy)
            verdict = decide(copy.state, base, copy.agreed)
            if verdict is not Work.STAGE:
                await self._answer(item, self._writer.submit(copy, partial(_again, base, None, None), inside=True))
                return
            await self.keep_at_stake(copy, base.incidents, 0)
            place = partial(self._stager.place, copy, base)
            change = await self._workers.run(place) if base.hashes or base.start else place()
            write = Write(change, Holds(base.incarnation, base.generation, base.start))
            done = self._writer.submit(copy, partial(_again, base, Work.STAGE, write), inside=True)
            await self._answer(item, done)
        finally:
            self._writer.free(copy)

    async def be_alone(self, copy: Copy) -> None:
        """The copy is this task's until `Writer.free`: what else comes for it waits. Raises OSError."""
        taken: asyncio.Future[Answered] = self._writer.submit(copy, _take)
        self._writer.pump_soon()
        answer = await taken
        if isinstance(answer, Unable):
            raise OSError(answer.why)


def _take(copy: Copy) -> Answered:
    """A decision that makes its copy busy: it waits itself while somebody else has it."""
    copy.busy = True
    return Elsewhere(None)


def _again(message: Message, wanted: Work | None, write: Write | None, copy: Copy) -> Answered | Write:
    """The rules once more: `write` if they still call for `wanted`."""
    verdict = decide(copy.state, message, copy.agreed)
    if verdict is wanted and write is not None:
        return write
    if isinstance(verdict, Work):
        return Elsewhere(copy.state.position if copy.state is not None else None)
    return verdict
