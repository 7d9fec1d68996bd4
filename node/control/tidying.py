"""The collector of a node that has no control plane: what its own rotations and deletions leave goes (section 10).

Where `TEMPORAL` is configured the region's CollectGarbage does this, for everything. Without it the home looks after
each object it has put a new generation of, or deleted: by the collector's rules, one object after the other, whenever
that is. An object with an open incident is left alone. What a node that died had not come to goes with the object's
next rotation.
"""

from __future__ import annotations

import asyncio
import dataclasses

from domicile.node import garbage
from domicile.node.errors import BlobError, Corrupt
from domicile.node.host import Host


class Tidying:
    """What the host calls `untidy` comes here; `run` is a task of the node."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._waiting: dict[str, None] = {}  # ids, in the order they came
        self._came = asyncio.Event()
        host.untidy = self._due

    def _due(self, object_id: str) -> None:
        """A manifest has landed that names less than the one before."""
        self._waiting[object_id] = None
        self._came.set()

    async def run(self) -> None:
        """Until cancelled. What the store does not let be deleted now is left to the object's next rotation."""
        while True:
            await self._came.wait()
            self._came.clear()
            while self._waiting:
                object_id = next(iter(self._waiting))
                del self._waiting[object_id]
                try:
                    done = await garbage.collect(self._host.blobs, object_id, past_incidents=False)
                except (BlobError, Corrupt) as error:
                    self._host.log.info("tidying.left", object=object_id, error=str(error))
                else:
                    self._host.log.debug("tidying.done", object=object_id, **dataclasses.asdict(done))
