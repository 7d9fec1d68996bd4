"""Membership: a node's row, its renewals, and its leaving (PROTOCOLS section 3).

A renewal is a write of the own row, conditioned on the version last written. Only its commit counts. Each attempt has
a beat number of its own, so that after a lost answer the row itself says which attempt landed, hence when it was sent.
A row that is gone is the end of this node id: register anew, as somebody else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec

from domicile.placement.admission import Admission, Clock, Timing
from domicile.placement.claims import Registration
from domicile.placement.followed import decode
from domicile.placement.keys import Keys
from domicile.placement.records import DepartureRow, NodeRow, encode
from domicile.placement.store import (
    At,
    Committed,
    Delete,
    Grant,
    GrantGone,
    Put,
    Store,
    StoreUnavailable,
)

BACKOFF_SECS = 0.05
BACKOFF_MAX_SECS = 1.0
LEAVE_TRIES = 3
T = TypeVar("T")


class RowGone(Exception):
    """The node's row is not there, or another's: this node id is over."""


class Membership:
    """One node id's membership. All methods run on one loop, the heartbeat's; `admission` is for all threads.

    `describe` gives the row as it should be now (its beat is overwritten). `grant` is the supervisor's, if it made one.
    `lost` is called once, on that loop, when the row is gone; the deadline is then already now.
    """

    def __init__(
        self,
        store: Store,
        keys: Keys,
        timing: Timing,
        clock: Clock,
        describe: Callable[[], NodeRow],
        lost: Callable[[], None],
        grant: Grant | None = None,
    ) -> None:
        timing.check()
        self.admission = Admission(timing, clock.monotonic)
        self.registration: Registration | None = None
        self._store = store
        self._timing = timing
        self._clock = clock
        self._describe = describe
        self._lost = lost
        self._grant = grant
        self._keys = keys
        self._key = keys.node(describe().node_id)
        self._version = 0
        self._beat = 0
        self._sent: dict[int, float] = {}
        self._failures = 0
        self._leaving = False
        self._hurry = asyncio.Event()
        self._turn = asyncio.Lock()

    async def register(self, patience_secs: float = 0.0) -> Registration:
        """Write the row for the first time; tried again for so long where the store does not answer in time.

        Raises StoreUnavailable when it never does; this may then be called again. Raises RowGone when another run's row
        of this node id is there, GrantGone when the grant ran out meanwhile.
        """
        until = self._clock.monotonic() + patience_secs
        while True:
            try:
                return await self._register_once()
            except StoreUnavailable:
                if self._clock.monotonic() >= until:
                    raise
            await self._clock.sleep(BACKOFF_MAX_SECS)

    async def _register_once(self) -> Registration:
        async with self._turn:
            try:
                await self._write_granted()
            except GrantGone:
                # The supervisor's ran out while this process was starting. To begin anew would only be as slow.
                self._grant = None
                await self._write_granted()
        if self.registration is None:
            raise StoreUnavailable("the node could not be registered in time", maybe=True)
        return self.registration

    async def _write_granted(self) -> None:
        if self._grant is None:
            self._grant = await self._in_time(self._store.grant(self._timing.ttl))
        await self._write()

    async def run(self) -> None:
        """Renew until the row is gone or `leave` was called. Runs where nothing can block it."""
        ticker = asyncio.ensure_future(self._tick())
        try:
            while not self._leaving:
                began = self._clock.monotonic()
                try:
                    renewed = await self.renew()
                except (RowGone, GrantGone):
                    if not self._leaving:
                        self.admission.end()
                        self._leaving = True
                        self._lost()
                    return
                await self._wait(self._pause(began, renewed))
        finally:
            ticker.cancel()

    async def renew(self) -> bool:
        """One attempt; False when it is not known to have committed. Raises RowGone, GrantGone."""
        async with self._turn:
            if self._leaving:
                return False
            renewed = await self._write()
            if renewed and self._grant is not None:
                await self._keep(self._grant)
            return renewed

    def hurry(self) -> None:
        """Renew now: what `describe` gives has changed. From the heartbeat's loop."""
        self._hurry.set()

    async def leave(self, why: str) -> bool:
        """Delete the row, with a departure record. From the moment it is sent the deadline is now.

        True when the row is known to be gone; False when the store did not answer: then the grant's end, or somebody
        who needs to, does it.
        """
        self.admission.end()
        self._leaving = True
        self._hurry.set()
        async with self._turn:
            for _ in range(LEAVE_TRIES):
                try:
                    if await self._in_time(self._depart(why)):
                        return True
                except StoreUnavailable:
                    await self._clock.sleep(BACKOFF_SECS)
        return False

    async def close(self) -> None:
        """It is over, and so is its loop."""
        await self._store.release()

    async def _write(self) -> bool:
        """Put the row on the version last known. False when this attempt is not known to have committed."""
        self._beat += 1
        sent = self._sent[self._beat] = self._clock.monotonic()
        row = msgspec.structs.replace(self._describe(), beat=self._beat)
        put = self._store.write([At(self._key, self._version)], [Put(self._key, encode(row))], self._grant)
        try:
            outcome = await self._in_time(put)
        except StoreUnavailable:
            return False
        if isinstance(outcome, Committed):
            self._stands(outcome.version, outcome.version, self._beat, sent)
            return True
        record = outcome.current[self._key]
        if record is None:
            raise RowGone(f"the row {self._key} is gone")
        found = decode(record, NodeRow)
        if found.row.beat not in self._sent or (self.registration and self.registration.created != found.created):
            raise RowGone(f"the row {self._key} is another's")
        # An earlier attempt landed after its answer was lost: it counts from its own time, and this one did nothing.
        self._stands(found.version, found.created, found.row.beat, self._sent[found.row.beat])
        return False

    def _stands(self, version: int, created: int, beat: int, sent: float) -> None:
        self._version = version
        self._sent = {later: at for later, at in self._sent.items() if later > beat}
        if self.registration is None:
            self.registration = Registration(self._describe().node_id, created)
        self.admission.renewed(sent)

    async def _keep(self, grant: Grant) -> None:
        # Beside the renewal, for the broom only: that it failed says nothing about the right to serve.
        try:
            await self._in_time(self._store.keep(grant))
        except StoreUnavailable:
            return

    async def _depart(self, why: str) -> bool:
        row = self._describe()
        record = DepartureRow(self._clock.wall_ms(), why, row.copy_id)
        outcome = await self._store.write(
            [At(self._key, self._version)],
            [Delete(self._key), Put(self._keys.departure(row.node_id), encode(record))],
        )
        if isinstance(outcome, Committed):
            return True
        current = outcome.current[self._key]
        if current is None:
            return True
        # A renewal whose answer was lost: go on from what it wrote.
        self._version = current.version
        return False

    async def _in_time(self, answer: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(self._timing.timeout):
                return await answer
        except TimeoutError as error:
            raise StoreUnavailable("the placement store did not answer in time", maybe=True) from error

    def _pause(self, began: float, renewed: bool) -> float:
        """Until the next beat; after a failure at once, then with backoff against what is left."""
        if renewed:
            self._failures = 0
            return max(0.0, began + self._timing.heartbeat - self._clock.monotonic())
        self._failures += 1
        backoff = 0.0 if self._failures == 1 else BACKOFF_SECS * 2.0 ** min(self._failures - 2, 10)
        left = self.admission.remaining()
        return min(backoff, BACKOFF_MAX_SECS, max(left / 4, BACKOFF_SECS) if left > 0 else BACKOFF_MAX_SECS)

    async def _wait(self, secs: float) -> None:
        sleep = asyncio.ensure_future(self._clock.sleep(secs))
        hurried = asyncio.ensure_future(self._hurry.wait())
        try:
            await asyncio.wait((sleep, hurried), return_when=asyncio.FIRST_COMPLETED)
        finally:
            sleep.cancel()
            hurried.cancel()
            self._hurry.clear()

    async def _tick(self) -> None:
        while True:
            if self.admission.tick():
                self._hurry.set()
            await self._clock.sleep(self._timing.tick)
