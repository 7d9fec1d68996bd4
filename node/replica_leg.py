"""The replica leg of a flight: committed log to the object's members, each acking what it durably has (section 7).

A member in step gets frames as they are committed. One that is not is brought there by the one step that fits what it
says it has: the frames of the laid generation it lacks and then a **relabel**; a **fold** after a rotation, if it stood
exactly there; else a new **base**, which it stages and pulls. Only acks in the owner's own generation count. Nobody
waits for a straggler.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from domicile.node import quorum
from domicile.node.errors import Fenced, PeerBusy, PeerGone
from domicile.node.flight import Flights
from domicile.node.host import Host
from domicile.node.log import Log
from domicile.node.quorum import NOTHING, Members
from domicile.node.takeover.member import RETRY_FIRST_SECS, Member, Speech, Step
from domicile.node.wire.messages import Answered, Elsewhere, FencedBy, Holds, Said, Unable
from domicile.placement.records import Epoch, Generation, Position

APPEND_BYTES_MAX = 1 << 20
HELPS_MAX = 8
RETRY_MAX_SECS = 2.0
STAGING_SECS = 0.05


class ReplicaLeg:
    """Ships one residency's log to its members. `source`: what was laid, where the owner began a generation there."""

    def __init__(self, host: Host, epoch: Epoch, log: Log, flights: Flights, source: Position | None) -> None:
        self._host = host
        self.epoch = epoch
        self._log = log
        self._flights = flights
        self._source = source
        self.speech = Speech(log, epoch)
        self._members: dict[str, Member] = {}
        self._acks: dict[str, int] = {}
        self._sets: list[Members] = []
        self._over = False
        self._flown, self._failed = (host.telemetry.flights.of("replica", how) for how in ("landed", "failed"))
        self.on_broken: Callable[[BaseException], None] | None = None

    # Whom the leg ships to, and whose acks count.

    def set_members(self, sets: Sequence[Members]) -> None:
        """The durable set, and beside it one that a manifest under way may make durable."""
        self._sets = list(sets)
        wanted = dict.fromkeys(copy for members in sets for copy in members.copies)
        for copy_id in [copy for copy in self._members if copy not in wanted]:
            self._forget(self._members.pop(copy_id))
            self._acks.pop(copy_id, None)
        for copy_id in wanted:
            if copy_id not in self._members:
                member = self._members[copy_id] = Member(copy_id)
                self._advance(member)
        self._land()

    @property
    def hopeful(self) -> bool:
        """Whether a quorum of members seems to be there, so that nobody needs to hurry the store."""
        for members in self._sets:
            if not members.counts or sum(map(self._is_up, members.copies)) < members.quorum:
                return False
        return bool(self._sets)

    def lagging(self) -> list[str]:
        """Members that do not answer, or whose node is gone: candidates for repair."""
        return [copy for copy, member in self._members.items() if member.down]

    def held(self) -> dict[str, int]:
        """Each member's acked mark, NOTHING for none."""
        return {copy: self._acks.get(copy, NOTHING) for copy in self._members}

    # What the residency tells.

    def committed(self, *, awaited: bool) -> None:
        """There is more to carry."""
        for member in self._members.values():
            self._advance(member)
        self.speech.fall_silent()

    def folded(self, before: Position, checksum: bytes, dirty: Sequence[int]) -> None:
        """A rotation has happened: members exactly at `before` fold what they have, the others are sent a base."""
        for member in self._members.values():
            exact = member.step is Step.IN_STEP and member.sent == before.length
            member.sent = 0
            if not exact:
                member.step = Step.UNKNOWN
                self._advance(member)
                continue
            self._say(member, self.speech.fold(before, checksum, dirty))

    def stop(self) -> None:
        """The residency is over; what is on its way may still arrive, and is fenced."""
        self._over = True
        for member in self._members.values():
            self._forget(member)

    # One member, one step after the other.

    def _advance(self, member: Member) -> None:
        """Send what the member can be sent now."""
        if self._over or member.timer is not None:
            return
        log = self._log
        if member.step is Step.IN_STEP:
            while member.sent < log.length:
                end = min(log.length, member.sent + APPEND_BYTES_MAX)
                end = log.length if end == log.length else log.whole(end)
                self._append(member, log.generation, member.sent, end)
                member.sent = end
        elif not member.busy:
            self._first_word(member)

    def _first_word(self, member: Member) -> None:
        """What to say to a copy of which nothing is known: it answers with what it has."""
        log, source = self._log, self._source
        if source is not None and log.generation.counter == 0 and log.start == source.length:
            self._relabel(member, source.generation)
        elif log.generation == Generation(self.epoch, 0) and log.start == 0 and not log.base.hashes:
            self._new_base(member)
        else:
            self._append(member, log.generation, log.length, log.length)

    def _append(self, member: Member, generation: Generation, start: int, end: int) -> None:
        self._say(member, self.speech.append(generation, start, end))

    def _relabel(self, member: Member, generation: Generation) -> None:
        self._say(member, self.speech.relabel(generation))

    def _new_base(self, member: Member) -> None:
        member.step = Step.STAGING
        self._say(member, self.speech.new_base())

    def _say(self, member: Member, message: Said) -> None:
        address = self._host.nodes.address_of(member.copy_id)
        if address is None or self._host.peers is None:
            self._retry(member)
            return
        member.busy += 1
        self._host.peers.tell(address, message, member.copy_id, partial(self._heard, member, self._log.rotations))

    def _heard(self, member: Member, rotations: int, answer: Answered | PeerGone | PeerBusy) -> None:
        member.busy -= 1
        if self._over or self._members.get(member.copy_id) is not member:
            return
        if isinstance(answer, PeerGone | PeerBusy):
            self._failed.add()
            member.step = Step.UNKNOWN
            self._retry(member)
            return
        member.down = False
        if not isinstance(answer, Unable):
            member.backoff = RETRY_FIRST_SECS
        if isinstance(answer, Holds):
            self._holds(member, answer)
        elif isinstance(answer, Elsewhere):
            self._elsewhere(member, answer, rotations)
        elif isinstance(answer, FencedBy):
            self._host.telemetry.fenced.of("replica").add()
            if self.on_broken is not None:
                self.on_broken(Fenced(f"member {member.copy_id} has seen epoch {answer.epoch}"))
        elif isinstance(answer, Unable):
            self._failed.add()
            self._host.log.warning("replica.unable", copy=member.copy_id, why=answer.why)
            member.step = Step.UNKNOWN
            self._retry(member)

    def _holds(self, member: Member, answer: Holds) -> None:
        log = self._log
        if answer.incarnation != log.incarnation or answer.generation != log.generation:
            if member.step is not Step.IN_STEP and not member.busy:
                self._help(member, Position(answer.incarnation, answer.generation, answer.length))
            return
        member.helped = 0
        if member.step is not Step.IN_STEP:
            member.step, member.sent = Step.IN_STEP, answer.length
        mark = log.mark_at(answer.length)
        if mark > self._acks.get(member.copy_id, NOTHING):
            self._acks[member.copy_id] = mark
            if mark > self._flights.landed:
                self._land()
        self._advance(member)

    def _elsewhere(self, member: Member, answer: Elsewhere, rotations: int) -> None:
        if rotations != self._log.rotations:
            member.step = Step.UNKNOWN
            if not member.busy:
                self._advance(member)
            return
        if answer.staging:
            member.step = Step.STAGING
            self._later(member, STAGING_SECS)
            return
        member.step = Step.UNKNOWN
        if not member.busy:
            self._help(member, answer.position)

    def _help(self, member: Member, position: Position | None) -> None:
        """Bring a copy that stands at `position` into the owner's generation, by the one step that fits."""
        member.helped += 1
        if member.helped > HELPS_MAX:  # no step seems to fit: not in a loop
            member.helped = 0
            self._retry(member)
            return
        log, source = self._log, self._source
        same_life = position is not None and position.incarnation == log.incarnation
        if (
            same_life
            and position is not None
            and position.generation == log.generation
            and position.length <= log.length
        ):
            self._append(member, log.generation, position.length, log.length)
        elif (
            same_life
            and position is not None
            and source is not None
            and log.generation.counter == 0
            and position.generation == source.generation
        ):
            if position.length < log.start:
                self._append(member, source.generation, position.length, log.start)
            self._relabel(member, source.generation)
        else:
            self._new_base(member)

    # Waiting, and what has landed.

    def _retry(self, member: Member) -> None:
        member.down = True
        self._later(member, self._host.jitter(member.backoff))
        member.backoff = min(member.backoff * 2, RETRY_MAX_SECS)

    def _later(self, member: Member, secs: float) -> None:
        if member.timer is None and not self._over:
            member.timer = self._host.loop.call_later(secs, self._again, member)

    def _again(self, member: Member) -> None:
        member.timer = None
        if member.step is Step.STAGING and not member.busy:
            log = self._log
            self._append(member, log.generation, log.start, log.start)
        else:
            self._advance(member)

    def _forget(self, member: Member) -> None:
        if member.timer is not None:
            member.timer.cancel()
            member.timer = None

    def _is_up(self, copy_id: str) -> bool:
        member = self._members.get(copy_id)
        return member is not None and not member.down and member.step is Step.IN_STEP

    def _land(self) -> None:
        mark = quorum.landed_in_all(self._acks, self._sets)
        if mark > self._flights.landed and mark > NOTHING:
            self._flown.add()
            self._flights.land(mark)
