"""The threads that run blocking work: `def` methods, opening, checkpoints.

One job at a time holds a thread from beginning to end, so an object is bound to one thread while it runs. Short jobs
are *waited for*: those that two turns of the loop began are done one after the other in one thread, and the loop's own
thread waits a moment for them. That is one hop for all, and while the loop waits nobody fights over the interpreter
lock, which costs up to the switch interval a statement. A job that is not done in that time goes on beside the loop;
those behind it get threads of their own.

A thread whose job was interrupted by an injected exception is thrown away afterwards: a late injection would otherwise
strike the next job.
"""

from __future__ import annotations

import asyncio
import ctypes
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

T = TypeVar("T")

PATIENCE_SECS = 0.002
PATIENCE_EACH_SECS = 0.00005


class Job(Generic[T]):
    """One piece of work on its way through a thread. `slow`: the loop's thread stopped waiting for it."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._lock = threading.Lock()
        self._ident: int | None = None
        self._finished = False
        self._tell: tuple[asyncio.AbstractEventLoop, Callable[[], object]] | None = None
        self._batch: Batch | None = None
        self.slow = False
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
        batch = self._batch
        if batch is not None:
            batch.let_go()

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
        self._hand_over()

    def when_done(self, loop: asyncio.AbstractEventLoop, tell: Callable[[], object]) -> None:
        """Call `tell` on the loop once the work is over."""
        with self._lock:
            if not self._finished:
                self._tell = (loop, tell)
                return
        loop.call_soon(tell)

    def attend(self, batch: Batch) -> None:
        """The loop's thread is about to wait for the batch: it will look by itself."""
        self._batch = batch

    def unattended(self) -> None:
        """On the loop: it waits no more. What is over is told at once."""
        with self._lock:
            self._batch = None
            self.slow = not self._finished
            waiting = None if self.slow else self._tell
            if waiting is not None:
                self._tell = None
        if waiting is not None:
            waiting[1]()

    def _hand_over(self) -> None:
        with self._lock:
            if self._batch is not None:
                return
            waiting, self._tell = self._tell, None
        if waiting is not None:
            loop, tell = waiting
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(tell)


class Batch:
    """The short jobs of two turns of the loop, done one after the other in one thread while the loop's waits."""

    def __init__(self, jobs: list[Job[Any]]) -> None:
        self._jobs = jobs
        self._waiting = deque(jobs)
        self._gate = threading.Lock()
        self._gate.acquire()
        for job in jobs:
            job.attend(self)

    def run(self) -> bool:
        """In a thread: begin what nobody has begun. False when an injection hit it: the thread is not to be used.

        Whoever runs it lets the loop go afterwards.
        """
        while True:
            try:
                job = self._waiting.popleft()
            except IndexError:
                return True
            job.run()
            if job.injected:
                return False

    def wait(self, secs: float) -> list[Job[Any]]:
        """On the loop: until all is done, one of them lets go, or the time is up. Gives the jobs nobody has begun."""
        self._gate.acquire(timeout=secs)
        begun_by_nobody = []
        while True:
            try:
                begun_by_nobody.append(self._waiting.popleft())
            except IndexError:
                break
        for job in self._jobs:
            job.unattended()
        for job in begun_by_nobody:
            job.slow = False  # it had no turn to be slow in
        return begun_by_nobody

    def let_go(self) -> None:
        """The loop need not wait any more. Done twice it does no harm."""
        with suppress(RuntimeError):
            self._gate.release()


class Workers(Protocol):
    """What the node needs of its threads; the simulation runs jobs inline."""

    def start(self, job: Job[Any], *, quick: bool) -> None:
        """Begin `job`. With `quick` it is done together with what else begins now while the loop waits a moment."""
        ...

    async def finish(self, job: Job[T]) -> T:
        """The result, when there is one."""
        ...

    async def run(self, work: Callable[[], T]) -> T:
        """Begin and finish."""
        ...

    def then(self, work: Callable[[], T], told: Callable[[Job[T]], object]) -> None:
        """Begin; `told` is given the job, on the loop, when it is over."""
        ...

    def close(self) -> None: ...


class ThreadWorkers:
    """Threads that come on demand, up to `threads_max`; jobs beyond that wait in arrival order.

    The thread that became idle last takes the next job: its stack is warm, and it alone is woken.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, threads_max: int = 64) -> None:
        self._loop = loop
        self._max = threads_max
        self._waiting: deque[Job[Any] | Batch] = deque()
        self._quick: list[Job[Any]] = []
        self._lock = threading.Lock()
        self._idle: list[threading.Lock] = []  # what each idle thread waits at, the last to come on top
        self._closed = False
        self._threads = 0
        self._busy = 0

    def start(self, job: Job[Any], *, quick: bool) -> None:
        if not quick:
            self._submit(job)
            return
        self._quick.append(job)
        if len(self._quick) == 1:
            self._loop.call_soon(self._gather_quick)

    def _gather_quick(self) -> None:
        """One more turn of the loop: under load it begins more of them, at rest it is over at once."""
        self._loop.call_soon(self._run_quick)

    def _run_quick(self) -> None:
        """What these turns of the loop began: one thread does it all, and the loop's waits a moment for it."""
        jobs, self._quick = self._quick, []
        batch = Batch(jobs)
        self._submit(batch)
        for job in batch.wait(PATIENCE_SECS + PATIENCE_EACH_SECS * len(jobs)):
            self._submit(job)

    def _submit(self, work: Job[Any] | Batch) -> None:
        with self._lock:
            self._busy += 1
            if self._busy > self._threads and self._threads < self._max:
                self._spawn()
            self._waiting.append(work)
            gate = self._idle.pop() if self._idle else None
        if gate is not None:
            gate.release()

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

    def then(self, work: Callable[[], T], told: Callable[[Job[T]], object]) -> None:
        job = Job(work)
        job.when_done(self._loop, partial(told, job))
        self._submit(job)

    def close(self) -> None:
        """Threads end when their present job does; they are daemons, a stuck one does not hold the process."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for gate in idle:
            gate.release()

    def _spawn(self) -> None:
        self._threads += 1
        threading.Thread(target=self._main, name="domicile-worker", daemon=True).start()

    def _main(self) -> None:
        gate = threading.Lock()
        gate.acquire()
        while (work := self._next(gate)) is not None:
            usable = work.run() is not False and not (isinstance(work, Job) and work.injected)
            with self._lock:
                self._busy -= 1
                if not usable:
                    self._threads -= 1
                    if self._busy > self._threads:
                        self._spawn()
            if isinstance(work, Batch):
                work.let_go()  # not before this thread counts as idle: what the loop begins next would get a new one
            if not usable:
                return
            del work  # what it refers to is not kept while the thread waits

    def _next(self, gate: threading.Lock) -> Job[Any] | Batch | None:
        """What has waited longest; None at the end. Waits at `gate`."""
        while True:
            with self._lock:
                if self._waiting:
                    return self._waiting.popleft()
                if self._closed:
                    return None
                self._idle.append(gate)
            gate.acquire()


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
