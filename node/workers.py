"""The threads that run blocking work: `def` methods, opening, checkpoints.

One job at a time holds a thread from beginning to end, so an object is bound to one thread while it runs. A short job
is *waited for* by the loop's thread (`patience_secs`), which is cheaper than a hop: while the loop waits nobody fights
over the interpreter lock, and storage facts 7 puts the price of such a fight at the switch interval a statement. A job
that is not done in that time goes on beside the loop and comes back as a future.

A thread whose job was interrupted by an injected exception is thrown away afterwards: a late injection would otherwise
strike the next job.
"""

from __future__ import annotations

import asyncio
import ctypes
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Generic, Protocol, TypeVar

T = TypeVar("T")

PATIENCE_SECS = 0.002


class Job(Generic[T]):
    """One piece of work on its way through a thread."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._lock = threading.Lock()
        self._gate = threading.Lock()
        self._gate.acquire()
        self._ident: int | None = None
        self._finished = False
        self._tell: tuple[asyncio.AbstractEventLoop, Callable[[], object]] | None = None
        self.injected = False
        self.value: T | None = None
        self.error: BaseException | None = None

    @property
    def finished(self) -> bool:
        return self._finished

    def result(self) -> T:
        """What the work returned; raises what it raised. Only when finished."""
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value]

    def detach(self) -> None:
        """Called by the work itself when it is about to wait for the loop: the loop stops waiting for it."""
        self._open_gate()

    def inject(self, kind: type[BaseException]) -> bool:
        """Raise `kind` in the work's thread, if it still runs. Pure Python ends soon, a C call when it returns."""
        with self._lock:
            if self._finished or self._ident is None:
                return False
            self.injected = True
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._ident), ctypes.py_object(kind))
            return True

    def run(self) -> None:
        """In the worker's thread."""
        try:
            self._ident = threading.get_ident()
            self.value = self._work()
        except BaseException as error:  # noqa: BLE001 - carried to whoever asks for the result
            self.error = error
        while not self._finished:
            try:
                with self._lock:
                    self._finished = True
            except BaseException as error:  # noqa: BLE001 - an injection that came too late for the work
                self.error = self.error or error
        self._open_gate()
        self._hand_over()

    def wait(self, secs: float) -> bool:
        """In the loop's thread: finished within `secs`?"""
        return self._gate.acquire(timeout=secs) and self._finished

    def when_done(self, loop: asyncio.AbstractEventLoop, tell: Callable[[], object]) -> None:
        """Call `tell` on the loop once the work is over."""
        with self._lock:
            if not self._finished:
                self._tell = (loop, tell)
                return
        loop.call_soon(tell)

    def _open_gate(self) -> None:
        # Released at most once by each of detach and run; a second release of an open gate is an error we expect.
        try:
            self._gate.release()
        except RuntimeError:
            return

    def _hand_over(self) -> None:
        with self._lock:
            waiting, self._tell = self._tell, None
        if waiting is not None:
            loop, tell = waiting
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(tell)


class Workers(Protocol):
    """What the node needs of its threads; the simulation runs jobs inline."""

    def start(self, job: Job[Any], *, quick: bool) -> None:
        """Begin `job`; with `quick` the caller's thread waits a moment for it, so it is often finished on return."""
        ...

    async def finish(self, job: Job[T]) -> T:
        """The result, when there is one."""
        ...

    async def run(self, work: Callable[[], T]) -> T:
        """Begin and finish."""
        ...

    def close(self) -> None: ...


class ThreadWorkers:
    """Threads that come on demand, up to `threads_max`; jobs beyond that wait in arrival order."""

    def __init__(self, loop: asyncio.AbstractEventLoop, threads_max: int = 64) -> None:
        self._loop = loop
        self._max = threads_max
        self._jobs: SimpleQueue[Job[Any] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._busy = 0

    def start(self, job: Job[Any], *, quick: bool) -> None:
        with self._lock:
            self._busy += 1
            if self._busy > self._threads and self._threads < self._max:
                self._spawn()
        self._jobs.put(job)
        if quick:
            job.wait(PATIENCE_SECS)

    async def finish(self, job: Job[T]) -> T:
        if not job.finished:
            done = self._loop.create_future()
            job.when_done(self._loop, lambda: _resolve(done))
            await done
        return job.result()

    async def run(self, work: Callable[[], T]) -> T:
        job = Job(work)
        self.start(job, quick=False)
        return await self.finish(job)

    def close(self) -> None:
        """Threads end when their present job does; they are daemons, a stuck one does not hold the process."""
        for _ in range(self._threads):
            self._jobs.put(None)

    def _spawn(self) -> None:
        self._threads += 1
        threading.Thread(target=self._main, name="domicile-worker", daemon=True).start()

    def _main(self) -> None:
        while (job := self._jobs.get()) is not None:
            job.run()
            with self._lock:
                self._busy -= 1
                if job.injected:
                    self._threads -= 1
                    if self._busy > self._threads:
                        self._spawn()
                    return


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
