"""The control keyspace as this node sees it: followed, kept on disk, and told of this node's region (PROTOCOLS
sections 2 and 4).

Nothing here is waited for at start: with control away a node serves by what it knew.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine
from typing import Any

from domicile.node.config import Config
from domicile.node.routing.hints import FILE_NAME, Hints
from domicile.node.routing.home_region import HomeRegion
from domicile.node.seams import Seams
from domicile.placement.directory import Directory
from domicile.placement.gates import Gates
from domicile.placement.pins import Pins
from domicile.placement.projects import Projects
from domicile.placement.records import RegionRow
from domicile.placement.regions import Regions
from domicile.placement.repinning import ClassGates, PinRows
from domicile.placement.store import StoreUnavailable

RETRY_SECS = 1.0


class ControlView:
    """`regions`, `projects`, `pins` and what follows from them, `homes`. Run `parts` as tasks."""

    def __init__(self, seams: Seams, gates: Gates) -> None:
        control, keys, clock = seams.control or seams.store, gates.keys, seams.clock
        self._seams = seams
        self.regions = Regions(control, keys.control, clock.sleep)
        self.projects = Projects(control, gates, self.regions, clock.wall_ms, clock.sleep)
        self.pins = Pins(control, keys, gates, self.regions, clock.sleep)
        self.pin_rows = PinRows(control, gates)
        self.class_gates = ClassGates(seams.store, gates, Directory(seams.store, keys))
        first_use = seams.config.projects == "first-use"
        self.homes = HomeRegion(seams.registry, gates, self.projects, self.pins, self.regions, first_use=first_use)
        path = os.path.join(seams.config.data, FILE_NAME)
        known = (self.regions, self.projects, self.pins)
        self._hints = Hints(path, seams.disk, clock, seams.workers, seams.log, known)
        self.regions.changed = self._hints.touch
        self.projects.changed = self._project_changed
        self.pins.changed = self._class_changed
        self.class_changed: Callable[[str, str], None] = lambda project, cls: None

    def parts(self) -> tuple[Coroutine[Any, Any, None], ...]:
        """All that runs as long as the node does."""
        return (
            self.regions.followed.run(),
            self.regions.standins.run(),
            self.projects.followed.run(),
            self.pins.followed.run(),
            self._hints.run(),
            self._register(),
        )

    async def _register(self) -> None:
        """Once control answers."""
        row = region_row(self._seams.config, self._seams.clock.wall_ms())
        while True:
            try:
                await self.regions.register(row)
                return
            except StoreUnavailable as error:
                self._seams.log.warning("region.unregistered", region=row.name, error=str(error))
                await self._seams.clock.sleep(RETRY_SECS)

    def _project_changed(self, project: str) -> None:
        self.homes.policy_changed()
        self._hints.touch()

    def _class_changed(self, project: str, cls: str) -> None:
        self.class_changed(project, cls)
        self._hints.touch()


def region_row(config: Config, now_ms: int) -> RegionRow:
    """What a node's settings say of its region. Paths are made absolute: others open them from elsewhere."""
    placement, blobs = config.placement, config.blobs
    if placement.startswith("sqlite:"):
        path = placement.removeprefix("sqlite:") or os.path.join(config.data, "placement.db")
        placement = "sqlite:" + os.path.abspath(path)
    if blobs.startswith("file:"):
        blobs = "file:" + os.path.abspath(blobs.removeprefix("file:") or os.path.join(config.data, "blobs"))
    return RegionRow(config.region, config.ingress, config.ingress_url, placement, blobs, config.blobs_endpoint, now_ms)
