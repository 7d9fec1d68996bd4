"""One round: the calls a mailbox hands over together, run in the object's transaction within their time (section 6).

`def` methods run in a worker's thread, all calls of a round in one hop and one transaction; an `async def` method runs
on the loop and alone. A call past `OBJECT_CALL_SECS` is interrupted, in SQL and in Python, again and again until it
returns. One that has not returned `OBJECT_CALL_GRACE_MS` later is *stuck*: its connection is doomed so that it can
commit no more, and the residency ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from domicile.classes import HookSpec
from domicile.errors import CallTimeout, DomicileError, OutcomeUnknown, Refused
from domicile.method import MethodSpec
from domicile.node.context import as_failure
from domicile.node.engine import Engine
from domicile.node.errors import Ended, NodeError
from domicile.node.host import Host
from domicile.node.sqlite.transaction import AsyncWork, CallInterrupted, Done, Work
from domicile.node.values import Call
from domicile.node.workers import Job
from domicile.placement.records import ObjectKey

IMPATIENT_ROUNDS = 64
STUCK_THREADS_MAX = 8


class Stuck(NodeError):
    """A method has not returned long after it was interrupted."""


class Entry:
    """A turn of the object: a caller's, or the runtime's own for a hook. `run` takes the instance, gives JSON."""

    __slots__ = ("call", "deadline", "future", "read_only", "run", "shares")

    def __init__(self, call: Call, run: Callable[[Any], Any], future: asyncio.Future[Any], *, is_async: bool) -> None:
        self.call = call
        self.run = run
        self.future = future
        self.deadline = call.deadline
        self.shares = not is_async
        self.read_only = False

    @classmethod
    def of(cls, call: Call, method: MethodSpec, future: asyncio.Future[Any]) -> Entry:
        """A caller's turn. Arguments are decoded in the turn, errors of theirs are its answer."""
        run = method_turn_async if method.is_async else method_turn
        entry = cls(call, partial(run, method, call.body), future, is_async=method.is_async)
        entry.read_only = method.is_read
        return entry

    def refuse(self, error: DomicileError | Ended) -> None:
        """Answer the caller without running."""
        if not self.future.done():
            self.future.set_exception(error)


class Ran(NamedTuple):
    """What became of a call: `mark` is the log its answer saw, `alarm` what its answer also waits for.

    `outside` as in `transaction.Done`; `read`: by a method that may only read. `lasting`: something of it may be there
    to stay, by its own writes, those of a former try under its key, or those of the objects it called.
    """

    answer: bytes | None
    error: DomicileError | None
    wrote: bool
    mark: int
    alarm: asyncio.Future[bool] | None
    outside: bool
    read: bool
    lasting: bool


def settle(entry: Entry, done: Done, mark: int, alarm: asyncio.Future[bool] | None) -> None:
    """Tell a caller what became of its call."""
    if not entry.future.done():
        waits_for = alarm if done.wrote else None
        lasting = done.wrote or done.replayed or done.outside
        entry.future.set_result(
            Ran(done.answer, done.error, done.wrote, mark, waits_for, done.outside, entry.read_only, lasting)
        )


def refuse_all(entries: list[Entry], error: DomicileError | Ended) -> None:
    """Answer the callers of a round that did not come to its end."""
    for entry in entries:
        entry.refuse(error)


def method_turn(method: MethodSpec, body: bytes, instance: Any) -> bytes:
    """Decode, run, encode. Bad arguments are refused as such, whatever the callees of the method refuse."""
    args, kwargs = method.decode(body)
    try:
        value = getattr(instance, method.name)(*args, **kwargs)
    except Refused as error:
        raise as_failure(error) from error
    return method.encode(value)


async def method_turn_async(method: MethodSpec, body: bytes, instance: Any) -> bytes:
    """The same for an `async def` method."""
    args, kwargs = method.decode(body)
    try:
        value = await getattr(instance, method.name)(*args, **kwargs)
    except Refused as error:
        raise as_failure(error) from error
    return method.encode(value)


def hook_entry(
    host: Host, key: ObjectKey, hook: HookSpec, args: tuple[object, ...], before: Callable[[], bool] | None
) -> Entry:
    """The runtime's own turn. The hook runs only if `before`, inside the same transaction, says so."""
    call = Call(key, hook.name, b"", host.clock.monotonic() + host.config.object_call_secs)

    def run(instance: Any) -> bytes:
        if before is None or before():
            hook.function(instance, *args)
        return b"null"

    async def run_async(instance: Any) -> bytes:
        if before is None or before():
            await hook.function(instance, *args)
        return b"null"

    return Entry(call, run_async if hook.is_async else run, host.loop.create_future(), is_async=hook.is_async)


class Running:
    """The round in progress: whose turn it is, and since when. Written by the thread that runs it."""

    __slots__ = ("entry", "interrupted_at", "job", "over", "started", "task", "turn")

    def __init__(self, over: asyncio.Future[None]) -> None:
        self.over = over
        self.entry: Entry | None = None
        self.turn = 0
        self.started = 0.0
        self.interrupted_at: float | None = None
        self.job: Job[list[Done]] | None = None
        self.task: asyncio.Task[Done] | None = None

    def begin(self, entry: Entry, turn: int, now: float) -> None:
        """`entry` has its turn from now on; `turn` is the transaction's number for it."""
        self.started, self.turn, self.interrupted_at, self.entry = now, turn, None, entry

    def inject(self) -> object:
        """Stop the Python code of the turn."""
        return self.job.inject(CallInterrupted) if self.job is not None else self.task and self.task.cancel()

    def task_ended(self, task: asyncio.Task[Done]) -> None:
        """How it failed is told to whoever waits; once the residency is over nobody does."""
        if not task.cancelled():
            task.exception()
        self.end()

    def end(self) -> None:
        """Whoever waits for the round need not any more."""
        if not self.over.done():
            self.over.set_result(None)


class Rounds:
    """Runs the rounds of one residency, one at a time."""

    def __init__(self, host: Host, engine: Engine) -> None:
        self._host = host
        self._engine = engine
        self._context = engine.context
        self._tx = engine.tx
        self._instance = engine.instance
        self._prologue = engine.prologue()
        self._running: Running | None = None
        self._impatient = 0

    async def run(self, entries: list[Entry]) -> list[Done]:
        """What became of each call, in order. Raises Stuck when one does not return, Ended when the right is lost."""
        first, wakes_on_loop = entries[0], self._prologue is not None and self._engine.async_prologue
        if not self._engine.whole and (wakes_on_loop or not first.shares):
            assert self._engine.paged is not None
            if (lacking := await self._engine.paged.refusal()) is not None:
                return [Done(error=lacking) for _ in entries]
        if wakes_on_loop:
            failed = await self._run_async_prologue(first)
            if failed is not None:
                return [failed for _ in entries]
        running = self._running = Running(self._host.loop.create_future())
        try:
            dones = await self._in_thread(running, entries) if first.shares else [await self._on_loop(running, first)]
        finally:
            self._running = None
            if running.job is not None and running.job.finished:
                running.job = None  # they know each other: without this each round is a cycle for the collector to find
        if self._tx.prologue_done:
            self._prologue = None
        return dones

    def tick(self, now: float) -> None:
        """Interrupt a call past its time; give up on one that does not return."""
        running, config = self._running, self._host.config
        if running is None or running.entry is None or now - running.started <= config.object_call_secs:
            return
        if running.interrupted_at is None:
            running.interrupted_at = now
        if now - running.interrupted_at <= config.object_call_grace_ms / 1000:
            self._tx.turns.expire(running.turn, running.inject)
        else:
            self._engine.db.doom()
            if self._tx.turns.turn == running.turn:
                running.entry.refuse(CallTimeout("the method did not return when interrupted; nothing of it is kept"))
            else:  # it has returned in the last moment, and may be committing
                running.entry.refuse(OutcomeUnknown("the method returned long after its time"))
            running.end()

    async def _in_thread(self, running: Running, entries: list[Entry]) -> list[Done]:
        works = [Work(run=partial(self._call, running, entry), **_about(entry)) for entry in entries]
        prologue = None if self._prologue is None else partial(self._wake, running, entries[0])
        job = running.job = Job(partial(self._tx.run_group, works, prologue))
        job.when_done(self._host.loop, running.end)
        self._host.workers.start(job, quick=self._impatient == 0 and self._engine.whole)
        await running.over
        if not job.finished:
            self._lose_thread(job)
            raise Stuck("a method does not return")
        self._impatient = IMPATIENT_ROUNDS if job.slow else max(0, self._impatient - 1)
        return job.result()

    def _lose_thread(self, job: Job[list[Done]]) -> None:
        """Count the thread until its method returns after all; past eight the process replaces itself."""
        stuck = self._host.telemetry.stuck_threads
        stuck.add(1)
        job.when_done(self._host.loop, lambda: stuck.add(-1))
        if stuck.value > STUCK_THREADS_MAX:
            self._host.replace_process(f"{stuck.value:.0f} threads hold methods that do not return")

    async def _on_loop(self, running: Running, entry: Entry) -> Done:
        work = AsyncWork(run=partial(self._call_async, running, entry), **_about(entry))
        prologue = None if self._prologue is None else partial(self._wake, running, entry)
        return await self._await_alone(running, work, prologue)

    async def _run_async_prologue(self, entry: Entry) -> Done | None:
        running = self._running = Running(self._host.loop.create_future())

        async def wake() -> bytes:
            self._begin(running, entry)
            return await self._engine.wake_async()

        try:
            done = await self._await_alone(running, AsyncWork(run=wake, method="on_wake"), None)
        finally:
            self._running = None
        if done.error is not None:
            return done
        self._prologue = None
        return None

    async def _await_alone(self, running: Running, work: AsyncWork, prologue: Callable[[], None] | None) -> Done:
        task = running.task = self._host.loop.create_task(self._tx.run_alone(work, prologue))
        task.add_done_callback(running.task_ended)
        await running.over
        if not task.done():
            raise Stuck("a method does not return")
        return task.result()

    def _wake(self, running: Running, entry: Entry) -> None:
        assert self._prologue is not None
        self._begin(running, entry)
        self._prologue()

    def _call(self, running: Running, entry: Entry) -> bytes:
        self._begin(running, entry)
        answer: bytes = entry.run(self._instance)
        return answer

    async def _call_async(self, running: Running, entry: Entry) -> bytes:
        self._begin(running, entry)
        answer: bytes = await entry.run(self._instance)
        return answer

    def _begin(self, running: Running, entry: Entry) -> None:
        clock = self._host.clock
        running.begin(entry, self._tx.turns.turn, clock.monotonic())
        self._context.begin(entry.call, clock.wall_ms(), running.job)


def _about(entry: Entry) -> dict[str, Any]:
    call = entry.call
    return {
        "method": call.method,
        "idempotency_key": call.idempotency_key,
        "body": call.body,
        "read_only": entry.read_only,
    }
