"""The event loop of a simulated world: virtual time, one thread, no I/O; the same seed gives the same steps.

Time stands still while anything is ready and then jumps to the next timer. Ready callbacks run first in, first out;
timers due at one instant run in a seeded order. A world in which nothing can happen any more, while its main task
waits, is a Deadlock that names who waits.
"""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
import heapq
import random
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

from simworld.process import PROCESS, Process, close_task

T = TypeVar("T")

_STEPS_BETWEEN_LOOKS = 4096


class SimulationError(AssertionError):
    """The world came to an end that it must not have."""


class Deadlock(SimulationError):
    """Nothing is ready, no timer is set, and the main task waits."""


class OutOfTime(SimulationError):
    """The run passed its bound of virtual seconds or of steps."""


class SimFuture(asyncio.Future[Any]):
    """A future whose place in a set depends on the run, not on its address. Made by `SimLoop.create_future`."""

    _number = 0
    process: Process | None = None

    def __hash__(self) -> int:
        if not self._number:
            loop = self.get_loop()
            assert isinstance(loop, SimLoop)
            self._number = loop.number()
        return self._number


class SimTask(asyncio.Task[Any]):
    """A task that knows its process, and whose place in a set depends on the run, not on its address."""

    _number = 0

    def __init__(
        self, coro: Coroutine[Any, Any, Any], *, loop: SimLoop, name: str, context: contextvars.Context
    ) -> None:
        self._number = loop.number()
        self.process: Process | None = context.get(PROCESS)
        self.context = context
        super().__init__(coro, loop=loop, name=name, context=context)

    def __hash__(self) -> int:
        return self._number

    def mute(self) -> None:
        """Say nothing when it is destroyed while pending."""
        self._log_destroy_pending = False


class SimHandle:
    """What asyncio.Handle and TimerHandle are to their callers, and no more: a world makes a million of them."""

    __slots__ = ("args", "callback", "context", "dead", "due")

    def __init__(
        self, callback: Callable[..., object], args: tuple[Any, ...], context: contextvars.Context, due: float
    ) -> None:
        self.callback = callback
        self.args = args
        self.context = context
        self.due = due
        self.dead = False

    def cancel(self) -> None:
        if not self.dead:
            self.dead = True
            self.callback, self.args = _nothing, ()

    def cancelled(self) -> bool:
        return self.dead

    def when(self) -> float:
        return self.due


def _nothing() -> None:
    """In place of what was cancelled."""


class SimLoop(asyncio.BaseEventLoop):
    """Runs one world. `complaints` collects what nobody handled in tasks of living processes."""

    # Of asyncio's own base class, which does not declare them.
    _ready: deque[SimHandle]  # type: ignore[assignment]
    _stopping: bool

    def __init__(self, seed: int | str, *, traced: bool = False) -> None:
        super().__init__()
        self._now = 0.0
        self._rng = random.Random(f"loop/{seed}")
        self._numbers = 0
        self._timers: list[tuple[float, int, SimHandle]] = []
        self._world = contextvars.Context()
        self._everyone: list[SimTask] = []
        self._prune_at = 256
        self._trace = hashlib.blake2b(digest_size=16) if traced else None
        self._owner = threading.get_ident()
        self.steps = 0
        self.steps_max = 1_000_000
        self.secs_max = 1e9
        self.complaints: list[str] = []
        self.set_exception_handler(self._complain)

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run `main` to its end. Raises Deadlock, OutOfTime, and whatever `main` raises."""
        task = self.create_task(main, name="main")
        try:
            result: T = self.run_until_complete(task)
            return result
        finally:
            task.mute()

    def end(self) -> None:
        """Close what still runs, without effect, and the loop."""
        tasks, self._everyone = self._everyone, []
        self._ready.clear()
        for task in tasks:
            close_task(task)
        self._ready.clear()
        self._timers.clear()
        self.close()

    def unheard(self) -> list[str]:
        """Tasks of living processes that ended with an exception nobody has asked for."""
        return [
            f"{task.get_name()} failed unheard: {task.exception()!r}"
            for task in self._everyone
            if _unheard(task) and (task.process is None or task.process.alive)
        ]

    def time(self) -> float:
        return self._now

    def number(self) -> int:
        """The next number of this run."""
        self._numbers += 1
        return self._numbers

    def digest(self) -> str:
        """What ran when, so far, as one value; the loop must be traced."""
        assert self._trace is not None, "make the loop with traced=True"
        return self._trace.hexdigest()

    def in_world(self, fn: Callable[..., T], *args: Any) -> T:
        """Call `fn` outside every process: what it schedules outlives them all."""
        return self._world.copy().run(fn, *args)

    def ready_again(self, handles: Iterable[SimHandle]) -> None:
        """Put callbacks that a stopped process held back in the queue."""
        self._ready.extend(handles)

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, Any], *, name: str | None = None, context: contextvars.Context | None = None
    ) -> SimTask:
        context = context or contextvars.copy_context()
        process = context.get(PROCESS)
        if process is not None and not process.alive:
            coro.close()
        label = name or getattr(coro, "__qualname__", "task")
        task = SimTask(coro, loop=self, name=f"{process.name if process else 'world'}:{label}", context=context)
        if process is not None and not process.alive:
            task.mute()
            return task
        if process is not None:
            process.adopt(task)
        self._everyone.append(task)
        if len(self._everyone) > self._prune_at:
            self._everyone = [task for task in self._everyone if not task.done() or _unheard(task)]
            self._prune_at = 2 * len(self._everyone) + 256
        return task

    def create_future(self) -> SimFuture:
        future = SimFuture(loop=self)
        future.process = PROCESS.get()
        return future

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> SimHandle:
        handle = SimHandle(callback, args, context or contextvars.copy_context(), 0.0)
        self._ready.append(handle)
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> SimHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> SimHandle:
        timer = SimHandle(callback, args, context or contextvars.copy_context(), when)
        self._numbers += 1
        heapq.heappush(self._timers, (when, self._numbers, timer))
        return timer

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> SimHandle:
        """As call_soon. Raises SimulationError from a real thread: its moment would not replay."""
        if threading.get_ident() != self._owner:
            raise SimulationError("a real thread called into a simulated world: pass it simworld.threads.Workers")
        return self.call_soon(callback, *args, context=context)

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """The function runs inline at a seeded later step, whatever the executor."""
        future = self.create_future()

        def work() -> None:
            if future.done():
                return
            try:
                future.set_result(func(*args))
            except Exception as error:  # noqa: BLE001 - an executor hands on what its function raises
                future.set_exception(error)

        self.call_later(self._rng.random() * 0.001, work)
        return future

    def _run_once(self) -> None:
        """Until somebody stops the loop; asyncio would come back for every turn."""
        ready = self._ready
        while not self._stopping:
            if not ready:
                self._advance()
            last = self.steps + _STEPS_BETWEEN_LOOKS
            while ready and self.steps < last and not self._stopping:
                self._step(ready.popleft())
            if self.steps > self.steps_max:
                raise OutOfTime(f"more than {self.steps_max} steps\n{self.waiting()}")

    def _step(self, handle: SimHandle) -> None:
        if handle.dead:
            return
        context = handle.context
        process = context.get(PROCESS)
        if process is not None and process.holds(handle):
            return
        self.steps += 1
        if self._trace is not None:
            self._note(handle)
        try:
            context.run(handle.callback, *handle.args)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001 - as asyncio: it is told to the loop's handler
            self._complain(self, {"message": f"in {handle.callback}", "exception": error, "process": process})

    def _advance(self) -> None:
        timers = self._timers
        while timers and timers[0][2].dead:
            heapq.heappop(timers)
        if not timers:
            raise Deadlock(f"nothing can happen any more\n{self.waiting()}")
        when = timers[0][0]
        if when > self.secs_max:
            raise OutOfTime(f"more than {self.secs_max} virtual seconds\n{self.waiting()}")
        self._now = max(self._now, when)
        due: list[SimHandle] = []
        while timers and timers[0][0] <= self._now:
            timer = heapq.heappop(timers)[2]
            if not timer.dead:
                due.append(timer)
        if len(due) > 1:
            self._rng.shuffle(due)
        self._ready.extend(due)

    def waiting(self) -> str:
        """Who waits, and where; one line a task."""
        lines = []
        for task in self._everyone:
            if not task.done() and (task.process is None or task.process.alive):
                lines.append(f"  {task.get_name()} waits in {_await_chain(task.get_coro())}")
        return "\n".join(lines) or "  no task waits"

    def _note(self, handle: SimHandle) -> None:
        callback = handle.callback
        owner = getattr(callback, "__self__", None)
        what = owner.get_name() if isinstance(owner, SimTask) else getattr(callback, "__qualname__", "callback")
        assert self._trace is not None
        self._trace.update(f"{self._now!r} {what}\n".encode())

    def _complain(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        whose = context.get("task") or context.get("future")
        process = context.get("process") or getattr(whose, "process", None)
        if process is None or process.alive:
            self.complaints.append(f"{context['message']}: {context.get('exception')!r}")

    def _write_to_self(self) -> None:
        """Nothing waits in a selector."""

    def _process_events(self, event_list: Any) -> None:
        """There are none."""


def _unheard(task: SimTask) -> bool:
    return task.done() and task._log_traceback  # type: ignore[attr-defined]


def _await_chain(coro: Any) -> str:
    """Where a coroutine stands, from the outside in."""
    places = []
    while coro is not None:
        frame = getattr(coro, "cr_frame", None) or getattr(coro, "ag_frame", None)
        if frame is not None:
            places.append(f"{frame.f_code.co_qualname}:{frame.f_lineno}")
        coro = getattr(coro, "cr_await", None) or getattr(coro, "ag_await", None)
    return " > ".join(places) or "nothing it can tell"
