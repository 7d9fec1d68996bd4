"""Standing copies in control's rows: as of when a project's copy in another region is (PROTOCOLS section 10).

`projects/<id>/standing/<region>`, written by ReplicateProject after each pass. FailoverRegion goes by it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from temporalio import activity

from domicile.activities.world import World
from domicile.placement.followed import decode
from domicile.placement.records import encode
from domicile.placement.store import Put
from domicile.workflows.failover_values import Standing


class StandingRow(msgspec.Struct, frozen=True):
    """`at_ms`: when the pass began, in milliseconds since 1970: what had landed by then is in the copy."""

    source: str
    at_ms: int
    objects: int
    unclean: int


class StandingCopies:
    """Everything raises StoreUnavailable."""

    def __init__(self, world: World) -> None:
        self._world = world

    def steps(self) -> Sequence[Callable[..., Any]]:
        """The activities."""
        return (self.note,)

    @activity.defn(name="replicate-note")
    async def note(self, standing: Standing) -> None:
        """The copy stands."""
        row = StandingRow(standing.source, int(standing.at * 1000), standing.objects, standing.unclean)
        await self._world.control.write([], [Put(self._key(standing.project, standing.to), encode(row))])

    async def read(self, project: str, to: str) -> Standing | None:
        """None: there is none."""
        key = self._key(project, to)
        record = (await self._world.control.read([key])).get(key)
        if record is None:
            return None
        row = decode(record, StandingRow).row
        return Standing(project, row.source, to, row.at_ms / 1000, row.objects, row.unclean)

    def _key(self, project: str, to: str) -> str:
        return f"{self._world.control_keys.project(project)}/standing/{to}"
