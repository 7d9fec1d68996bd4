"""Incidents: takeovers that could not prove they have every answered write (PROTOCOLS sections 2 and 5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from domicile.placement.followed import decode
from domicile.placement.keys import Keys
from domicile.placement.records import Epoch, Position, encode
from domicile.placement.store import Delete, Put, Store


class IncidentRow(msgspec.Struct, frozen=True):
    """`incidents/<object_id>/<epoch>`: a takeover that could not prove it has every answered write.

    `needed`: how many members it takes to hear of every answered write, those that answered among them. `checksum`: of
    the log that was served, 16 bytes. A row that lacks them (b"", 0) waits for all that were asked.
    """

    asked: tuple[str, ...]
    answered: tuple[tuple[str, Position], ...]
    served: Position
    scope: str = ""
    cls: str = ""
    name: str = ""
    needed: int = 0
    checksum: bytes = b""
    at_ms: int = 0
    stored: bool = False
    born: bool = False


@dataclass(frozen=True, slots=True)
class Incident:
    """One open incident: the object, the takeover's epoch, and what it knew."""

    object_id: str
    epoch: str
    row: IncidentRow

    def shown(self) -> dict[str, Any]:
        """As a person reads it, in JSON values."""
        row = self.row
        return {
            "object_id": self.object_id,
            "object": f"{row.scope}/{row.cls}/{row.name}" if row.scope else "",
            "epoch": self.epoch,
            "at_ms": row.at_ms,
            "asked": list(row.asked),
            "answered": [[copy, _shown(at)] for copy, at in row.answered],
            "needed": row.needed,
            "served": _shown(row.served),
        }


class Incidents:
    """The incident rows of one region. Everything raises StoreUnavailable."""

    def __init__(self, store: Store, keys: Keys) -> None:
        self._store = store
        self._keys = keys

    async def record(self, object_id: str, epoch: Epoch, row: IncidentRow) -> None:
        """Before anything is served. Recording it twice is harmless: the epoch is one takeover's."""
        await self._store.write([], [Put(self._keys.incident(object_id, str(epoch)), encode(row))])

    async def get(self, object_id: str, epoch: str) -> IncidentRow | None:
        """The row; None when it is closed."""
        key = self._keys.incident(object_id, epoch)
        record = (await self._store.read([key])).get(key)
        return decode(record, IncidentRow).row if record is not None else None

    async def close(self, object_id: str, epoch: str) -> None:
        """Once no manifest carries it. Closing it twice is harmless."""
        await self._store.write([], [Delete(self._keys.incident(object_id, epoch))])

    async def open(self) -> list[Incident]:
        """All that are open, by object."""
        found: list[Incident] = []
        token: str | None = None
        while True:
            page = await self._store.scan(self._keys.incidents, token=token)
            for record in page.records:
                object_id, epoch = self._keys.incident_of(record.key)
                found.append(Incident(object_id, epoch, decode(record, IncidentRow).row))
            token = page.token
            if token is None:
                return found


def _shown(at: Position) -> dict[str, Any]:
    return {"incarnation": str(at.incarnation), "generation": str(at.generation), "length": at.length}
