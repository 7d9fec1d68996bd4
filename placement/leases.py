"""Leases: claim, release, delete — each one conditional write (PROTOCOLS sections 4 and 5).

What a claim stands on and what follows from it is in `claims`; here it meets the store.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from domicile.placement import alarms
from domicile.placement.alarms import NO_MIRROR, Mirror, Overtaken
from domicile.placement.claims import (
    Claim,
    Claimed,
    Lost,
    Registration,
    SeenLease,
    claim_conditions,
    claimed_at,
    claimed_row,
    creates,
    ended_row,
    lease_seen,
    lost,
    may_claim,
)
from domicile.placement.keys import Keys
from domicile.placement.records import (
    AlarmRow,
    Deleted,
    DeletedRow,
    Epoch,
    InstanceRow,
    Released,
    encode,
)
from domicile.placement.store import (
    CONDITIONS_MAX,
    MUTATIONS_MAX,
    At,
    Committed,
    Condition,
    Delete,
    Mutation,
    Put,
    Store,
    holds,
)

__all__ = ["Claim", "Claimed", "Gone", "Leases", "Lost", "Overtaken", "Registration", "Release", "SeenLease"]


@dataclass(frozen=True, slots=True)
class Release:
    """One object of `release`. `mirror` is what was seen of its alarm row, `alarm` what it is to be."""

    claimed: Claimed
    released: Released
    mirror: Mirror = NO_MIRROR
    alarm: AlarmRow | None = None


@dataclass(frozen=True, slots=True)
class Gone:
    """A deletion stands; its epoch is the next life's incarnation."""

    epoch: Epoch


class Leases:
    """The lease rows of one region. Everything raises StoreUnavailable; after `maybe=True` see `settle`."""

    def __init__(self, store: Store, keys: Keys) -> None:
        self._store = store
        self._keys = keys

    async def read(self, object_id: str) -> SeenLease | None:
        """As it stands; None when the object never had a home here."""
        key = self._keys.lease(object_id)
        return lease_seen((await self._store.read([key])).get(key))

    async def claim(self, claim: Claim) -> Claimed | Lost:
        """One write. Lost without one when what was seen already refuses: a wrong gate, a row moving or forwarded."""
        conditions = claim_conditions(self._keys, claim)
        if not may_claim(claim):
            return lost(self._keys, claim, await self._store.read([condition.key for condition in conditions]))
        row = claimed_row(claim)
        mutations: list[Mutation] = [Put(self._keys.lease(claim.key.id), encode(row))]
        if creates(claim):
            instance = InstanceRow(claim.key.id, claim.now_ms)
            mutations += [
                Put(self._keys.instance(claim.key), encode(instance)),
                Delete(self._keys.deleted(claim.key)),
            ]
        outcome = await self._store.write(conditions, mutations)
        if isinstance(outcome, Committed):
            return claimed_at(claim, row, outcome.version)
        return lost(self._keys, claim, outcome.current)

    async def settle(self, claim: Claim) -> Claimed | Lost | None:
        """After a claim's answer was lost: what re-reading proves. None: it may still land.

        Then claim again on the same rows. Only one of the two attempts can commit, and if it is the lost one, the
        Conflict shows a row with the claim's nonce and `settle` proves it.
        """
        conditions = claim_conditions(self._keys, claim)
        found = await self._store.read([condition.key for condition in conditions])
        lease = lease_seen(found.get(self._keys.lease(claim.key.id)))
        seen = claim.lease.version if claim.lease else 0
        if (lease.version if lease else 0) == seen:
            return None
        if lease is not None and lease.row == claimed_row(claim):
            return claimed_at(claim, lease.row, lease.version)
        return lost(self._keys, claim, found)

    async def release(self, releases: Sequence[Release]) -> dict[str, int | Overtaken]:
        """Clean releases, as many to a write as fit. For each object id the row's new version, or what overtook it.

        One that is overtaken holds up none of the others. One whose alarm row alone was overtaken may be sent again.
        After StoreUnavailable earlier writes of the same call may stand: read the rows.
        """
        results: dict[str, int | Overtaken] = {}
        waiting = [(release, *self._releasing(release)) for release in releases]
        while waiting:
            fitting = _fitting([(conditions, mutations) for _, conditions, mutations in waiting])
            batch, waiting = waiting[:fitting], waiting[fitting:]
            outcome = await self._store.write(
                [condition for _, conditions, _ in batch for condition in conditions],
                [mutation for _, _, mutations in batch for mutation in mutations],
            )
            for release, conditions, mutations in batch:
                object_id = release.claimed.key.id
                if isinstance(outcome, Committed):
                    results[object_id] = outcome.version
                elif all(holds(condition, outcome.current.get(condition.key)) for condition in conditions):
                    waiting.append((release, conditions, mutations))
                else:
                    results[object_id] = alarms.overtaken(self._keys, object_id, outcome.current)
        return results

    async def delete(self, claimed: Claimed, mirror: Mirror, key: str | None = None) -> Gone | Overtaken:
        """The lease row becomes Deleted; its alarm and directory rows go. `key`: the delete's idempotency key."""
        object_key = claimed.key
        row = ended_row(claimed, Deleted(key))
        deleted = DeletedRow(object_key.id, claimed.incarnation, claimed.epoch.term)
        conditions, mutations = self._with_alarm(claimed, mirror, None)
        mutations += [
            Put(self._keys.lease(object_key.id), encode(row)),
            Put(self._keys.deleted(object_key), encode(deleted)),
            Delete(self._keys.instance(object_key)),
        ]
        outcome = await self._store.write(conditions, mutations)
        if isinstance(outcome, Committed):
            return Gone(Epoch(claimed.epoch.term, outcome.version))
        return alarms.overtaken(self._keys, object_key.id, outcome.current)

    def _releasing(self, release: Release) -> tuple[list[Condition], list[Mutation]]:
        claimed, key = release.claimed, release.claimed.key
        row = ended_row(claimed, release.released)
        conditions, mutations = self._with_alarm(claimed, release.mirror, release.alarm)
        mutations.append(Put(self._keys.lease(key.id), encode(row)))
        if release.released.tag is None:
            # Nothing of this life ever landed, so no object exists, and the directory must not say so.
            mutations.append(Delete(self._keys.instance(key)))
        return conditions, mutations

    def _with_alarm(
        self, claimed: Claimed, seen: Mirror, wanted: AlarmRow | None
    ) -> tuple[list[Condition], list[Mutation]]:
        more, mutations = alarms.change(self._keys, claimed.key.id, seen, wanted)
        if wanted == seen.row:
            mutations = []
        return [At(self._keys.lease(claimed.key.id), claimed.version), *more], mutations


def _fitting(writes: Sequence[tuple[list[Condition], list[Mutation]]]) -> int:
    """How many from the front fit into one write."""
    conditions = mutations = 0
    for count, (its_conditions, its_mutations) in enumerate(writes):
        conditions += len(its_conditions)
        mutations += len(its_mutations)
        if conditions > CONDITIONS_MAX or mutations > MUTATIONS_MAX:
            return count
    return len(writes)
