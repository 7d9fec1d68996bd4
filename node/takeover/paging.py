"""An object's base that is laid in pages: chunks on first touch, the rest in the background (PROTOCOLS section 5).

What is missing is known to one bitmap. A thread that touches a missing chunk waits for the loop to fetch it, so **until
the base is whole no SQL of the object runs on the loop**: calls of `async def` methods and alarms wait for that. A
chunk that cannot be had fails the call that needs it, by name, and is tried again; the residency goes on.

Until its last byte is there and synced, and the sidecar says so, the file is no copy and is not rotated.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress

from domicile.errors import NotServing
from domicile.node.chunks import FETCHES_PARALLEL, Base
from domicile.node.errors import BlobMissing, BlobUnavailable, Corrupt, Ended, NodeError
from domicile.node.host import Host
from domicile.node.sqlite.live_bytes import StorageFailed
from domicile.node.sqlite.paged_vfs import PagedVfs, PageUnavailable
from domicile.node.sqlite.wal import CHUNK_BYTES

LOOK_SECS = 0.05  # how late a thread that waits for a page learns that its call is out of time
CALLS_MAX = 2  # times as long as a call may take: a wait for a page that nobody watches ends all the same
FIRST_CALL_SECS = 0.05  # the call that woke the object has loop and store to itself so long
RETRY_FIRST_SECS, RETRY_MAX_SECS = 0.1, 5.0
LOST_RETRY_SECS = 15.0  # what the store has lost is back only if somebody brings it


class PagedBase:
    """One base, `base.size` bytes at `path`, sized and empty. Made before the file is opened; closed after it is.

    `whole`: every byte is there. `settled`: and synced, and recorded. `lost`: the store no longer has what is missing.
    All of it belongs to the loop, but for `need` and `close`. Whoever opens the file sets `given_up`, which tells the
    thread of a call that it need not wait any longer, and `record`, which makes a copy of a file that is whole and
    synced.
    """

    def __init__(self, host: Host, base: Base, path: str, fetch: Callable[[int], Awaitable[bytes]]) -> None:
        """`fetch` gives a chunk, verified. Raises NodeError."""
        self._host = host
        self._base = base
        self._fetch = fetch
        # Held open from before the connection to after it: closing any other descriptor drops SQLite's locks.
        self._file = host.disk.open_journal(path, base.size)
        self._have = bytearray(len(base.refs))
        self._coming: dict[int, asyncio.Task[None]] = {}
        self._touched = 0
        self._calm = asyncio.Event()
        self._calm.set()
        self._hurry = asyncio.Event()
        self._loop_thread = threading.get_ident()
        self._filled = host.loop.create_future()
        self._filling: asyncio.Task[None] | None = None
        self._settling: asyncio.Task[None] | None = None
        self._trouble: tuple[int, NodeError] | None = None
        self._told = False
        self.vfs = PagedVfs(host.disk.vfs or "", self)
        self.given_up: Callable[[], bool] = lambda: False
        self.record: Callable[[], None] = lambda: None
        self.whole = self.settled = self.lost = self._over = self._closed = False

    # On the loop.

    def start(self, settled: Callable[[], None], broken: Callable[[Exception], None]) -> None:
        """Fill what is missing, then tell `settled`, or `broken` what the disk did."""

        def ended(task: asyncio.Task[None]) -> None:
            if task.cancelled():
                return
            error = task.exception()
            if isinstance(error, Exception):
                broken(error)
            else:
                settled()

        self._filling = self._host.loop.create_task(self._fill())
        self._filling.add_done_callback(ended)

    async def want(self, index: int) -> None:
        """Return once the chunk is on the disk. Raises BlobMissing, Corrupt, BlobUnavailable, StorageFailed,
        Ended."""
        if self.whole or self._have[index]:  # whole, it may have grown
            return
        if self._over:
            raise Ended("the residency ended")
        coming = self._coming.get(index)
        if coming is None:
            coming = self._coming[index] = self._host.loop.create_task(self._bring(index))
            coming.add_done_callback(lambda done: self._came(index, done))
        await asyncio.shield(coming)

    async def refusal(self) -> NotServing | None:
        """For what runs on the loop, and cannot wait there for a page: None once the base is whole.

        Else, after `OBJECT_CALL_SECS`, what it lacks. Calls behind wait too: they run in arrival order.
        """
        self._hurry.set()
        try:
            await asyncio.wait_for(asyncio.shield(self._filled), self._host.config.object_call_secs)
        except TimeoutError:
            why = _told(*self._trouble) if self._trouble is not None else "it is still on its way"
            return NotServing(f"the object's base is not whole: {why}")
        return None

    async def stop(self) -> None:
        """Nothing is fetched or recorded any more once this returns."""
        self._over = True
        if self._filling is not None:
            self._filling.cancel()
        for coming in self._coming.values():
            coming.cancel()
        under_way = [task for task in (self._filling, self._settling, *self._coming.values()) if task is not None]
        if under_way:
            await asyncio.wait(under_way)

    async def drop(self) -> None:
        """It will not be opened."""
        await self.stop()
        self.close()

    async def _bring(self, index: int) -> None:
        data = await self._fetch(index)
        try:
            self._file.write(index * CHUNK_BYTES, [data], sync=False)
        except OSError as error:
            raise StorageFailed(f"object {self._base.object_id}: chunk {index} of its base: {error}") from error
        self._have[index] = 1
        if all(self._have):
            self.whole = True
            self._filled.set_result(None)

    def _came(self, index: int, task: asyncio.Task[None]) -> None:
        del self._coming[index]
        if not task.cancelled():
            task.exception()  # told to those who wait, who may be gone

    async def _fill(self) -> None:
        pause, began = RETRY_FIRST_SECS, self._host.clock.monotonic()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._hurry.wait(), FIRST_CALL_SECS)
        while not self.whole:
            self._trouble, had = None, sum(self._have)
            lacking = iter([index for index, here in enumerate(self._have) if not here])
            tasks = [self._host.loop.create_task(self._fill_some(lacking)) for _ in range(FETCHES_PARALLEL)]
            try:
                await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()
            if not self.whole:
                pause = RETRY_FIRST_SECS if sum(self._have) > had else pause
                self._tell()
                with suppress(TimeoutError):  # calls may bring what this could not
                    again = self._host.jitter(LOST_RETRY_SECS if self.lost else pause)
                    await asyncio.wait_for(asyncio.shield(self._filled), again)
                pause = min(2 * pause, RETRY_MAX_SECS)
        self._settling = self._host.loop.create_task(self._host.workers.run(self._settle))
        await asyncio.shield(self._settling)
        self.settled, self.lost = True, False
        took = self._host.clock.monotonic() - began
        self._host.log.info("base.whole", object=self._base.object_id, chunks=len(self._have), secs=round(took, 3))

    def _tell(self) -> None:
        """What kept the last round from filling the base. What is lost for good is told once."""
        error = self._trouble[1] if self._trouble is not None else None
        self.lost = isinstance(error, BlobMissing | Corrupt)
        log, object_id = self._host.log, self._base.object_id
        if not self.lost:
            log.warning("base.incomplete", object=object_id, error=str(error or ""))
        elif not self._told:
            self._told = True
            log.error(
                "base.lost",
                object=object_id,
                error=str(error),
                lacking=len(self._have) - sum(self._have),
                advice="calls that need it fail, the log is not folded and grows: put the blob back",
            )

    async def _fill_some(self, lacking: Iterator[int]) -> None:
        """One chunk after the other; what a call waits for goes first. A store that is away is left alone a while."""
        for index in lacking:
            await self._calm.wait()
            if self._trouble is not None and isinstance(self._trouble[1], BlobUnavailable):
                return
            try:
                await self.want(index)
            except NodeError as error:
                if self._trouble is None or isinstance(error, BlobUnavailable):  # while it is away nothing is known
                    self._trouble = index, error

    def _settle(self) -> None:
        """In a thread."""
        self._file.sync()
        self.record()

    # In the thread that runs the object's SQL.

    def need(self, offset: int, length: int) -> None:
        """Return once these bytes of the base are there. Raises PageUnavailable."""
        last = min((offset + length - 1) // CHUNK_BYTES, len(self._have) - 1)
        for index in range(offset // CHUNK_BYTES, last + 1):
            if not self._have[index]:
                self._await(index)

    def close(self) -> None:
        """After the connection was closed, and after `stop`."""
        if not self._closed:
            self._closed = True
            self._file.close()

    def _await(self, index: int) -> None:
        if threading.get_ident() == self._loop_thread:
            raise AssertionError(f"chunk {index} was touched on the loop, which has to fetch it")
        until = self._host.clock.monotonic() + CALLS_MAX * self._host.config.object_call_secs
        coming = asyncio.run_coroutine_threadsafe(self._touch(index), self._host.loop)
        try:
            while not concurrent.futures.wait([coming], LOOK_SECS).done:
                if self.given_up() or self._host.clock.monotonic() > until:
                    raise BlobUnavailable(f"chunk {index} did not come in time")
            coming.result()
        except NodeError as error:
            raise PageUnavailable(_told(index, error), error) from error
        except concurrent.futures.CancelledError:
            ended = Ended("the residency ended")
            raise PageUnavailable(_told(index, ended), ended) from None
        finally:
            coming.cancel()

    async def _touch(self, index: int) -> None:
        self._touched += 1
        self._calm.clear()
        try:
            await self.want(index)
        finally:
            self._touched -= 1
            if not self._touched:
                self._calm.set()


def _told(index: int, error: NodeError) -> str:
    """What a caller is told: which chunk, and nothing of this machine's files."""
    if isinstance(error, BlobMissing | Corrupt):
        return str(error)
    why = {BlobUnavailable: "the blob store does not answer", StorageFailed: "this node's disk fails"}
    return f"chunk {index} of the object's base cannot be had: {why.get(type(error), str(error))}"
