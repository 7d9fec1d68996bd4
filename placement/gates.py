"""Gates: the rows in a region's own store that let claims commit there (PROTOCOLS sections 2, 4 and 10).

Of an object's gate, its class's and its project's, the most specific that exists decides. A decision is what was seen
of all of them: a write that goes by it is conditioned on the deciding gate's version and on the absence of every more
specific one, so nobody can open or close a gate behind its back. An absent gate is closed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from domicile.placement.followed import Followed, Seen, Sleep, decode
from domicile.placement.keys import Keys
from domicile.placement.records import GateRow, ObjectKey, encode
from domicile.placement.store import At, Committed, Put, Record, Store, StoreUnavailable


@dataclass(frozen=True, slots=True)
class Decision:
    """`seen`: every gate that could decide, the most specific first; None is absent."""

    seen: tuple[tuple[str, Seen[GateRow] | None], ...]

    @property
    def gate(self) -> GateRow | None:
        """The gate that decides."""
        return next((seen.row for _, seen in self.seen if seen is not None), None)

    @property
    def open(self) -> bool:
        return self.gate is not None and self.gate.open

    def conditions(self) -> list[At]:
        """That the same gate still decides, unchanged."""
        conditions = []
        for key, seen in self.seen:
            conditions.append(At(key, seen.version if seen else 0))
            if seen is not None:
                break
        return conditions


def decide(keys: Keys, key: ObjectKey, records: Mapping[str, Record | None]) -> Decision:
    """From rows just read, or brought by a Conflict. A gate not among them was not asked for and counts as absent."""
    seen = []
    for name in keys.gates_of(key):
        record = records.get(name)
        seen.append((name, decode(record, GateRow) if record else None))
    return Decision(tuple(seen))


class Gates:
    """The gates of one region: read, watched, created, changed on the version seen."""

    def __init__(self, store: Store, keys: Keys, sleep: Sleep) -> None:
        self._store = store
        self._keys = self.keys = keys
        self.followed = Followed(store, keys.gates, GateRow, sleep)

    def seen(self, key: ObjectKey) -> Decision:
        """By the watched rows: no I/O, maybe of the past."""
        found = self.followed.rows.get
        of_object, of_class, of_project = self._keys.gates_of(key)
        return Decision(((of_object, found(of_object)), (of_class, found(of_class)), (of_project, found(of_project))))

    async def read(self, key: ObjectKey) -> Decision:
        """By the store. Raises StoreUnavailable."""
        return decide(self._keys, key, await self._store.read(self._keys.gates_of(key)))

    async def read_all(self, keys: Sequence[ObjectKey]) -> list[Decision]:
        """As `read`, of many at once, all of one snapshot."""
        found = await self._store.read([name for key in keys for name in self._keys.gates_of(key)]) if keys else {}
        return [decide(self._keys, key, found) for key in keys]

    async def get(self, gate_key: str) -> Seen[GateRow] | None:
        """One gate by its key. Raises StoreUnavailable."""
        record = (await self._store.read([gate_key])).get(gate_key)
        return decode(record, GateRow) if record else None

    async def create(self, gate_key: str, row: GateRow) -> Seen[GateRow]:
        """Write the gate if it is absent; gives the one that stands, whoever wrote it. Raises StoreUnavailable."""
        await self.change(gate_key, 0, row)
        seen = await self.get(gate_key)
        if seen is None:
            raise StoreUnavailable(f"the gate {gate_key} came and went")
        return seen

    async def change(self, gate_key: str, version: int, row: GateRow) -> bool:
        """Write the gate if it still is at `version`, read in an earlier step. Raises StoreUnavailable."""
        outcome = await self._store.write([At(gate_key, version)], [Put(gate_key, encode(row))])
        return isinstance(outcome, Committed)
