"""What this node remembers of the lease rows of objects that are not awake here (PROTOCOLS section 4).

A claim goes by it; when it is out of date, the conflict brings the row that stands.
"""

from __future__ import annotations

from collections import OrderedDict

from domicile.placement.store import Record

REMEMBERED_MAX = 200_000


class RowsSeen:
    """By object id, as bytes: there may be very many. Those learned longest ago are forgotten."""

    def __init__(self) -> None:
        self._rows: OrderedDict[str, Record] = OrderedDict()

    def get(self, object_id: str) -> Record | None:
        return self._rows.get(object_id)

    def learn(self, object_id: str, row: bytes, version: int) -> None:
        """It was read or written so."""
        self._rows[object_id] = Record(object_id, row, version, 0)
        while len(self._rows) > REMEMBERED_MAX:
            self._rows.popitem(last=False)

    def forget(self, object_id: str) -> None:
        self._rows.pop(object_id, None)
