"""The objects awake on this node: found or woken, kept within bounds, put to sleep (PROTOCOLS section 4).

Concurrent first calls to one object give one claim, one lay, one `init`: whoever comes second waits for the first. A
claim goes by what this node remembers of the lease row; when that is out of date, the conflict brings the row, and the
row is the answer to where the object lives.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any

from domicile.errors import DomicileError, NoSuchObject, NotHome, NotServing
from domicile.node.activation import Activation, Landing, refuse
from domicile.node.errors import Fenced, NodeError
from domicile.node.holds import Holds
from domicile.node.host import Host
from domicile.node.lease_watch import LeaseWatch
from domicile.node.releases import Releases
from domicile.node.residency import Phase, Residency
from domicile.node.rows_seen import RowsSeen
from domicile.node.sleepers import Sleepers
from domicile.placement.claims import Claimed, ended_row, lease_seen
from domicile.placement.leases import Release
from domicile.placement.records import ObjectKey, encode

ENDING_WAIT_SECS = 1.0
TICK_SECS = 0.1
IDLE_TICKS = 10
FRESH_SECS = 1.0
REST_SECS = 2.0


class Residents:
    """The table of residencies, by object id."""

    def __init__(self, host: Host, activation: Activation, sleepers: Sleepers) -> None:
        self._host = host
        self._activation = activation
        activation.homed = lambda: len(self._awake) + len(self._waking)
        self._sleepers = sleepers
        self._awake: OrderedDict[str, Residency] = OrderedDict()
        self._waking: dict[str, asyncio.Task[Residency]] = {}
        self.rows = RowsSeen()
        self._releases = Releases(host, self._released)
        self._going: dict[asyncio.Task[None], None] = {}  # releases, in order
        self.handed: dict[str, str] = {}  # while this node leaves, by object: the node that was asked to take it
        self._leases = LeaseWatch(host)
        self._ticks = 0
        self._era = 0
        self.holds = Holds(host.clock)
        self.leaving = False
        self.woke: Callable[[Residency], None] = lambda residency: None

    def __len__(self) -> int:
        return len(self._awake)

    def awake(self) -> list[Residency]:
        """Every residency there is now."""
        return list(self._awake.values())

    def find(self, object_id: str) -> Residency | None:
        """The residency, if the object is awake here; wakes nothing."""
        return self._awake.get(object_id)

    def asleep(self, object_id: str) -> bool:
        """Whether nothing here has the object's files: it neither is awake nor wakes."""
        return object_id not in self._awake and object_id not in self._waking

    async def enter(
        self, key: ObjectKey, *, create: bool = True, may_forward: bool = False, until: float | None = None
    ) -> Residency:
        """The object's residency, woken if need be. With `create` False an object that is not there stays so.

        `until`: when the caller's patience ends, by the node's clock; the object goes on waking. Raises NotServing,
        NotHome, Moving, NoSuchClass, NoSuchProject, NoSuchObject.
        """
        while True:
            residency = self._awake.get(key.id)
            if residency is not None and residency.serving:
                self._awake.move_to_end(key.id)
                return residency
            if residency is not None:
                await self._await_end(residency)
                continue
            self.holds.check(key.id)
            if self.leaving:
                raise self._left(key.id)
            joined = key.id in self._waking
            try:
                return await self._awaited(self._wake(key, create, may_forward), until)
            except NoSuchObject:
                if not (joined and create):
                    raise

    async def _awaited(self, waking: asyncio.Task[Residency], until: float | None) -> Residency:
        """Neither a caller that goes away nor one whose time is up ends it."""
        if until is not None:
            done, _ = await asyncio.wait([waking], timeout=max(0.0, until - self._host.clock.monotonic()))
            if not done:
                raise NotServing("the object is not awake yet: its waking goes on")
        return await asyncio.shield(waking)

    async def claim(self, key: ObjectKey) -> Claimed:
        """The lease of an object that cannot be woken. Raises NoSuchObject, NotServing."""
        return await self._activation.claim(key)

    def _wake(self, key: ObjectKey, create: bool, may_forward: bool) -> asyncio.Task[Residency]:
        """The activation under way, or a new one. It goes on when its caller goes away: others may wait for it."""
        waking = self._waking.get(key.id)
        if waking is None:
            row = lease_seen(self.rows.get(key.id))
            waking = self._host.loop.create_task(
                self._activation.activate(key, row, create=create, may_forward=may_forward)
            )
            self._begin(key, waking)
        return waking

    def _begin(self, key: ObjectKey, waking: asyncio.Task[Residency]) -> None:
        self._waking[key.id] = waking
        era = self._era
        waking.add_done_callback(lambda done: self._woken(key, done, era))

    def _woken(self, key: ObjectKey, task: asyncio.Task[Residency], era: int) -> None:
        del self._waking[key.id]
        if task.cancelled() or task.exception() is not None:
            return
        residency = task.result()
        self.rows.forget(key.id)
        self._sleepers.forget(key.id)
        self._awake[key.id] = residency
        residency.over.add_done_callback(lambda _: self._gone(key.id, residency))
        self._host.telemetry.of_class(key.cls).residents.add(1)
        if era != self._era:
            residency.end(Fenced("this node lost its row while the object woke"))
        elif residency.landing:
            self.sleep_soon([residency])
        self.woke(residency)
        self._make_room()

    def forget_row(self, object_id: str) -> None:
        """The object was deleted: what is remembered of its row and its alarms is of its last life."""
        self.rows.forget(object_id)
        self._sleepers.forget(object_id)

    def _gone(self, object_id: str, residency: Residency) -> None:
        if self._awake.get(object_id) is residency:
            del self._awake[object_id]
            self._host.telemetry.of_class(residency.key.cls).residents.add(-1)

    async def _await_end(self, residency: Residency) -> None:
        """One that ends is waited for until its release is sent; whoever comes then resolves anew.

        Raises what it refuses callers with, if it ends because the object goes elsewhere.
        """
        if residency.over.done():
            self._gone(residency.key.id, residency)
            return
        if residency.refusal is not None:
            raise residency.refusal
        done, _ = await asyncio.wait([residency.over], timeout=ENDING_WAIT_SECS)
        if not done:
            raise self._left(residency.key.id)

    def _left(self, object_id: str) -> NotHome:
        taker = self.handed.get(object_id)
        return NotHome("this node is leaving", **({"node": taker} if taker else {}))

    # Sleep.

    async def put_to_sleep(self, residency: Residency) -> None:
        """Release clean now; what runs finishes first."""
        residency.phase = Phase.ENDING
        await self._releases.put_to_sleep(residency)

    def _released(self, release: Release, version: int) -> None:
        key = release.claimed.key
        self.rows.learn(key.id, encode(ended_row(release.claimed, release.released)), version)
        if release.alarm is not None:
            self._sleepers.set(key, release.alarm.due_ms)

    def tick(self) -> None:
        """Ten times a second: time limits of those that are busy; once a second who may go to sleep."""
        now = self._host.clock.monotonic()
        self._ticks += 1
        stirring = self._host.stirring
        for residency in list(stirring):
            if residency.phase is Phase.OVER or residency.quiet:
                stirring.discard(residency)
            else:
                residency.tick(now)
        if self._ticks % IDLE_TICKS == 0 and not self.leaving:
            self._look_for_idle(now)
            self._make_room()

    def _look_for_idle(self, now: float) -> None:
        """Objects at rest give their spare memory back; those idle for long go to sleep, once all they wrote landed."""
        default = self._host.config.object_idle_secs
        asleep = []
        for residency in self._awake.values():
            residency.look_after_members(now)
            if self._leases.due(residency, now):
                self._leases.look(residency, now)
            if not residency.quiet:
                self._host.stirring.add(residency)
            if not (residency.serving and residency.quiet):
                continue
            idle = now - residency.last_used
            if idle > (residency.spec.idle_secs or default) and not residency.leg.behind:
                asleep.append(residency)
            elif idle > REST_SECS:
                residency.rest()
        self.sleep_soon(asleep)

    def _make_room(self) -> None:
        """Past `OBJECT_RESIDENTS`, those used longest ago go to sleep; not one whose caller is about to come."""
        limit = self._host.config.object_residents
        if len(self._awake) > limit:
            surplus = max(0, sum(residency.serving for residency in self._awake.values()) - limit)
            fresh = self._host.clock.monotonic() - FRESH_SECS
            settled = (r for r in self._awake.values() if r.serving and r.quiet and (r.called or r.began < fresh))
            self.sleep_soon([r for r, _ in zip(settled, range(surplus), strict=False)])

    def sleep_soon(self, residencies: Iterable[Residency]) -> list[asyncio.Task[None]]:
        """From now on they take no calls. Each task is done when that release was sent, or the right was lost."""
        releases = []
        for residency in residencies:
            task = self._host.loop.create_task(self.put_to_sleep(residency))
            residency.phase = Phase.ENDING
            self._going[task] = None
            task.add_done_callback(self._slept)
            releases.append(task)
        return releases

    def _slept(self, task: asyncio.Task[None]) -> None:
        self._going.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._host.replace_process(f"objects could not be released: {error!r}")

    # Going elsewhere (section 10, "What a closed gate does").

    def send_away(self, residency: Residency, refusal: DomicileError) -> None:
        """End the residency well; from now on its callers are refused so."""
        serving = residency.serving
        refuse(residency, refusal)
        if serving:
            self.sleep_soon([residency])

    async def land(self, key: ObjectKey, landing: Landing) -> None:
        """Whatever this node has of the object is landed and released, by a claim of its own if it is awake nowhere.

        Safe to repeat; what became of it the lease row says. Raises NotHome when another node holds it, and what stood
        in a claim's or a lay's way.
        """
        if (waking := self._waking.get(key.id)) is not None:
            await asyncio.wait([waking])
        residency = self._awake.get(key.id)
        if residency is None and key.id not in self._waking:
            if self.leaving:
                raise NotHome("this node is leaving")
            waking = self._host.loop.create_task(self._activation.land(key, landing))
            self._begin(key, waking)
            with contextlib.suppress(NoSuchObject):
                residency = await asyncio.shield(waking)
        if residency is not None:
            self.send_away(residency, landing.refusal)
            await asyncio.shield(residency.over)

    # The end.

    async def release_all(self, secs: float) -> None:
        """At once, those somebody waits for first; what is not released in time keeps its lease."""
        serving = [residency for residency in self._awake.values() if residency.serving]
        self.sleep_soon(sorted(serving, key=lambda residency: not residency.flights.awaited))
        ending = [residency.over for residency in self._awake.values()]
        if ending:
            await asyncio.wait(ending, timeout=max(0.0, secs))
        for release in list(self._going):
            release.cancel()

    async def settled(self, secs: float) -> int:
        """Wait for what is being released or wakes, at most so long; gives how many are left, all told."""
        ending: list[asyncio.Future[Any]] = [r.over for r in self._awake.values() if not r.serving]
        ending += self._waking.values()
        if ending:
            await asyncio.wait(ending, timeout=max(0.0, secs))
        return len(self._awake) + len(self._waking)

    def abandon(self, error: NodeError) -> None:
        """The node lost its row: every residency ends, unflushed; those that wake under it as soon as they do."""
        self._era += 1
        for residency in list(self._awake.values()):
            residency.end(error)
