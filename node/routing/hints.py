"""What was last seen of the control keyspace, kept on disk: after a restart with control away, calls still find their
region and known classes are born on (PROTOCOLS section 2). Hints for routing only; a file that cannot be read is none.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import msgspec

from domicile.node.clock import Clock
from domicile.node.disk import Disk
from domicile.node.workers import Workers
from domicile.placement.pins import Pins
from domicile.placement.projects import Projects
from domicile.placement.records import ClassRow, ProjectRow, RegionRow
from domicile.placement.regions import Regions

GATHER_SECS = 1.0
FILE_NAME = "control-hints.json"


class Kept(msgspec.Struct):
    """The file. `classes` is by project, then by class."""

    regions: dict[str, RegionRow] = {}
    standins: dict[str, str] = {}
    projects: dict[str, ProjectRow] = {}
    classes: dict[str, dict[str, ClassRow]] = {}


class Hints:
    """Reads the file when it is built, and keeps it as `touch` says that something is new."""

    def __init__(
        self, path: str, disk: Disk, clock: Clock, workers: Workers, log: Any, known: tuple[Regions, Projects, Pins]
    ) -> None:
        self._path = path
        self._disk = disk
        self._clock = clock
        self._workers = workers
        self._log = log
        self._regions, self._projects, self._pins = known
        self._new = asyncio.Event()
        self._load()

    def touch(self) -> None:
        """Something was learned."""
        self._new.set()

    async def run(self) -> None:
        """Until cancelled: one write for what is learned within a second."""
        while True:
            await self._new.wait()
            await self._clock.sleep(GATHER_SECS)
            self._new.clear()
            try:
                await self._workers.run(partial(self._disk.replace, self._path, self._packed(), sync=True))
            except OSError as error:
                self._log.warning("hints.unsaved", error=str(error))

    def _packed(self) -> bytes:
        kept = Kept(
            dict(self._regions.all_known()),
            dict(self._regions.standins_known()),
            dict(self._projects.all_known()),
            {project: dict(rows) for project, rows in self._pins.all_known().items()},
        )
        return msgspec.json.encode(kept)

    def _load(self) -> None:
        try:
            kept = msgspec.json.decode(self._disk.read(self._path), type=Kept)
        except FileNotFoundError:
            return
        except (OSError, msgspec.MsgspecError) as error:
            self._log.warning("hints.unread", error=str(error))
            return
        self._regions.remember(kept.regions, kept.standins)
        self._projects.remember(kept.projects)
        self._pins.remember(kept.classes)
