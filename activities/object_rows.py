"""The rows of single objects in one region: read many at once, replaced one object at a time (PROTOCOLS section 2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from domicile.activities.world import RegionWorld
from domicile.node.manifest import Manifest
from domicile.placement import alarms
from domicile.placement.alarms import Mirror, mirror
from domicile.placement.claims import SeenLease, lease_seen
from domicile.placement.followed import decode
from domicile.placement.gates import Decision, decide
from domicile.placement.keys import Keys
from domicile.placement.records import (
    AlarmRow,
    Deleted,
    DeletedRow,
    Epoch,
    Held,
    InstanceRow,
    LeaseRow,
    LeaseState,
    MovingTo,
    ObjectKey,
    encode,
    next_incarnation,
)
from domicile.placement.store import At, Committed, Condition, Delete, Mutation, Put, Record


@dataclass(frozen=True, slots=True)
class ObjectRows:
    """All that one region says of an object, from one snapshot. None: absent."""

    key: ObjectKey
    lease: SeenLease | None
    alarm: Mirror
    instance: InstanceRow | None
    deleted: DeletedRow | None
    gate: Decision

    @property
    def state(self) -> LeaseState | None:
        return self.lease.row.state if self.lease is not None else None

    @property
    def epoch_of_deletion(self) -> Epoch:
        """Of a Deleted row: the next life's incarnation."""
        assert self.lease is not None
        assert isinstance(self.state, Deleted)
        row = self.lease.row
        return next_incarnation(row.term, row.incarnation, self.lease.version)

    def still(self, since: int) -> bool:
        """Whether lease, alarm, and what decides beside the project's gate, are as they were at that version, and the
        object is at rest."""
        if self.lease is None or isinstance(self.state, Held | MovingTo):
            return False
        gates = [seen.version for _, seen in self.gate.seen[:2] if seen is not None]
        return max([self.lease.version, self.alarm.version, *gates]) <= since

    @property
    def own_gate(self) -> bool:
        """Whether the object itself was placed here, whatever its project does."""
        return self.gate.seen[0][1] is not None

    @property
    def class_gate(self) -> bool:
        """Whether its class is pinned here."""
        return self.gate.seen[1][1] is not None


@dataclass(frozen=True, slots=True)
class Wanted:
    """What an object's rows are to be; None is no such row."""

    lease: LeaseRow
    alarm: AlarmRow | None = None
    instance: InstanceRow | None = None
    deleted: DeletedRow | None = None

    def stands(self, rows: ObjectRows) -> bool:
        """Whether all of it is so."""
        return (
            rows.lease is not None
            and rows.lease.row == self.lease
            and (rows.alarm.row, rows.instance, rows.deleted) == (self.alarm, self.instance, self.deleted)
        )


async def read_rows(region: RegionWorld, keys: Sequence[ObjectKey], *, heads: bool = False) -> list[ObjectRows]:
    """The rows of all of them, in order; `heads`: lease, alarm and gates only. Raises StoreUnavailable."""
    names = [name for key in keys for name in (*_names(region.keys, key, heads=heads), *region.keys.gates_of(key))]
    found = await region.store.read(names) if names else {}
    return [_rows(region.keys, key, found) for key in keys]


async def listed(region: RegionWorld, keys: Sequence[ObjectKey]) -> list[bool]:
    """Whether the region's directory has each of them. Raises StoreUnavailable."""
    found = await region.store.read([region.keys.instance(key) for key in keys]) if keys else {}
    return [region.keys.instance(key) in found for key in keys]


async def replace(region: RegionWorld, rows: ObjectRows, wanted: Wanted) -> bool:
    """Make `wanted` the object's rows, if they and the gate that decides are still as seen. Raises StoreUnavailable.

    After a lost answer read the rows again: they stand, or they may yet, and then a next write conflicts.
    """
    conditions, mutations = changes(region.keys, rows, wanted)
    return isinstance(await region.store.write(conditions, mutations), Committed)


def changes(keys: Keys, rows: ObjectRows, wanted: Wanted) -> tuple[list[Condition], list[Mutation]]:
    """The same as one write's conditions and mutations."""
    key = rows.key
    conditions: list[Condition] = [At(keys.lease(key.id), rows.lease.version if rows.lease else 0)]
    conditions += rows.gate.conditions()
    seen, mutations = alarms.change(keys, key.id, rows.alarm, wanted.alarm)
    conditions += seen
    if wanted.alarm == rows.alarm.row:
        mutations = []
    mutations.append(Put(keys.lease(key.id), encode(wanted.lease)))
    mutations.append(_row(keys.instance(key), wanted.instance))
    mutations.append(_row(keys.deleted(key), wanted.deleted))
    return conditions, mutations


async def copy_incidents(source: RegionWorld, target: RegionWorld, manifest: Manifest) -> None:
    """The rows of the incidents that a copied manifest has open, as they are in the source. Raises StoreUnavailable."""
    object_id = manifest.object_id
    names = [str(epoch) for epoch, _ in manifest.incidents]
    if not names:
        return
    found = await source.store.read([source.keys.incident(object_id, name) for name in names])
    rows = [(name, found.get(source.keys.incident(object_id, name))) for name in names]
    mutations = [Put(target.keys.incident(object_id, name), row.value) for name, row in rows if row is not None]
    await target.store.write([], mutations)


def _row(name: str, row: InstanceRow | DeletedRow | None) -> Mutation:
    return Delete(name) if row is None else Put(name, encode(row))


def _names(keys: Keys, key: ObjectKey, *, heads: bool) -> tuple[str, ...]:
    head = keys.lease(key.id), keys.alarm_of(key.id)
    return head if heads else (*head, keys.instance(key), keys.deleted(key))


def _rows(keys: Keys, key: ObjectKey, found: Mapping[str, Record]) -> ObjectRows:
    lease, alarm, instance, deleted = (found.get(name) for name in _names(keys, key, heads=False))
    return ObjectRows(
        key=key,
        lease=lease_seen(lease),
        alarm=mirror(alarm),
        instance=decode(instance, InstanceRow).row if instance else None,
        deleted=decode(deleted, DeletedRow).row if deleted else None,
        gate=decide(keys, key, found),
    )
