"""Calls an object's method makes to others, and what must go on while such a method waits (PROTOCOLS section 6)."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from domicile.errors import NotServing

if TYPE_CHECKING:
    from domicile.node.host import Host
    from domicile.node.residency import Residency
    from domicile.node.values import Answer, Call


class Outgoing:
    """The outgoing calls of one residency."""

    def __init__(self, host: Host, residency: Residency) -> None:
        self._host = host
        self._residency = residency
        self._waiting = 0
        self._paused = asyncio.Event()

    async def call(self, call: Call) -> Answer:
        """Call another object, once every earlier call's write has landed; those of the same round count.

        Raises what the call does, and NotServing when the earlier writes do not land in time.
        """
        residency = self._residency
        residency.ship_committed()
        flights = residency.flights
        if not flights.has_landed(flights.mark):
            gate = residency.now() + self._host.config.object_ack_gate_ms / 1000
            if not await self._landed(flights.mark, gate):
                raise NotServing("earlier writes of the calling object are not durable yet")
        return await self._host.call_out(call)

    async def read_chunk(self, index: int) -> bytes:
        """A chunk of the base, when no statement runs: between two calls, or while the running one waits for this very
        landing."""
        if (paged := self._residency.engine.paged) is not None:
            await paged.want(index)  # what is read below may be read on the loop
        alone = self._host.loop.create_task(self._read_alone(index))
        try:
            while not alone.done():
                if self._waiting:  # its thread stands still, and nobody else has the connection
                    return self._residency.engine.read_chunk(index)
                paused = self._host.loop.create_task(self._paused.wait())
                await asyncio.wait([alone, paused], return_when=asyncio.FIRST_COMPLETED)
                paused.cancel()
            return alone.result()
        finally:
            alone.cancel()
            with suppress(asyncio.CancelledError):
                await alone

    async def _landed(self, mark: int, gate: float) -> bool:
        self._waiting += 1
        self._paused.set()
        try:
            return await self._residency.flights.wait(mark, gate)
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._paused.clear()

    async def _read_alone(self, index: int) -> bytes:
        async with self._residency.mailbox.alone():
            return await self._host.workers.run(lambda: self._residency.engine.read_chunk(index))
