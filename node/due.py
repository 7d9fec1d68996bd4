"""The alarms of one residency: local timer, handler, and the mirror row that wakes the object elsewhere (section 9).

Storage is the truth. **A row is never later than storage**: only a call that makes the earliest due time earlier than
the mirrored row writes it, beside its flight, and answers after both. Later or cleared is not written; the release
carries the right row, and so does the correction after a handler ran.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from domicile.classes import HookSpec
from domicile.context import Alarm
from domicile.node.errors import Fenced, NodeError
from domicile.node.sqlite import alarm_table
from domicile.placement.alarms import Mirror, Overtaken, alarm_row
from domicile.placement.store import StoreUnavailable

if TYPE_CHECKING:
    from domicile.node.host import Host
    from domicile.node.residency import Residency
    from domicile.placement.records import AlarmRow

PUMP_SECS = 0.05
TIMER_SECS_MAX = 3600.0
MIRROR_TRIES = 3
RETRY_SECS = 5.0
UNADMITTED_SECS = 0.5


class DueAlarms:
    """What is due when, and what the mirror says of it."""

    def __init__(self, host: Host, residency: Residency) -> None:
        self._host = host
        self._residency = residency
        self._hook: HookSpec | None = residency.spec.hooks.get("on_alarm")
        self._timer: asyncio.TimerHandle | None = None
        self._mirroring: asyncio.Task[None] | None = None
        self._waiting: list[asyncio.Future[bool]] = []
        self._mirror: Mirror | None = Mirror() if residency.claimed.created else None
        self._over = False
        self.earliest: int | None = None

    @property
    def mirroring(self) -> bool:
        """Whether the mirror is being written: a caller may wait for it."""
        return self._mirroring is not None

    def start(self) -> None:
        """Wait for the earliest alarm that storage had when it was opened."""
        self._note(self._residency.engine.earliest)

    def stop(self) -> None:
        """No handler starts any more."""
        self._over = True
        for waiting in (self._timer, self._mirroring):
            if waiting is not None:
                waiting.cancel()

    async def after_round(self) -> asyncio.Future[bool] | None:
        """Calls changed alarms. Gives what their answers also wait for: the mirror, if it would be late otherwise."""
        self._residency.engine.context.alarms_touched = False
        await self._reread()
        if self.earliest is None or (self._mirror is not None and _not_later(self._mirror, self.earliest)):
            return None
        return self._write_mirror()

    async def pump(self) -> None:
        """A turn between calls: due alarms, one after the other, for at most 50 ms.

        While the base is not whole they wait: the handler may be `async def`, and one that fails for want of a page
        would use up an attempt. The mailbox is told to pump once it is.
        """
        if not self._residency.engine.whole:
            return
        if self._residency.flights.choked:
            self._ring_in(RETRY_SECS)
            return
        until = self._host.clock.monotonic() + PUMP_SECS
        if self._is_due() and not self._host.admitted():
            self._again_in(UNADMITTED_SECS)  # past its deadline a node starts no alarm
            return
        while self._is_due() and self._host.clock.monotonic() < until and self._residency.serving:
            due = alarm_table.due_now(self._residency.engine.db, self._host.clock.wall_ms(), 1)
            if not due:
                await self._reread()
                return
            await self._fire(due[0])
        if self._is_due() and self._residency.serving:  # else they are left to whoever wakes the object next
            self._residency.mailbox.pump_soon()

    async def released_row(self) -> tuple[Mirror, AlarmRow | None]:
        """What was seen of the mirror, and what the release is to make of it."""
        if self._mirror is None and self.earliest is not None:
            self._mirror = await self._host.mirror.read(self._residency.key.id)
        return self._mirror or Mirror(), self._row()

    def woken_by(self, row: AlarmRow) -> None:
        """A sweep found `row` due. If storage knows better, the mirror is corrected once what it says has landed.

        The timer is set anew: it counts seconds that the machine was awake, and the wall clock may have gone ahead.
        """
        self._arm()
        if (self.earliest is None or self.earliest > row.due_ms) and self._mirroring is None:
            self._mirror = None
            self._write_mirror(after=self._residency.log.mark)

    def overtaken(self, mirror: Mirror) -> None:
        """A write went by a row that is no longer so."""
        self._mirror = mirror

    async def _fire(self, alarm: Alarm) -> None:
        """Run the handler; the alarm is taken in its transaction. A failure leaves it armed, later."""
        residency, now_ms = self._residency, self._host.clock.wall_ms()
        sql = residency.engine.sql
        lag = max(0, now_ms - (alarm.due_ms or now_ms)) / 1000
        hook = self._hook or HookSpec("on_alarm", _unhandled, is_async=False, takes_alarm=True)
        args = (alarm,) if hook.takes_alarm else ()
        try:
            done = await residency.run_hook(hook, args, lambda: alarm_table.take(sql, alarm, now_ms))
            self._host.failpoints.hit("alarm.after-handler")
            if done.error is not None:
                self._host.log.warning(
                    "alarm.failed",
                    object=str(residency.key),
                    alarm=alarm.name,
                    attempt=alarm.attempts + 1,
                    error=done.error.detail,
                )
                await residency.change(lambda db: alarm_table.mark_attempt(db, alarm, now_ms))
        except NodeError as error:
            residency.end(error)
            return
        self._host.telemetry.alarm_lag_seconds.observe(lag)
        await self._reread()
        if self._mirroring is None:
            self._write_mirror(after=residency.log.mark)

    async def _reread(self) -> None:
        """The object stands still."""
        engine = self._residency.engine
        if engine.whole:
            self._note(alarm_table.earliest_due(engine.db))
        else:
            self._note(await self._host.workers.run(lambda: alarm_table.earliest_due(engine.db)))

    def _note(self, earliest: int | None) -> None:
        self.earliest = earliest
        try:
            self._host.alarm_index.note(self._residency.key, self._residency.incarnation, self.earliest)
        except OSError as error:
            self._host.log.warning("alarm.index", error=str(error))
        self._arm()

    def _arm(self) -> None:
        wait = 0.0 if self.earliest is None else (self.earliest - self._host.clock.wall_ms()) / 1000
        if self.earliest is not None and wait <= 0 and not self._over:
            self._residency.mailbox.pump_soon()
        self._ring_in(wait)

    def _ring_in(self, secs: float) -> None:
        """Look again in so many seconds; not at all for 0."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if secs > 0 and not self._over:
            self._timer = self._host.loop.call_later(min(secs, TIMER_SECS_MAX), self._arm)

    def _again_in(self, secs: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._host.loop.call_later(secs, self._arm)

    def _is_due(self) -> bool:
        return not self._over and self.earliest is not None and self.earliest <= self._host.clock.wall_ms()

    def _row(self) -> AlarmRow | None:
        if self.earliest is None:
            return None
        return alarm_row(self._residency.key, self._residency.incarnation, self.earliest)

    def _write_mirror(self, after: int | None = None) -> asyncio.Future[bool]:
        """Bring the mirror to what storage says; one writer at a time. Resolves to whether it stands."""
        stands: asyncio.Future[bool] = self._host.loop.create_future()
        self._waiting.append(stands)
        if self._mirroring is None:
            self._mirroring = self._host.loop.create_task(self._keep_mirroring(after))
            self._mirroring.add_done_callback(self._mirrored)
        return stands

    async def _keep_mirroring(self, after: int | None) -> None:
        """Until everybody who waits is satisfied. Those who saw three tries fail stop waiting; the writes go on."""
        if after is not None:
            await self._residency.flights.wait(after, float("inf"))
        tries = 0
        while self._waiting:
            covered = list(self._waiting)
            tries += 1
            stands = await self._tried()
            if not stands and tries < MIRROR_TRIES:
                await self._host.clock.sleep(self._host.jitter(0.05 * 4**tries))
                continue
            del self._waiting[: len(covered)]
            for waiting in covered:
                _resolve(waiting, stands)
            if not stands:
                await self._host.clock.sleep(self._host.jitter(RETRY_SECS))
                self._waiting.append(self._host.loop.create_future())

    async def _tried(self) -> bool:
        try:
            return await self._set_mirror()
        except StoreUnavailable as error:
            self._host.log.warning("alarm.mirror", object=str(self._residency.key), error=str(error))
            return False

    def _mirrored(self, task: asyncio.Task[None]) -> None:
        self._mirroring = None
        for waiting in self._waiting:
            _resolve(waiting, False)
        self._waiting.clear()
        if not task.cancelled() and (error := task.exception()) is not None:
            self._residency.end(error)

    async def _set_mirror(self) -> bool:
        residency = self._residency
        if self._mirror is None:
            self._mirror = await self._host.mirror.read(residency.key.id)
        self._host.failpoints.hit("mirror.before-write")
        outcome = await self._host.mirror.set(residency.key.id, residency.claimed.version, self._mirror, self._row())
        self._host.failpoints.hit("mirror.after-write")
        if not isinstance(outcome, Overtaken):
            self._mirror = outcome
            return True
        self._mirror = outcome.alarm
        if outcome.lease is None or outcome.lease.version != residency.claimed.version:
            residency.end(Fenced(f"{residency.key}: its lease row has another version"))
        return False


def _not_later(mirror: Mirror, due_ms: int) -> bool:
    return mirror.due_ms is not None and mirror.due_ms <= due_ms


def _unhandled(instance: object, alarm: object) -> None:
    raise NotImplementedError(f"{type(instance).__name__} has alarms but no on_alarm")


def _resolve(future: asyncio.Future[bool], stands: bool) -> None:
    if not future.done():
        future.set_result(stands)
