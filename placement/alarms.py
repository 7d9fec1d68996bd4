"""The alarm mirror: for each object at most one row that says when to wake it (PROTOCOLS section 9).

`alarms/<due>/<object_id>` sorts by time and is what sweeps read; `alarm-of/<object_id>` says which of them is the
object's, and every write is conditioned on it. A residency's write is conditioned on its lease row too, at its own
claim's version, so a former owner changes nothing. The row may be early, never later than the object's own storage:
that is for the callers to keep, who know storage.
"""

from __future__ import annotations

from dataclasses import dataclass

from domicile.placement.followed import Seen, decode
from domicile.placement.keys import Keys
from domicile.placement.records import AlarmRow, Held, Incarnation, LeaseRow, ObjectKey, Released, encode
from domicile.placement.store import At, Committed, Condition, Delete, Mutation, Put, Record, Store


@dataclass(frozen=True, slots=True)
class Mirror:
    """What stands in `alarm-of`: its version and row; 0 and None when absent."""

    version: int = 0
    row: AlarmRow | None = None

    @property
    def due_ms(self) -> int | None:
        return self.row.due_ms if self.row else None


NO_MIRROR = Mirror()


@dataclass(frozen=True, slots=True)
class Overtaken:
    """A write went by rows that are no longer so: nothing was written. The rows as they are; None is absent."""

    lease: Seen[LeaseRow] | None
    alarm: Mirror


@dataclass(frozen=True, slots=True)
class Due:
    """One row of a sweep, with its version, on which it is removed when it is a ghost's."""

    object_id: str
    row: AlarmRow
    version: int


@dataclass(frozen=True, slots=True)
class DuePage:
    """Due rows, the earliest first; `token` goes on where this page ended."""

    rows: tuple[Due, ...]
    token: str | None


def mirror(record: Record | None) -> Mirror:
    """From the record of `alarm-of`."""
    if record is None:
        return Mirror()
    seen = decode(record, AlarmRow)
    return Mirror(seen.version, seen.row)


def change(keys: Keys, object_id: str, seen: Mirror, wanted: AlarmRow | None) -> tuple[list[At], list[Mutation]]:
    """The condition and the mutations that make `wanted` the object's row, by what was seen. None removes it."""
    key = keys.alarm_of(object_id)
    mutations: list[Mutation] = []
    if seen.row is not None and (wanted is None or wanted.due_ms != seen.row.due_ms):
        mutations.append(Delete(keys.alarm(seen.row.due_ms, object_id)))
    if wanted is not None:
        value = encode(wanted)
        mutations += [Put(keys.alarm(wanted.due_ms, object_id), value), Put(key, value)]
    elif seen.row is not None:
        mutations.append(Delete(key))
    return [At(key, seen.version)], mutations


def alarm_row(key: ObjectKey, incarnation: Incarnation, due_ms: int) -> AlarmRow:
    """The row of an object's earliest alarm; `due_ms` since 1970."""
    return AlarmRow(key.scope, key.cls, key.name, incarnation, due_ms)


class Alarms:
    """Reads and writes of one region's mirror. Everything raises StoreUnavailable."""

    def __init__(self, store: Store, keys: Keys) -> None:
        self._store = store
        self._keys = keys

    async def read(self, object_id: str) -> Mirror:
        key = self._keys.alarm_of(object_id)
        return mirror((await self._store.read([key])).get(key))

    async def set(
        self, object_id: str, lease_version: int, seen: Mirror, wanted: AlarmRow | None
    ) -> Mirror | Overtaken:
        """Write, correct or remove an object's row as its owner: the lease row is still this claim's.

        When only the mirror was overtaken (an offer came between), call again with what it is now.
        """
        if wanted == seen.row:
            return seen
        conditions, mutations = change(self._keys, object_id, seen, wanted)
        lease = self._keys.lease(object_id)
        outcome = await self._store.write([At(lease, lease_version), *conditions], mutations)
        if isinstance(outcome, Committed):
            return Mirror(outcome.version, wanted) if wanted else Mirror()
        return overtaken(self._keys, object_id, outcome.current)

    async def offer(self, object_id: str, wanted: AlarmRow) -> bool:
        """At a node's start, from its own index: add a row where there is none, or only a later one.

        Not for an object that a live node holds, that has gone elsewhere, or that lives another incarnation. A row
        that is too early does no harm: the wake puts it right.
        """
        lease_key, alarm_key = self._keys.lease(object_id), self._keys.alarm_of(object_id)
        found = await self._store.read([lease_key, alarm_key])
        seen = mirror(found.get(alarm_key))
        if seen.row is not None and seen.row.due_ms <= wanted.due_ms:
            return False
        record = found.get(lease_key)
        conditions: list[Condition] = [At(lease_key, record.version if record else 0)]
        if record is not None:
            row = decode(record, LeaseRow).row
            if row.incarnation != wanted.incarnation or not isinstance(row.state, Held | Released):
                return False
            if isinstance(row.state, Held):
                conditions.append(At(self._keys.node(row.state.owner), 0))
        more, mutations = change(self._keys, object_id, seen, wanted)
        return isinstance(await self._store.write([*conditions, *more], mutations), Committed)

    async def due(self, now_ms: int, limit: int, token: str | None = None) -> DuePage:
        """Rows due at `now_ms`, the earliest first, up to `limit` (at most 1,000) a page. Raises ScanExpired."""
        page = await self._store.scan(self._keys.alarms, limit, token)
        rows: list[Due] = []
        for record in page.records:
            due_ms, object_id = self._keys.alarm_at(record.key)
            if due_ms > now_ms:
                return DuePage(tuple(rows), None)
            rows.append(Due(object_id, decode(record, AlarmRow).row, record.version))
        return DuePage(tuple(rows), page.token)

    async def remove_ghost(self, due: Due) -> bool:
        """Remove the row of an object that does not exist, on the row's version; False when it has changed."""
        row_key, alarm_key = self._keys.alarm(due.row.due_ms, due.object_id), self._keys.alarm_of(due.object_id)
        record = (await self._store.read([alarm_key])).get(alarm_key)
        conditions = [At(row_key, due.version), At(alarm_key, record.version if record else 0)]
        mutations: list[Mutation] = [Delete(row_key)]
        if record is not None and record.version == due.version:
            # Both rows come of one write, so an equal version says that this is the object's row.
            mutations.append(Delete(alarm_key))
        return isinstance(await self._store.write(conditions, mutations), Committed)


def overtaken(keys: Keys, object_id: str, current: dict[str, Record | None]) -> Overtaken:
    """From a Conflict's rows."""
    lease = current.get(keys.lease(object_id))
    return Overtaken(decode(lease, LeaseRow) if lease else None, mirror(current.get(keys.alarm_of(object_id))))
