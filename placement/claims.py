"""What a claim is: the attempt, what it stands on, the row it writes, what comes of it. Pure.

A *claim* makes a node an object's owner. It stands on five things, all checked in the write: the lease row is the one
seen; the node that row names, if it is another, has no row; my own row has been there since I registered; the gate
that decides is open and the one seen; no more specific gate has come (PROTOCOLS section 4). Its epoch is (term of the
gate, version of the write). When it fails, the rows that failed it come back, and they are the routing answer.

An *incarnation* is one life of a name: (0, 0) for the first; after a deletion, the deletion's epoch, derived from the
Deleted row and its version (`next_incarnation`). A claim over no row, over a deletion, or over a release that never
landed anything *creates*: it writes the directory's row and gives the incarnation its birth (section 5). Later claims
carry the birth on, with its epoch written out, until a clean release puts a manifest in its place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from domicile.placement.followed import Seen, decode
from domicile.placement.gates import Decision, decide
from domicile.placement.keys import Keys
from domicile.placement.records import (
    BURIALS_MAX,
    FIRST_INCARNATION,
    Birth,
    Burial,
    Deleted,
    Epoch,
    Held,
    Incarnation,
    LeaseRow,
    LeaseState,
    ObjectKey,
    Released,
    next_incarnation,
)
from domicile.placement.store import At, Condition, Record, Since

SeenLease = Seen[LeaseRow]


@dataclass(frozen=True, slots=True)
class Registration:
    """A node's row: its id, and the version at which this run created it."""

    node_id: str
    created: int


@dataclass(frozen=True, slots=True)
class Claim:
    """An attempt, and all it goes by. `lease` None: no row was seen. `now_ms` is kept as the time of creation.

    `nonce` is random text of this attempt alone: it tells the row it writes from every other claim's. `drain`: the
    gate must be *closed* at the version seen (section 10): a residency that lands, releases, serves no one. `birth` is
    used only if the claim creates.
    """

    key: ObjectKey
    by: Registration
    lease: SeenLease | None
    gate: Decision
    birth: Birth
    now_ms: int
    nonce: str
    drain: bool = False


@dataclass(frozen=True, slots=True)
class Claimed:
    """The lease is ours at `version`, and is while the row stays there.

    `birth` has its epoch filled in; None once a clean release has named a manifest. `previous` is the row claimed
    over, with its version. `created`: no object was here, as far as placement knows. `burials` as in LeaseRow.
    """

    key: ObjectKey
    epoch: Epoch
    incarnation: Incarnation
    birth: Birth | None
    previous: SeenLease | None
    created: bool
    burials: tuple[Burial, ...] = ()

    @property
    def version(self) -> int:
        """Of the lease row, under which everything this residency writes to placement is conditioned."""
        return self.epoch.version


@dataclass(frozen=True, slots=True)
class Lost:
    """Not claimed. The rows as they are now.

    `holder` is a live node that the claim took for gone, None otherwise. `registered` is False when my own row is gone
    or another run's: claim no more under this node id.
    """

    lease: SeenLease | None
    gate: Decision
    holder: str | None
    registered: bool


def claim_conditions(keys: Keys, claim: Claim) -> list[Condition]:
    """All that a claim stands on (section 4)."""
    conditions: list[Condition] = [
        At(keys.lease(claim.key.id), claim.lease.version if claim.lease else 0),
        Since(keys.node(claim.by.node_id), claim.by.created),
        *claim.gate.conditions(),
    ]
    if (other := other_holder(claim)) is not None:
        conditions.append(At(keys.node(other), 0))
    return conditions


def creates(claim: Claim) -> bool:
    """Whether no object is here, as far as the row seen can tell."""
    if claim.lease is None:
        return True
    state = claim.lease.row.state
    return isinstance(state, Deleted) or (isinstance(state, Released) and state.tag is None)


def claimed_row(claim: Claim) -> LeaseRow:
    """The lease row that the claim writes."""
    gate, key = claim.gate.gate, claim.key
    assert gate is not None, "an absent gate is closed: it was refused before"
    return LeaseRow(
        key.scope,
        key.cls,
        key.name,
        _incarnation(claim.lease),
        Held(claim.by.node_id, claim.nonce),
        gate.term,
        _birth(claim),
        burials(claim.lease),
    )


def _incarnation(lease: SeenLease | None) -> Incarnation:
    if lease is None:
        return FIRST_INCARNATION
    row = lease.row
    if isinstance(row.state, Deleted):
        return next_incarnation(row.term, row.incarnation, lease.version)
    return row.incarnation


def burials(lease: SeenLease | None) -> tuple[Burial, ...]:
    """The name's keyed deletions, as far as they are remembered, the last one at the end."""
    if lease is None:
        return ()
    row = lease.row
    if not isinstance(row.state, Deleted) or row.state.key is None:
        return row.burials
    last = Burial(row.state.key, next_incarnation(row.term, row.incarnation, lease.version))
    return (*row.burials, last)[-BURIALS_MAX:]


def buried(found: Sequence[Burial], key: str | None) -> Epoch | None:
    """The epoch of the deletion that had this idempotency key."""
    return next((burial.epoch for burial in found if burial.key == key), None)


def _birth(claim: Claim) -> Birth | None:
    if claim.lease is None or creates(claim):
        return _with_epoch(claim.birth, None)
    row = claim.lease.row
    if row.birth is not None and row.birth.epoch is None:
        return _with_epoch(row.birth, Epoch(row.term, claim.lease.version))
    return row.birth


def _with_epoch(birth: Birth, epoch: Epoch | None) -> Birth:
    return Birth(birth.members, birth.quorum, epoch)


def may_claim(claim: Claim) -> bool:
    """Whether what was seen lets the claim be tried: the right gate, and no row that is moving or forwarded."""
    gate = claim.gate.gate
    if gate is None or gate.open == claim.drain:
        return False
    return claim.lease is None or isinstance(claim.lease.row.state, Held | Released | Deleted)


def other_holder(claim: Claim) -> str | None:
    """The other node that the row seen names."""
    if claim.lease is None or not isinstance(claim.lease.row.state, Held):
        return None
    owner = claim.lease.row.state.owner
    return owner if owner != claim.by.node_id else None


def claimed_at(claim: Claim, row: LeaseRow, version: int) -> Claimed:
    """What is had once `row` stands at `version`."""
    epoch = Epoch(row.term, version)
    birth = row.birth
    if birth is not None and birth.epoch is None:
        birth = _with_epoch(birth, epoch)
    return Claimed(claim.key, epoch, row.incarnation, birth, claim.lease, creates(claim), row.burials)


def ended_row(claimed: Claimed, state: LeaseState) -> LeaseRow:
    """The lease row that the owner leaves behind."""
    key = claimed.key
    return LeaseRow(
        key.scope, key.cls, key.name, claimed.incarnation, state, claimed.epoch.term, burials=claimed.burials
    )


def lost(keys: Keys, claim: Claim, current: Mapping[str, Record | None]) -> Lost:
    """From the rows that a Conflict brought, or a read."""
    mine = current.get(keys.node(claim.by.node_id))
    other = other_holder(claim)
    alive = other is not None and current.get(keys.node(other)) is not None
    return Lost(
        lease=lease_seen(current.get(keys.lease(claim.key.id))),
        gate=decide(keys, claim.key, current),
        holder=other if alive else None,
        registered=mine is not None and mine.created == claim.by.created,
    )


def lease_seen(record: Record | None) -> SeenLease | None:
    """From the record of a lease row."""
    return decode(record, LeaseRow) if record else None
