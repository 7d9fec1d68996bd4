"""What a closed gate does to the objects that are awake here, and what a move asks of a node (PROTOCOLS section 10).

A node that learns that the gate of a resident is closed ends that residency: what runs finishes, what waits and what
comes gets `moving`, it flushes and releases clean. It learns by the watch, by a claim that was refused, or by the
move's own question, which reads the gates anew. One that has not learned it may go on: the move waits for its release.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import msgspec

from domicile.errors import Moving, NotHome, NotServing
from domicile.node.activation import Landing, NoReadQuorum
from domicile.node.control.messages import DrainObject, DrainProject, Landed, ProjectLeft, SettleObject
from domicile.node.host import Host
from domicile.node.residency import Residency
from domicile.node.residents import Residents
from domicile.placement.followed import Seen
from domicile.placement.gates import Gates
from domicile.placement.records import GateRow, ObjectKey
from domicile.placement.store import StoreUnavailable

WAIT_SECS = 5.0
HOLD_SECS = 0.5  # longer than from a release to the write that follows it; callers are sent back meanwhile
OBJECT_MOVES = "the object is moving"


class ClosedGates:
    """Ends residencies whose gate is closed, and answers a move's requests."""

    def __init__(self, host: Host, gates: Gates, residents: Residents, suspect: Callable[[str], None]) -> None:
        """`suspect` is told of a node that holds what is to be landed here: it may be dead, its row standing yet."""
        self._host = host
        self._suspect = suspect
        self._gates = gates
        self._residents = residents
        self._looking: set[asyncio.Task[None]] = set()

    def changed(self, gate_key: str, before: Seen[GateRow] | None, after: Seen[GateRow] | None) -> None:
        """A watched gate changed, or went."""
        if after is None or not after.row.open:
            self._end(r for r in self._residents.awake() if self._closed_under(r, absent=after is None))

    def woke(self, residency: Residency) -> None:
        """An object has woken; its gate may have closed since it was claimed."""
        if self._closed_under(residency, absent=False):
            self._end([residency])

    def found_closed(self, key: ObjectKey) -> None:
        """A claim was refused for its gate; if the watch has not said so, others are awake behind closed gates."""
        if self._gates.seen(key).open:
            task = self._host.loop.create_task(self._look(key.scope))
            self._looking.add(task)
            task.add_done_callback(self._looking.discard)

    async def drain_project(self, body: bytes) -> bytes:
        """`drain-project`: end what is awake behind closed gates; gives how much still is after a while."""
        project = msgspec.msgpack.decode(body, type=DrainProject).project
        closed = await self._behind_closed(project)
        self._end(closed)
        ending = [residency.over for residency in closed]
        if ending:
            await asyncio.wait(ending, timeout=WAIT_SECS)
        return msgspec.msgpack.encode(ProjectLeft(sum(not over.done() for over in ending), len(ending)))

    async def drain_object(self, body: bytes) -> bytes:
        """`drain-object`: by a drain claim take over, land, release; nobody is served."""
        asked = msgspec.msgpack.decode(body, type=DrainObject)
        key = ObjectKey(asked.scope, asked.cls, asked.name)
        return await self._land(key, Landing(Moving(), drain=True, may_serve=asked.may_serve))

    async def settle_object(self, body: bytes) -> bytes:
        """`settle-object`: release it clean, the gate open; for a moment nobody wakes it here again."""
        asked = msgspec.msgpack.decode(body, type=SettleObject)
        key, refusal = ObjectKey(asked.scope, asked.cls, asked.name), Moving(OBJECT_MOVES)
        self._residents.holds.hold(key.id, refusal, HOLD_SECS)
        return await self._land(key, Landing(refusal, drain=False))

    def _closed_under(self, residency: Residency, *, absent: bool) -> bool:
        """Whether its gate closed after it was claimed, as far as was watched. What is older than the claim, which saw
        an open gate, is out of date; so is the absence of a gate, unless it went just now."""
        seen = next((seen for _, seen in self._gates.seen(residency.key).seen if seen is not None), None)
        if seen is None:
            return absent
        return not seen.row.open and seen.version > residency.claimed.version

    async def _land(self, key: ObjectKey, landing: Landing) -> bytes:
        try:
            await self._residents.land(key, landing)
        except NotHome as error:
            if "node" in error.extra:
                self._suspect(str(error.extra["node"]))
            raise
        except NoReadQuorum as error:
            return msgspec.msgpack.encode(Landed(incident=error.detail))
        return msgspec.msgpack.encode(Landed())

    async def _look(self, project: str) -> None:
        try:
            self._end(await self._behind_closed(project))
        except NotServing as error:
            self._host.log.warning("gates.unread", project=project, error=error.detail)

    async def _behind_closed(self, project: str) -> list[Residency]:
        """By the gates as they are now. Raises NotServing."""
        mine = [residency for residency in self._residents.awake() if residency.key.scope == project]
        try:
            decisions = await self._gates.read_all([residency.key for residency in mine])
        except StoreUnavailable as error:
            raise NotServing(f"the placement store does not answer: {error}") from error
        return [residency for residency, gate in zip(mine, decisions, strict=True) if not gate.open]

    def _end(self, residencies: Iterable[Residency]) -> None:
        for residency in list(residencies):
            if residency.refusal is None:
                self._residents.send_away(residency, Moving())
