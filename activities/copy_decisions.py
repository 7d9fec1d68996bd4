"""What of one object is to be in the target, by the rows of both regions (PROTOCOLS section 10, MoveProject). Pure.

Not everything in a project's directory goes with it. A class pinned to the source stays, and so does an object that
was placed there by itself: the target then has a forwarding row. One that was placed in the target by itself is the
target's already, and its rows there are left as they are.
"""

from __future__ import annotations

from dataclasses import dataclass

from domicile.activities.copied_manifest import fence
from domicile.activities.object_rows import ObjectRows, Wanted
from domicile.node.manifest import Manifest
from domicile.placement.records import (
    Burial,
    Deleted,
    DeletedRow,
    Epoch,
    Forwarded,
    Held,
    LeaseRow,
    LeaseState,
    MovingTo,
    Position,
    Released,
)


@dataclass(frozen=True, slots=True)
class LeftAlone:
    """Nothing of it is copied. `unclean`: it should be, later."""

    unclean: bool = False


@dataclass(frozen=True, slots=True)
class Absent:
    """There is no such object in the source."""


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """It lives in `region` since `term`."""

    region: str
    term: int


@dataclass(frozen=True, slots=True)
class Buried:
    """It was deleted, at `epoch`; `key` is the delete's idempotency key."""

    epoch: Epoch
    key: str | None


@dataclass(frozen=True, slots=True)
class Content:
    """It is there: as released, or as its manifest is now where a node holds it."""

    released: Released | None


What = LeftAlone | Absent | Elsewhere | Buried | Content


def decide_copy(here: ObjectRows, there: ObjectRows, source: str, target: str) -> What:
    """By the source's rows, mostly. `source` and `target` are the regions' names."""
    state = here.state
    if here.class_gate or there.class_gate:
        return LeftAlone()
    if isinstance(state, Forwarded):
        return LeftAlone() if state.region == target else Elsewhere(state.region, state.term)
    if here.own_gate:
        own = here.gate.gate
        assert own is not None
        return Elsewhere(source, own.term)
    if isinstance(state, MovingTo):
        return LeftAlone(unclean=True)
    if isinstance(state, Deleted):
        return Buried(here.epoch_of_deletion, state.key)
    if state is None or (isinstance(state, Released) and state.tag is None):
        return Absent()
    return Content(None if isinstance(state, Held) else state)


def decide_alone(here: ObjectRows) -> Content | Absent:
    """Of an object that goes by itself: as it is, or as it was released before it was held."""
    state = here.state
    if isinstance(state, MovingTo):
        return Content(state.release)
    if isinstance(state, Held):
        return Content(None)
    return Content(state) if isinstance(state, Released) and state.tag is not None else Absent()


def is_copied(position: Position, checksum: bytes, here: ObjectRows, there: ObjectRows) -> bool:
    """Whether the target's rows say that this was copied, and all rows beside the lease are as in the source.

    A generation is one log for ever: equal positions with equal checksums are equal bytes.
    """
    state, lease = there.state, there.lease
    if lease is None or here.lease is None or not isinstance(state, Released) or state.tag is None:
        return False
    if (state.position, state.checksum, state.members, state.quorum) != (position, checksum, (), 0):
        return False
    if (lease.row.incarnation, lease.row.burials) != (here.lease.row.incarnation, here.lease.row.burials):
        return False
    return (there.alarm.row, there.instance, there.deleted) == (here.alarm.row, here.instance, None)


def is_surplus(here: ObjectRows, there: ObjectRows) -> bool:
    """Whether the target lists an object that the source never had, and that is not the target's own."""
    if here.class_gate or there.class_gate or there.own_gate:
        return False
    state = here.state
    lacking = state is None or (isinstance(state, Released) and state.tag is None)
    return lacking and (there.instance is not None or there.alarm.row is not None)


def made_deletion(there: ObjectRows, term: int) -> Wanted:
    """The rows of a deletion by the copy itself."""
    epoch = there.epoch_of_deletion if isinstance(there.state, Deleted) else fence(term)
    burials = there.lease.row.burials if there.lease is not None else ()
    return _deletion(there, Buried(epoch, None), burials)


def wanted_rows(
    what: Content | Buried | Elsewhere, here: ObjectRows, term: int, landed: Manifest | None = None, tag: str = ""
) -> Wanted:
    """The target's rows. Of a Content, `landed` is the manifest put there, under `tag`."""
    assert here.lease is not None
    row = here.lease.row
    if isinstance(what, Buried):
        return _deletion(here, what, row.burials)
    state: LeaseState
    if isinstance(what, Elsewhere):
        state = Forwarded(what.region, what.term)
    else:
        assert landed is not None
        state = Released(landed.position, landed.checksum, tag)
    lease = LeaseRow(row.scope, row.cls, row.name, row.incarnation, state, term, burials=row.burials)
    if isinstance(what, Elsewhere):
        return Wanted(lease, None, here.instance, here.deleted)
    return Wanted(lease, here.alarm.row, here.instance, None)


def _deletion(rows: ObjectRows, buried: Buried, burials: tuple[Burial, ...]) -> Wanted:
    """Term 0: the versions of another store say nothing of this deletion, whose epoch is written out."""
    key = rows.key
    lease = LeaseRow(key.scope, key.cls, key.name, buried.epoch, Deleted(buried.key), 0, burials=burials)
    return Wanted(lease, deleted=DeletedRow(key.id, buried.epoch, 0))
