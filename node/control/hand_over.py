"""Objects go from here to other nodes at the rate at which those take them (PROTOCOLS section 3, "SIGTERM").

An object that is called in these seconds is *handed over*: released, and the node that is to be its next home asked to
wake it. Few are under way at once, each from the beginning of its release until it is awake there, and the others are
served here until their turn comes: a caller waits for one wake, and not for those of everything that was awake here.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from domicile.errors import DomicileError, NotHome
from domicile.node.control.messages import TakeObject
from domicile.node.errors import NodeError
from domicile.node.host import Host
from domicile.node.residency import Residency
from domicile.node.residents import Residents
from domicile.placement.records import NodeRow, ObjectKey
from domicile.placement.store import Record

AT_ONCE = 4
CALLED_SECS = 10.0
TURN_SECS = 2.0  # one whose writes do not land, or that nobody wakes, holds up the others no longer


class HandOver:
    """Hands over what it is given, in order. What has begun goes on, whoever asked for it."""

    def __init__(self, host: Host, residents: Residents) -> None:
        self._host = host
        self._residents = residents
        self._queue: deque[Residency] = deque()
        self._turns: set[asyncio.Task[None]] = set()
        self._under_way: set[asyncio.Task[None]] = set()

    def wanted(self) -> list[Residency]:
        """Those that are called in these seconds, or have writes to land: first those somebody waits for."""
        since = self._host.clock.monotonic() - CALLED_SECS
        serving = (residency for residency in self._residents.awake() if residency.serving)
        wanted = (r for r in serving if r.leg.behind or (r.called and r.last_used > since))
        return sorted(wanted, key=lambda r: (not r.flights.awaited, -r.last_used))

    async def run(self, residencies: Sequence[Residency], secs: float, enough: Callable[[], bool]) -> None:
        """Returns when the last has had its turn, when `enough` says so, or after `secs`; those not begun stay awake
        here."""
        self._queue = deque(residencies)
        while len(self._turns) < min(AT_ONCE, len(self._queue)):
            turn = self._host.loop.create_task(self._take_turns(enough))
            self._turns.add(turn)
            turn.add_done_callback(self._turns.discard)
        if self._turns:
            await asyncio.wait(list(self._turns), timeout=secs)
        self._queue.clear()

    async def taken(self, body: bytes) -> bytes:
        """`take-object`, at the next home: awake when this returns. Raises MsgspecError, and what `enter` does."""
        asked = msgspec.msgpack.decode(body, type=TakeObject)
        key = ObjectKey(asked.scope, asked.cls, asked.name)
        if self._residents.asleep(key.id):
            self._residents.rows.learn(key.id, asked.row, asked.version)
        await self._residents.enter(key, create=False)
        return b""

    async def _take_turns(self, enough: Callable[[], bool]) -> None:
        while self._queue and not enough():
            residency = self._queue.popleft()
            if residency.serving:
                going = self._host.loop.create_task(self._go(residency))
                self._under_way.add(going)
                going.add_done_callback(self._under_way.discard)
                await asyncio.wait([going], timeout=TURN_SECS)

    async def _go(self, residency: Residency) -> None:
        key, taker = residency.key, self._taker(residency)
        if taker is not None:
            self._residents.handed[key.id] = taker.node_id
        (release,) = self._residents.sleep_soon([residency])
        await asyncio.wait([release])
        row = self._residents.rows.get(key.id)
        if taker is not None and row is not None:
            await self._ask(taker, key, row)

    async def _ask(self, taker: NodeRow, key: ObjectKey, row: Record) -> None:
        """Nobody depends on it: whoever calls the object wakes it, too."""
        assert self._host.peers is not None
        asked = TakeObject(key.scope, key.cls, key.name, row.value, row.version)
        try:
            await self._host.peers.ask(taker.peer, "take-object", msgspec.msgpack.encode(asked), TURN_SECS)
        except NotHome as error:  # another was faster
            with contextlib.suppress(KeyError):
                self._residents.handed[key.id] = str(error.extra["node"])
        except (DomicileError, NodeError) as error:
            self._host.log.debug("hand-over.unanswered", object=str(key), node=taker.node_id, error=str(error))

    def _taker(self, residency: Residency) -> NodeRow | None:
        """A member where one may be its home: the bytes are there."""
        key, nodes = residency.key, self._host.nodes
        if self._host.peers is None:
            return None
        rows = [nodes.with_copy(copy) for copy in residency.leg.manifest.members]
        for row in (*rows, nodes.choose_home(key.id, key.cls, {nodes.me})):
            if row is not None and row.node_id != nodes.me and row.peer and nodes.may_home(row, key.cls):
                return row
        return None
