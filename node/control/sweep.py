"""Waking what is due: this node's own sleepers on time, everybody's rows in a sweep (PROTOCOLS section 9).

Waking is claiming, and the object's own storage decides. A wake never creates an object: the row of one that does not
exist, or lives another life, goes.

Where `TEMPORAL` is configured the region's schedule sweeps and asks nodes to wake (`asked`); a node's own sweep then
takes what the schedule left for as long as one sweep, the first by rendezvous rank, the next ones a sweep later each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from domicile.errors import DomicileError, Moving, NoSuchObject, NotHome
from domicile.node.control.messages import WakeRequest, Woken
from domicile.node.host import Host
from domicile.node.residents import Residents
from domicile.placement.alarms import Due
from domicile.placement.records import ObjectKey
from domicile.placement.rendezvous import Candidate, rank
from domicile.placement.store import ScanExpired, StoreUnavailable

WAKES_AT_ONCE = 32
UNASKED = WakeRequest(())


class Sweep:
    """Sweeps the mirror every `OBJECT_SWEEP_SECS`, `OBJECT_SWEEP_ROWS` rows a pass until none is due."""

    def __init__(self, host: Host, residents: Residents, suspect: Callable[[str], None]) -> None:
        """`suspect` is told of a node that holds an object whose alarm is overdue: it may be dead."""
        self._host = host
        self._suspect = suspect
        self._residents = residents
        self._at_once = asyncio.Semaphore(WAKES_AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()
        self._scheduled = bool(host.config.temporal)

    def wake(self, keys: list[ObjectKey]) -> None:
        """Sleepers whose time has come. Whoever cannot be woken now is left to a sweep."""
        for key in keys:
            task = self._host.loop.create_task(self._wake_sleeper(key))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def run(self) -> None:
        """Until cancelled. The first sweep comes at once: what fell due while no node was up is late already."""
        await self._offer()
        while True:
            try:
                await self.pass_over()
            except (StoreUnavailable, ScanExpired) as error:
                self._host.log.warning("sweep.failed", error=str(error))
            await self._host.clock.sleep(self._host.config.object_sweep_secs)

    async def asked(self, body: bytes) -> bytes:
        """`wake-alarm`: a WakeRequest; answers a Woken for each row, in order. Raises MsgspecError."""
        request = msgspec.msgpack.decode(body, type=WakeRequest)
        dues = [Due(ObjectKey(row.scope, row.cls, row.name).id, row, version) for row, version in request.rows]
        woken = await asyncio.gather(*(self._look_at(due, request) for due in dues))
        return msgspec.msgpack.encode(woken)

    async def pass_over(self) -> int:
        """Wake everything that is due and this node's to wake; gives how many rows were looked at."""
        token: str | None = None
        rows = 0
        while True:
            now_ms = self._host.clock.wall_ms()
            page = await self._host.mirror.due(now_ms, self._host.config.object_sweep_rows, token)
            rows += len(page.rows)
            self._host.telemetry.alarms_due.value = len(page.rows)
            await asyncio.gather(*(self._look_at(due) for due in page.rows if self._is_mine(due, now_ms)))
            token = page.token
            if token is None:
                return rows

    async def _offer(self) -> None:
        """At boot, rows the mirror may have lost, from this node's own index."""
        for row in self._host.alarm_index.rows():
            try:
                await self._host.mirror.offer(ObjectKey(row.scope, row.cls, row.name).id, row)
            except StoreUnavailable as error:
                self._host.log.warning("alarm.offer", object=f"{row.scope}/{row.cls}/{row.name}", error=str(error))

    def _is_mine(self, due: Due, now_ms: int) -> bool:
        """Where a schedule sweeps: what it has left for a sweep, and one more for each node that comes first."""
        if not self._scheduled:
            return True
        late = (now_ms - due.row.due_ms) / 1000 / self._host.config.object_sweep_secs
        if late < 1:
            return False
        nodes = self._host.nodes
        rows = [row for row in nodes.all() if nodes.may_home(row, due.row.cls)]
        before = rank(due.object_id, [Candidate(row.node_id, row.weight) for row in rows])
        place = next((at for at, candidate in enumerate(before) if candidate.id == nodes.me), len(before))
        return late >= 1 + place

    async def _wake_sleeper(self, key: ObjectKey) -> None:
        async with self._at_once:
            try:
                await self._residents.enter(key, create=False)
            except (NotHome, NoSuchObject, Moving) as error:  # awake elsewhere, or gone: its row is theirs by now
                self._host.log.debug("alarm.wake", object=str(key), error=error.detail)
            except DomicileError as error:
                self._host.log.warning("alarm.wake", object=str(key), error=error.detail)

    async def _look_at(self, due: Due, asked: WakeRequest = UNASKED) -> Woken:
        row = due.row
        async with self._at_once:
            try:
                key = ObjectKey(row.scope, row.cls, row.name)
                residency = await self._residents.enter(key, create=False, may_forward=asked.may_forward)
                ghost = residency.incarnation != row.incarnation
                if not ghost:
                    residency.due.woken_by(row)
            except NoSuchObject:
                ghost = True
            except NotHome as error:
                node = str(error.extra.get("node", ""))
                overdue = self._host.clock.wall_ms() - row.due_ms > self._host.config.object_sweep_secs * 1000
                if node and (overdue or node in asked.silent):
                    self._suspect(node)  # its home has had its time, or does not answer
                return Woken("elsewhere", node, error.detail)
            except DomicileError as error:
                self._host.log.warning("alarm.wake", object=f"{row.scope}/{row.cls}/{row.name}", error=error.detail)
                return Woken("moving" if isinstance(error, Moving) else "refused", detail=error.detail)
            if ghost:
                return await self._bury(due)
            return Woken("awake")

    async def _bury(self, due: Due) -> Woken:
        try:
            await self._host.mirror.remove_ghost(due)
        except StoreUnavailable as error:
            return Woken("refused", detail=str(error))
        return Woken("ghost")
