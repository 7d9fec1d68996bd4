"""Before journal space is reused, the files behind its records are synced: the low mark rises (PROTOCOLS section 7).

All copies that changed, in two sync passes in a thread: first logs, bases and the new states beside the old ones, then,
after the renames, the directories. Files that no durable state names are removed last.
"""

from __future__ import annotations

import asyncio

from domicile.node.clock import Clock
from domicile.node.replica.copies import Copy, CopyFiles
from domicile.node.replica.journal import Journal, Mark
from domicile.node.replica.state import Meta, files_of
from domicile.node.replica.writer import Writer
from domicile.node.workers import Workers

RETRY_SECS = 1.0


class Checkpoint:
    """One at a time. `failed` says why the last one did not come about."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        workers: Workers,
        clock: Clock,
        files: CopyFiles,
        journal: Journal,
        writer: Writer,
    ) -> None:
        self._loop = loop
        self._workers = workers
        self._clock = clock
        self._files = files
        self._journal = journal
        self._writer = writer
        self._running: asyncio.Task[None] | None = None
        self._retry_at = 0.0
        self.holds: set[Copy] = set()
        self.saving: set[Copy] = set()
        self.failed: str | None = None
        self.passes = 0

    def want(self) -> str | None:
        """Start one if none runs and none is held up. Why not, when the disk refused the last and it is too early."""
        if self._running is not None or self._held_up() or not self._writer.idle:
            return None
        if self.failed is not None and self._clock.monotonic() < self._retry_at:
            return self.failed
        self._begin()
        return None

    def _held_up(self) -> bool:
        """A copy is being handed over: until it has arrived only the journal may say so."""
        self.holds = {c for c in self.holds if c.busy or (c.state is not None and c.state.handover is not None)}
        return bool(self.holds)

    async def run(self) -> None:
        """Wait for one that covers everything answered so far. Raises OSError when the disk refuses it."""
        while self._running is not None or not self._writer.idle:
            if self._running is not None:
                await asyncio.wait([self._running])
            await self._writer.settled()
        if self._held_up():
            raise OSError("a copy is on its way to its object's own directory")
        await self._begin()
        if self.failed is not None:
            raise OSError(self.failed)

    def _begin(self) -> asyncio.Task[None]:
        """Nothing is on its way to the journal: every state is the one behind a durable record."""
        dirty, self._writer.dirty = self._writer.dirty, {}
        metas = [Meta(copy.object_id, copy.applied, copy.state) for copy in dirty.values()]
        mark = self._journal.next
        self.saving = set(dirty.values())
        self._running = self._loop.create_task(self._run(dirty, metas, mark))
        return self._running

    async def _run(self, dirty: dict[bytes, Copy], metas: list[Meta], mark: Mark) -> None:
        error = await self._workers.run(lambda: self._try(metas, mark))
        self._running = None
        self.saving = set()
        self.failed = error
        if error is None:
            self.passes += 1
            self._remove_gone(dirty, metas)
        else:
            self._writer.dirty = dirty | self._writer.dirty
            self._retry_at = self._clock.monotonic() + RETRY_SECS
        self._writer.pump()

    def _try(self, metas: list[Meta], mark: Mark) -> str | None:
        try:
            self._sync(metas)
            self._journal.lower(mark)
            for meta in metas:
                if meta.state is not None:
                    self._files.remove_unnamed(meta.object_id, meta.state)
        except OSError as error:
            return f"disk: {error}"
        return None

    def _sync(self, metas: list[Meta]) -> None:
        files, contents = self._files, []
        for meta in metas:
            contents += [files.path(meta.object_id, number) for number in sorted(files_of(meta.state))]
            contents.append(files.store_beside(meta))
        files.disk.sync_many(contents)
        for meta in metas:
            files.swap_meta(meta.object_id)
        files.disk.sync_many([*(files.directory(meta.object_id) for meta in metas), files.root])

    def _remove_gone(self, dirty: dict[bytes, Copy], metas: list[Meta]) -> None:
        """On the loop, so that no next life of the object begins meanwhile."""
        for meta in metas:
            copy = dirty[meta.object_id]
            if copy.state is None and copy.at_rest:
                self._files.disk.remove_dir(self._files.directory(meta.object_id))

    async def close(self) -> None:
        if self._running is not None:
            await asyncio.wait([self._running])
