"""The time one object is awake on this node: from an opened file to a release, a deletion, or the loss of its right.

A residency owns everything of its object here: connection, instance, mailbox, flights. It is over in one of three
ways. *Released*: the mailbox stands still, a landed manifest reaches the last commit, the lease row says so. *Deleted*.
*Ended*: the right to serve is lost or memory and disk may disagree; nothing is flushed, and whoever wakes the object
next takes over from what is durable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum

from domicile.classes import ClassSpec, HookSpec
from domicile.errors import DomicileError, NoSuchObject, OutcomeUnknown
from domicile.node.closing import NodeFailure, close_clean, close_out, remove_files, run_sleep_hook
from domicile.node.due import DueAlarms
from domicile.node.engine import Engine
from domicile.node.errors import Ended, NodeError
from domicile.node.flight import Flights
from domicile.node.host import Host
from domicile.node.log import Log
from domicile.node.mailbox import Mailbox
from domicile.node.members import MemberSets
from domicile.node.outgoing import Outgoing
from domicile.node.quorum import Members
from domicile.node.replica_leg import ReplicaLeg
from domicile.node.rotation import Rotation
from domicile.node.rounds import Entry, Ran, Rounds, Stuck, hook_entry, refuse_all, settle
from domicile.node.sqlite.database import Database
from domicile.node.sqlite.transaction import Done
from domicile.node.store_leg import StoreLeg
from domicile.node.takeover.lay import Laid
from domicile.node.values import Call
from domicile.placement.claims import Claimed
from domicile.placement.records import Epoch, Incarnation, ObjectKey, Released

STUCK_FLUSH_SECS = 2.0
QUORUM_LATE_SECS = 0.2


class Phase(Enum):
    """A residency's life. Only a serving one takes calls; an ended one is forgotten."""

    SERVING = 1
    ENDING = 2
    OVER = 3


class Residency:
    """One object, awake here. `refusal`: what callers get while it ends because the object goes elsewhere."""

    def __init__(
        self, host: Host, key: ObjectKey, spec: ClassSpec, claimed: Claimed, laid: Laid, engine: Engine
    ) -> None:
        self._host = host
        self.key, self.spec, self.claimed = key, spec, claimed
        self.epoch: Epoch = claimed.epoch
        self.incarnation: Incarnation = laid.position.incarnation
        self.engine, self.phase = engine, Phase.SERVING
        self.began = self.last_used = self.verified = host.clock.monotonic()
        self.refusal: DomicileError | None = None
        self.called = self.landing = False  # landing: claimed to land what there is, and not to serve
        self.over: asyncio.Future[None] = host.loop.create_future()
        self._closing: asyncio.Task[None] | None = None
        self._rested = 0.0
        self.log = Log(host.disk, engine.files.log, key.id, laid.position, laid.shape, laid.start)
        self.flights = Flights(host.loop, host.config.object_db_max_mb << 20)
        self.flights.released = host.telemetry.flight_writes.observe
        self.leg = StoreLeg(host, claimed.epoch, self.log, self.flights, laid)
        self.leg.on_broken = self.end
        self.leg.on_landed = self._maybe_rotate
        self.replicas = self._join_members(laid) if host.peers is not None else None
        self.flights.carry_by(self.leg)
        outgoing = Outgoing(host, self)
        self.leg.read_chunk = self.read_chunk = outgoing.read_chunk
        engine.context.call_out = outgoing.call
        self.rounds = Rounds(host, engine)
        self.due = DueAlarms(host, self)
        self.rotation = Rotation(host, self)
        self.mailbox: Mailbox[Entry] = Mailbox(host.loop, host.config.object_mailbox, self._run, self.due.pump)
        self.mailbox.on_broken = self.end
        self.flights.mark = self._round_began = self.log.mark
        if laid.confirmed:
            self.flights.land(self.log.mark)
        elif self.leg.behind:
            self.leg.committed(awaited=True)
        if engine.paged is not None:
            engine.paged.start(self._settled, self.end)

    def _join_members(self, laid: Laid) -> ReplicaLeg:
        """The other leg, where there are other nodes; it carries first."""
        replicas = ReplicaLeg(self._host, self.epoch, self.log, self.flights, laid.grew_from)
        replicas.speech.incidents = laid.manifest.incidents
        replicas.on_broken = self.end
        self.flights.carry_by(replicas)
        durable = Members(laid.manifest.members, laid.manifest.quorum)
        self.leg.members = MemberSets(self._host, self.log, replicas, durable)
        return replicas

    # The path of a call.

    def now(self) -> float:
        return self._host.clock.monotonic()

    @property
    def serving(self) -> bool:
        return self.phase is Phase.SERVING

    async def perform(self, call: Call) -> Ran:
        """Queue the call and give what became of it. Raises Ended (it never had its turn) and DomicileError."""
        self.called, self.last_used = True, self._host.clock.monotonic()
        self._host.stirring.add(self)
        entry = Entry.of(call, self.spec.method(call.method), self._host.loop.create_future())
        self.mailbox.put(entry)
        ran: Ran = await entry.future
        return ran

    async def _run(self, entries: list[Entry]) -> None:
        """One round of the mailbox. Whatever breaks it ends the residency: nobody waits for a round that is lost."""
        try:
            await self._round(entries)
        except Stuck as stuck:
            await self._leave_stuck(entries, stuck)
        except Ended as ended:
            self._refuse_round(entries, ended)
            self.end(ended)
        except asyncio.CancelledError:  # the residency ended meanwhile; what runs may be committing at this moment
            refuse_all(entries, OutcomeUnknown("the object lost its home here while the call ran"))
            raise
        except Exception as error:  # noqa: BLE001 - a disk or a bug: what was committed is not known here any more
            refuse_all(entries, OutcomeUnknown("the node failed while it ran the call"))
            self.end(error)

    async def _round(self, entries: list[Entry]) -> None:
        self._round_began, self._outside_began = self.log.mark, self.engine.tx.turns.outside
        if (sick := self._sick()) is not None:  # noticed between calls
            raise Ended(sick)
        dones = await self.rounds.run(entries)
        self._host.failpoints.hit("call.committed")
        alarm = await self._committed(self._round_began)
        mark = self.log.mark
        for entry, done in zip(entries, dones, strict=True):
            settle(entry, done, mark, alarm)
        if (sick := self._sick()) is not None:
            self.end(NodeFailure(sick))

    def _sick(self) -> str | None:
        """What is wrong with the disk or the file, if anything was noticed."""
        sick = self.engine.db.sick
        return None if sick is None else f"{self.key}: {sick}"

    async def _committed(self, before: int) -> asyncio.Future[bool] | None:
        """The round is over: the log may have grown, the alarms may have changed."""
        self.log.length = self.engine.db.length
        alarm = await self.due.after_round() if self.engine.context.alarms_touched else None
        if self.log.mark != before:
            self.flights.committed(self.log.mark, awaited=True)
        return alarm

    def ship_committed(self) -> None:
        """In the middle of a round: what its earlier calls committed is on its way from now on."""
        self.log.length = self.engine.db.length
        if self.log.mark != self.flights.mark:
            self.flights.committed(self.log.mark, awaited=True)

    def _refuse_round(self, entries: list[Entry], ended: Ended) -> None:
        """A round that did not come to its end: its calls look for the object anew, unless some may have committed, or
        have called others."""
        self.ship_committed()
        lasting = self.log.mark != self._round_began or self.engine.tx.turns.outside != self._outside_began
        refuse_all(entries, OutcomeUnknown("the round the call ran in was cut off") if lasting else ended)

    async def _leave_stuck(self, entries: list[Entry], stuck: Stuck) -> None:
        """A method does not return. What earlier calls committed still lands; then the residency ends."""
        self.phase = Phase.ENDING
        self._refuse_round(entries, Ended("another call of the same round does not return"))
        self.mailbox.close(Ended("the object is recovering from a call that does not return"))
        try:
            await asyncio.wait_for(self.leg.flush(), STUCK_FLUSH_SECS)
        except (TimeoutError, NodeError) as error:
            self._host.log.warning("stuck.unflushed", object=str(self.key), error=str(error))
        self.end(stuck)

    # Between calls.

    def tick(self, now: float) -> None:
        """Ten times a second while something waits here: deadlines, gates, calls past their time."""
        self.mailbox.expire(now)
        self.flights.expire(now)
        self.rounds.tick(now)
        gate_secs = self._host.config.object_ack_gate_ms / 1000
        if self.replicas is not None and self.flights.longest_wait(now, gate_secs) > QUORUM_LATE_SECS:
            self.leg.hurry()  # a missed quorum: the manifest is the answer

    def look_after_members(self, now: float) -> None:
        """Once a second: replace members that are gone, once flights have answered."""
        if self.leg.members is not None and self.leg.members.look(now):
            self.leg.hurry()

    @property
    def quiet(self) -> bool:
        """Nothing waits and nothing runs."""
        return self.mailbox.idle and not (self.flights.awaited or self.mailbox.waiting or self.due.mirroring)

    def rest(self) -> None:
        """Nobody has called for a while: give the connection's spare memory back, once."""
        if self.last_used != self._rested:
            self._rested = self.last_used
            self.engine.db.release_memory()
            self.log.rest()

    def _settled(self) -> None:
        """The base is whole, and the file a copy: what waited for that goes on."""
        self.mailbox.pump_soon()
        self._maybe_rotate()

    def _maybe_rotate(self) -> None:
        if self.serving and self.rotation.due:
            self.rotation.start()

    # Its end.

    async def release(self) -> Released | None:
        """End well: stop, land, close; gives what to write into the lease row. None when the right was lost meanwhile.

        The residency is over once that write is *sent* (section 5): the caller sends it and says so by `sent`.
        """
        self.phase = Phase.ENDING
        try:
            await self.rotation.stop()
            await self.leg.flush()  # a base's chunks are read between calls, so before the object stands still for good
            async with self.mailbox.alone():
                self.mailbox.close(self.refusal or Ended("the object goes to sleep"))
                await run_sleep_hook(self._host, self)
                self.due.stop()
                await self.leg.flush()
                return await close_clean(self._host, self)
        except (NodeError, OSError) as error:
            self.end(error)
            return None

    async def run_hook(
        self, hook: HookSpec, args: tuple[object, ...], before: Callable[[], bool] | None = None
    ) -> Done:
        """Run a hook in a transaction of its own; the caller has the object alone. `before` runs first, inside it."""
        began = self.log.mark
        self._host.stirring.add(self)
        entry = hook_entry(self._host, self.key, hook, args, before)
        (done,) = await self.rounds.run([entry])
        await self._committed(began)
        return done

    async def change(self, change: Callable[[Database], object]) -> None:
        """Change rows of the runtime's own; the caller has the object alone. Raises DomicileError."""
        began, engine = self.log.mark, self.engine
        await self._host.workers.run(lambda: engine.tx.own(lambda: change(engine.db)))
        await self._committed(began)

    async def close_deleted(self) -> None:
        """The deletion is committed: waiting calls learn it, the files go."""
        if self.phase is Phase.OVER:
            return
        gone = NoSuchObject(f"{self.key} was deleted")
        self.mailbox.close(gone)
        self._forget(gone)
        await close_out(self._host, self)
        await remove_files(self._host, self)
        self.sent()

    def end(self, error: BaseException) -> None:
        """The right is lost, or memory and disk may disagree: nothing more leaves, nothing is flushed."""
        if self.phase is Phase.OVER:
            return
        self._host.log.warning("residency.ended", object=str(self.key), epoch=str(self.epoch), error=str(error))
        self.mailbox.close(Ended("the residency ended"))
        self._forget(error if isinstance(error, NodeError) else NodeFailure(str(error)))
        self._closing = self._host.loop.create_task(self._end())

    def sent(self) -> None:
        """Over: the next residency of the object may begin."""
        self._forget(Ended("the residency is over"))
        if not self.over.done():
            self.over.set_result(None)

    async def _end(self) -> None:
        await close_out(self._host, self)
        self.sent()

    def _forget(self, reason: Exception) -> None:
        if self.phase is Phase.OVER:
            return
        self.phase = Phase.OVER
        self.flights.break_off(reason)
        self.log.close()
        self.leg.stop()
        if self.replicas is not None:
            self.replicas.stop()
        self.due.stop()
        self.rotation.cancel()
        self.mailbox.stop()
