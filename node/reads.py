"""Reads from anywhere: a `@domicile.read` method served by a copy kept here (PROTOCOLS section 8).

The copy is used only if it provably holds all that callers were told when the read began: the owner is asked its
watermark, the copy may take 50 ms to reach it, and the read sees exactly that length, if generation and checksum there
are the owner's. Else the owner reads. A question shared by reads serves only those that began before it was sent.
"""

from __future__ import annotations

import asyncio
from functools import partial

from domicile.classes import ClassSpec
from domicile.errors import DomicileError
from domicile.method import MethodSpec
from domicile.node.context import ObjectContext
from domicile.node.errors import NodeError
from domicile.node.host import Host
from domicile.node.replica.copy_view import CopyView
from domicile.node.replica.replicas import Replicas
from domicile.node.rounds import method_turn
from domicile.node.snapshot_cache import Place, SnapshotCache
from domicile.node.sqlite.kv import KvApi
from domicile.node.sqlite.snapshot import Snapshot, Snapshots
from domicile.node.sqlite.sql import CallInterrupted, SqlApi
from domicile.node.sqlite.transaction import Done, Limits, Transactions, Work
from domicile.node.values import Answer, Call
from domicile.node.wire.messages import Answered, AskWatermark, Watermark
from domicile.node.workers import Job
from domicile.object import bind
from domicile.placement.records import NodeRow

POLL_SECS = 0.002
STOP_SECS = 0.1


class ReplicaReads:
    """The reads that this node's copies answer."""

    def __init__(self, host: Host, replicas: Replicas) -> None:
        self._host = host
        self._replicas = replicas
        self._snapshots = Snapshots(host.disk, host.sql_mark)
        self._kept = SnapshotCache(host.loop)
        self._questions: dict[str, asyncio.Future[Watermark | None]] = {}

    async def read(self, call: Call, spec: ClassSpec, method: MethodSpec, owner: NodeRow) -> Answer | None:
        """The answer, or None: the owner is to read. Raises what the method raised."""
        if method.is_async or self._held(call) is None:
            return None
        mark = await self._ask(call.key.id, owner)
        if mark is None or mark.generation is None or mark.epoch is None:
            return None
        view = await self._reached(call, mark)
        if view is None:
            return None
        try:
            place = Place(call.key.id, mark.generation, mark.length)
            done = await self._run(call, spec, method, view, place)
        except (NodeError, OSError) as error:
            self._host.log.warning("read.failed", object=str(call.key), error=str(error))
            return None
        finally:
            view.close()
        if done.error is not None:
            raise done.error
        self._host.telemetry.reads.of("replica").add()
        assert done.answer is not None
        return Answer(done.answer, mark.epoch, "replica", self._host.nodes.me)

    def _held(self, call: Call) -> CopyView | None:
        view = self._replicas.copy(call.key.id)
        if view is not None:
            view.close()
        return view

    def _ask(self, object_id: str, owner: NodeRow) -> asyncio.Future[Watermark | None]:
        """The owner's watermark. Reads of this turn of the loop share the question."""
        question = self._questions.get(object_id)
        if question is None:
            question = self._questions[object_id] = self._host.loop.create_future()
            self._host.loop.call_soon(self._send, object_id, owner, question)
        return question

    def _send(self, object_id: str, owner: NodeRow, question: asyncio.Future[Watermark | None]) -> None:
        del self._questions[object_id]
        assert self._host.peers is not None
        answer = self._host.peers.say(owner.peer, AskWatermark(bytes.fromhex(object_id)))
        answer.add_done_callback(lambda done: _pass_on(done, question))

    async def _reached(self, call: Call, mark: Watermark) -> CopyView | None:
        """The copy, held still, once it provably has all up to the watermark; None after `OBJECT_READ_WAIT_MS`."""
        assert mark.generation is not None
        clock = self._host.clock
        until = clock.monotonic() + self._host.config.object_read_wait_ms / 1000
        while True:
            view = self._replicas.copy(call.key.id)
            if view is not None:
                at = view.position
                if at.generation == mark.generation and at.length >= mark.length:
                    if view.checksum(mark.length) == mark.checksum:
                        return view
                    view.close()
                    return None
                view.close()
            if clock.monotonic() >= until:
                return None
            await clock.sleep(POLL_SECS)

    async def _run(self, call: Call, spec: ClassSpec, method: MethodSpec, view: CopyView, place: Place) -> Done:
        """In a thread, on a fresh instance, within the method's time."""
        running = _Reading(self._host, call, spec, method, self._kept.take(place))
        job = Job(partial(running.run, self._snapshots, view, place.length))
        stop = self._host.loop.call_later(self._host.config.object_call_secs, self._stop, running, job)
        try:
            self._host.workers.start(job, quick=True)
            done = await self._host.workers.finish(job)
        finally:
            stop.cancel()
        if running.snapshot is not None:
            self._kept.keep(place, running.snapshot)
        return done

    def _stop(self, running: _Reading, job: Job[Done]) -> None:
        if not job.finished:
            running.stop(job)
            self._host.loop.call_later(STOP_SECS, self._stop, running, job)


class _Reading:
    """One read on its way."""

    def __init__(self, host: Host, call: Call, spec: ClassSpec, method: MethodSpec, snapshot: Snapshot | None) -> None:
        self.snapshot = snapshot
        self._host = host
        self._call = call
        self._spec = spec
        self._method = method
        self._tx: Transactions | None = None

    def run(self, snapshots: Snapshots, view: CopyView, length: int) -> Done:
        """The read; `snapshot` is there afterwards if it is as good as new."""
        snapshot = self.snapshot or snapshots.open(view.base, view.log(length), length)
        self.snapshot = None
        view.on_interrupt = snapshot.interrupt
        try:
            done = self._read(snapshot)
        except BaseException as error:
            snapshot.close()
            if isinstance(error, DomicileError):
                return Done(error=error)
            raise
        if done.error is not None:
            snapshot.close()
        else:
            self.snapshot = snapshot
        return done

    def _read(self, snapshot: Snapshot) -> Done:
        sql = SqlApi(snapshot)
        host, key = self._host, self._call.key
        self._tx = Transactions(snapshot, sql, host.clock, Limits())
        log = host.log.bind(project=key.scope, cls=key.cls, object=key.name)
        context = ObjectContext(host, key, snapshot, sql, KvApi(sql), self._tx, log)
        context.begin(self._call, host.clock.wall_ms(), None)
        instance = bind(self._spec.type, context)
        turn = partial(method_turn, self._method, self._call.body, instance)
        (done,) = self._tx.run_group([Work(run=turn, method=self._method.name, read_only=True)])
        return done

    def stop(self, job: Job[Done]) -> None:
        if self._tx is not None:
            self._tx.turns.expire(self._tx.turns.turn, lambda: job.inject(CallInterrupted))


def _pass_on(done: asyncio.Future[Answered], question: asyncio.Future[Watermark | None]) -> None:
    if question.done():
        return
    failed = done.cancelled() or done.exception() is not None
    answer = None if failed else done.result()
    question.set_result(answer if isinstance(answer, Watermark) else None)
