"""The embedded placement store: SQLite in one thread of its own, behind the Store interface (PROTOCOLS section 2).

Callers on any event loop queue jobs. The thread takes all that wait: reads are answered at once, then the writes go
into one transaction and one sync, in the order they came, each seeing those before it. Inline (for the deterministic
simulation) there is no thread: a job runs where it is awaited. Watches read the change log of the ledger and are only
woken from here, so a slow one holds no memory.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from domicile.placement.change_log import CHANGES_MAX
from domicile.placement.ledger import Ledger
from domicile.placement.store import (
    SCAN_MAX,
    Committed,
    Condition,
    Conflict,
    Event,
    Grant,
    GrantGone,
    Mutation,
    Page,
    PlacementError,
    Record,
    Resync,
    StoreUnavailable,
    check_keys,
    check_write,
)

BATCH_MAX = 256
WATCH_LAG_MAX = 1000  # changes of others that a watcher sleeps through; never more than half of what the log keeps
R = TypeVar("R")


@dataclass(slots=True, eq=False)
class _Job:
    """`writes`: runs inside a transaction, shared with other such jobs."""

    run: Callable[[], Any]
    writes: bool
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]
    result: Any = None
    error: BaseException | None = None
    answered: bool = False

    def resolve(self) -> None:
        """On the job's own loop. A caller that went away is told nothing."""
        if self.future.done():
            return
        if self.error is None:
            self.future.set_result(self.result)
        else:
            self.future.set_exception(self.error)


@dataclass(slots=True, eq=False)
class _Watcher:
    """`position`: how far it had read when it last fell asleep."""

    loop: asyncio.AbstractEventLoop
    prefix: str
    position: int = 0

    def concerned(self, keys: Sequence[str]) -> bool:
        return any(key.startswith(self.prefix) for key in keys)


class EmbeddedStore:
    """A Store in one SQLite file (":memory:" for tests). One process, one opener.

    `monotonic` gives seconds for grants; `vfs` names an apsw VFS; `changes_max` is how much past is kept for watches
    and scans. `on_broken` is told, in the store's thread, that nothing will be answered until the file is opened anew.
    A grant that ran out is noticed by the next operation of anyone. Opening blocks for a few milliseconds and raises
    StoreInUse or StoreUnavailable.
    """

    def __init__(
        self,
        path: str,
        monotonic: Callable[[], float],
        *,
        vfs: str | None = None,
        inline: bool = False,
        changes_max: int = CHANGES_MAX,
        on_broken: Callable[[str], None] | None = None,
    ) -> None:
        self._ledger = Ledger(path, monotonic, vfs, changes_max)
        self._log = self._ledger.log
        self._lag_max = min(WATCH_LAG_MAX, changes_max // 2)
        self._on_broken = on_broken
        self._closed = False
        self._watchers: dict[asyncio.Event, _Watcher] = {}
        self._lock = threading.Lock()
        self._queue: SimpleQueue[_Job | None] = SimpleQueue()
        self._thread = None if inline else threading.Thread(target=self._work, name="placement", daemon=True)
        if self._thread is not None:
            self._thread.start()

    async def read(self, keys: Sequence[str]) -> dict[str, Record]:
        keys = tuple(keys)
        check_keys(keys)
        return await self._submit(lambda: self._ledger.read(keys))

    async def write(
        self, conditions: Sequence[Condition], mutations: Sequence[Mutation], grant: Grant | None = None
    ) -> Committed | Conflict:
        conditions, mutations = tuple(conditions), tuple(mutations)
        check_write(conditions, mutations)
        return await self._submit(lambda: self._ledger.write(conditions, mutations, grant), writes=True)

    async def scan(self, prefix: str, limit: int = SCAN_MAX, token: str | None = None) -> Page:
        if not 1 <= limit <= SCAN_MAX:
            raise ValueError(f"a scan's limit is 1 to {SCAN_MAX}")
        if prefix:
            check_keys([prefix])
        return await self._submit(lambda: self._ledger.scan(prefix, limit, token))

    async def watch(self, prefix: str, after: int) -> AsyncIterator[Event | Resync]:
        woken = asyncio.Event()
        watcher = _Watcher(asyncio.get_running_loop(), prefix)
        with self._lock:
            self._watchers[woken] = watcher
        try:
            position = self._log.position(after)
            while not self._closed:
                woken.clear()
                found = None if position is None else self._log.read(position)
                if found is None:
                    version, position = self._log.tip()
                    yield Resync(version)
                    continue
                changes, position = found
                for change in changes:
                    if change.key.startswith(prefix):
                        yield Event(change.key, change.version, change.after)
                if not changes:
                    watcher.position = position
                    await woken.wait()
        finally:
            with self._lock:
                del self._watchers[woken]

    async def grant(self, ttl_secs: float) -> Grant:
        return await self._submit(lambda: self._ledger.grant(ttl_secs))

    async def keep(self, grant: Grant) -> None:
        await self._submit(lambda: self._ledger.keep(grant))

    async def revoke(self, grant: Grant) -> None:
        await self._submit(lambda: self._ledger.revoke(grant), writes=True)

    async def release(self) -> None:
        """Nothing here belongs to a loop."""

    async def close(self) -> None:
        """Answer what waits and let go of the file. Watches end; whatever comes later raises StoreUnavailable."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if self._thread is None:
            self._ledger.close()
        else:
            self._queue.put(None)
            await asyncio.get_running_loop().run_in_executor(None, self._thread.join)
        self._wake_watchers()

    async def _submit(self, run: Callable[[], R], *, writes: bool = False) -> R:
        loop = asyncio.get_running_loop()
        job = _Job(run, writes, loop, loop.create_future())
        with self._lock:
            # Under the lock, so that nothing is queued behind the thread's end and waits for ever.
            if self._closed:
                raise StoreUnavailable("the placement store is closed")
            if self._thread is not None:
                self._queue.put(job)
        if self._thread is None:
            self._run([job])
            job.resolve()
        result: R = await job.future
        return result

    def _work(self) -> None:
        """The thread: until None comes, which is the last thing queued."""
        jobs: list[_Job] = []
        open_ended = True
        try:
            while open_ended:
                jobs, open_ended = self._take()
                self._run_and_resolve(jobs)
        finally:
            with self._lock:
                self._closed = True
            self._ledger.close()
            self._abandon(jobs)

    def _take(self) -> tuple[list[_Job], bool]:
        """What waits, at least one job or the end; False when that was the end."""
        jobs: list[_Job] = []
        job = self._queue.get()
        while job is not None:
            jobs.append(job)
            if len(jobs) == BATCH_MAX:
                return jobs, True
            try:
                job = self._queue.get_nowait()
            except Empty:
                return jobs, True
        return jobs, False

    def _abandon(self, jobs: list[_Job]) -> None:
        """After a fault of ours ended the thread: nobody may wait for ever. Nothing is left after an orderly end."""
        while not self._queue.empty():
            job = self._queue.get_nowait()
            if job is not None:
                jobs.append(job)
        unanswered = [job for job in jobs if not job.answered]
        for job in unanswered:
            job.error = StoreUnavailable("the placement store's thread has ended", maybe=True)
        _resolve(unanswered)

    def _run_and_resolve(self, jobs: list[_Job]) -> None:
        for part in ([job for job in jobs if not job.writes], [job for job in jobs if job.writes]):
            if part:
                self._run(part)
                _resolve(part)

    def _run(self, jobs: list[_Job]) -> None:
        """Jobs of one kind; each gets a result or an error."""
        tip = self._log.tip()
        try:
            self._ledger.expire()
            if jobs[0].writes:
                for job, result in zip(jobs, self._ledger.transact([job.run for job in jobs]), strict=True):
                    job.result, job.error = (None, result) if isinstance(result, GrantGone) else (result, None)
            else:
                for job in jobs:
                    _attempt(job)
        except PlacementError as error:
            for job in jobs:
                job.error = error
            if self._ledger.broken is not None and self._on_broken is not None:
                self._on_broken(self._ledger.broken)
        if self._log.tip() != tip:
            self._wake_watchers(tip[1])

    def _wake_watchers(self, since: int | None = None) -> None:
        """Those whose prefix a change behind position `since` has, and those far behind; without it all."""
        found = self._log.read(since) if since is not None else None
        changes, reached = found if found is not None else ((), 0)
        everyone = found is None or reached != self._log.tip()[1]
        keys = [change.key for change in changes]
        with self._lock:
            watchers = list(self._watchers.items())
        for woken, watcher in watchers:
            late = reached - watcher.position > self._lag_max
            if not (everyone or late or watcher.concerned(keys)):
                continue
            if self._thread is None:
                woken.set()
            else:
                _call_on(watcher.loop, woken.set)


def _attempt(job: _Job) -> None:
    try:
        job.result = job.run()
    except (PlacementError, ValueError) as error:
        job.error = error


def _resolve(jobs: list[_Job]) -> None:
    loops: dict[asyncio.AbstractEventLoop, list[_Job]] = {}
    for job in jobs:
        job.answered = True
        loops.setdefault(job.loop, []).append(job)
    for loop, mine in loops.items():
        _call_on(loop, lambda mine=mine: [job.resolve() for job in mine])  # type: ignore[misc]


def _call_on(loop: asyncio.AbstractEventLoop, callback: Callable[[], Any]) -> None:
    try:
        loop.call_soon_threadsafe(callback)
    except RuntimeError:
        # The loop is closed, and with it whoever waited on it.
        if not loop.is_closed():
            raise
