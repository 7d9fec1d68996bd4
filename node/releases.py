"""Putting objects to sleep: each released clean by itself, their lease rows written as many to a write as fit.

A residency whose last flight cannot land holds up nobody but itself (PROTOCOLS section 5, "Clean release").
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from domicile.node.host import Host
from domicile.node.residency import Residency
from domicile.placement.leases import Overtaken, Release
from domicile.placement.store import StoreUnavailable

BATCH_MAX = 32
TRIES_MAX = 3


class Releases:
    """Ends residencies well. `released(release, version)` is told of every row that stands."""

    def __init__(self, host: Host, released: Callable[[Release, int], None]) -> None:
        self._host = host
        self._released = released
        self._waiting: list[tuple[Release, Residency]] = []
        self._writer: asyncio.Task[None] | None = None

    async def put_to_sleep(self, residency: Residency) -> None:
        """Returns when the object's release was sent, or when it lost its right before."""
        released = await residency.release()
        if released is None:
            return
        try:
            mirror, alarm = await residency.due.released_row()
        except StoreUnavailable as error:
            self._host.log.warning("release.unsent", objects=1, error=str(error))
            residency.sent()
            return
        release = Release(residency.claimed, released, mirror, alarm if released.tag else None)
        self._waiting.append((release, residency))
        if self._writer is None:
            self._writer = self._host.loop.create_task(self._write())
        await asyncio.shield(self._writer)

    async def _write(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[:BATCH_MAX], self._waiting[BATCH_MAX:]
                try:
                    await self._send([release for release, _ in batch])
                finally:
                    for _, residency in batch:
                        residency.sent()
        finally:
            self._writer = None

    async def _send(self, releases: list[Release]) -> None:
        """A release that cannot be written leaves the row as it is: the next claim takes over, which is as safe."""
        self._host.failpoints.hit("release.before-row")
        for _ in range(TRIES_MAX):
            try:
                outcomes = await self._host.leases.release(releases)
            except StoreUnavailable as error:
                self._host.log.warning("release.unsent", objects=len(releases), error=str(error))
                return
            self._host.failpoints.hit("release.after-row")
            again = []
            for release in releases:
                outcome = outcomes[release.claimed.key.id]
                if not isinstance(outcome, Overtaken):
                    self._released(release, outcome)
                elif outcome.lease is not None and outcome.lease.version == release.claimed.version:
                    again.append(Release(release.claimed, release.released, outcome.alarm, release.alarm))
            releases = again
            if not releases:
                return
