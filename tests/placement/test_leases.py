"""Claim, release and delete: every condition that a claim stands on, and what each row becomes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from domicile.placement.alarms import Alarms, Mirror, Overtaken, alarm_row
from domicile.placement.claims import buried
from domicile.placement.gates import Gates
from domicile.placement.keys import Keys
from domicile.placement.leases import Claim, Claimed, Gone, Leases, Lost, Registration, Release
from domicile.placement.records import (
    FIRST_INCARNATION,
    Birth,
    Burial,
    Deleted,
    Epoch,
    Forwarded,
    GateRow,
    Generation,
    Held,
    LeaseRow,
    MovingTo,
    NodeRow,
    ObjectKey,
    Position,
    Released,
    encode,
)
from domicile.placement.store import At, Committed, Conflict, Delete, Put, Store, StoreUnavailable

pytestmark = pytest.mark.anyio

KEY = ObjectKey("acme", "Auction", "lot/42")
BIRTH = Birth(("c1", "c2", "c3"), 2)
RELEASED = Released(Position(FIRST_INCARNATION, Generation(Epoch(3, 9), 0), 4152), b"\1" * 16, "tag", ("c1",), 1)


@dataclass
class Place:
    """A region with one open gate, to claim in."""

    store: Store
    keys: Keys
    leases: Leases
    gates: Gates

    async def node(self, node_id: str) -> Registration:
        outcome = await self.store.write([], [Put(self.keys.node(node_id), encode(NodeRow(node_id, "h:1")))])
        assert isinstance(outcome, Committed)
        return Registration(node_id, outcome.version)

    async def claim(self, by: Registration, **changes: object) -> Claim:
        """What a node would send that has just read everything."""
        lease, gate = await self.leases.read(KEY.id), await self.gates.read(KEY)
        claim = Claim(KEY, by, lease, gate, BIRTH, now_ms=77, nonce="7")
        return replace(claim, **changes)  # type: ignore[arg-type]

    async def claimed(self, by: Registration) -> Claimed:
        outcome = await self.leases.claim(await self.claim(by))
        assert isinstance(outcome, Claimed)
        return outcome

    async def put(self, key: str, row: object) -> int:
        outcome = await self.store.write([], [Put(key, encode(row))])  # type: ignore[arg-type]
        assert isinstance(outcome, Committed)
        return outcome.version

    async def remove(self, key: str) -> None:
        await self.store.write([], [Delete(key)])

    async def there(self, key: str) -> bool:
        return key in await self.store.read([key])


@pytest.fixture
async def place(store: Store, keys: Keys, clock: object) -> Place:
    place = Place(store, keys, Leases(store, keys), Gates(store, keys, clock.sleep))  # type: ignore[attr-defined]
    await place.gates.create(keys.gate_project("acme"), GateRow(open=True, term=3))
    return place


async def lost(place: Place, claim: Claim) -> Lost:
    """The claim must fail, and leave the lease row as it was."""
    before = await place.store.read([place.keys.lease(KEY.id), place.keys.instance(KEY)])
    outcome = await place.leases.claim(claim)
    assert isinstance(outcome, Lost)
    assert await place.store.read([place.keys.lease(KEY.id), place.keys.instance(KEY)]) == before
    return outcome


async def test_the_first_claim_creates(place: Place) -> None:
    """Epoch (term of the gate, version of the write), incarnation (0, 0), a birth, and a row in the directory."""
    me = await place.node("n1")
    claimed = await place.claimed(me)
    lease = await place.leases.read(KEY.id)
    assert lease is not None
    assert claimed.epoch == Epoch(3, lease.version)
    assert claimed.incarnation == FIRST_INCARNATION
    assert claimed.birth == Birth(BIRTH.members, BIRTH.quorum, claimed.epoch)
    assert (claimed.previous, claimed.created, claimed.version) == (None, True, lease.version)
    assert lease.row == LeaseRow("acme", "Auction", "lot/42", FIRST_INCARNATION, Held("n1", "7"), 3, BIRTH)
    assert (await place.store.read([place.keys.instance(KEY)]))[place.keys.instance(KEY)].value == (
        b'{"object_id":"%s","created_ms":77}' % KEY.id.encode()
    )


async def test_golden_lease_rows() -> None:
    """Lease rows are stored: their JSON, for each state, byte for byte."""
    rows = [
        LeaseRow("acme", "A", "x", Epoch(1, 2), Held("n1", "7"), 3, Birth(("c1",), 1, Epoch(3, 4))),
        LeaseRow("acme", "A", "x", Epoch(0, 0), RELEASED, 3),
        LeaseRow("acme", "A", "x", Epoch(0, 0), Forwarded("mars", 4), 3),
        LeaseRow("acme", "A", "x", Epoch(0, 0), Deleted("k"), 3, burials=(Burial("j", Epoch(3, 2)),)),
        LeaseRow("acme", "A", "x", Epoch(0, 0), MovingTo("mars", replace_tag(RELEASED)), 3),
    ]
    head = b'{"scope":"acme","cls":"A","name":"x","incarnation":'
    released = (
        b'"position":[[0,0],[[3,9],0],4152],"checksum":"AQEBAQEBAQEBAQEBAQEBAQ==","tag":%s,"members":["c1"],"quorum":1}'
    )
    assert [encode(row) for row in rows] == [
        head + b'[1,2],"state":{"type":"held","owner":"n1","nonce":"7"},"term":3,'
        b'"birth":{"members":["c1"],"quorum":1,"epoch":[3,4]}}',
        head + b'[0,0],"state":{"type":"released",' + released % b'"tag"' + b',"term":3}',
        head + b'[0,0],"state":{"type":"forwarded","region":"mars","term":4},"term":3}',
        head + b'[0,0],"state":{"type":"deleted","key":"k"},"term":3,"burials":[{"key":"j","epoch":[3,2]}]}',
        head
        + b'[0,0],"state":{"type":"moving","to":"mars","release":{"type":"released",'
        + released % b"null"
        + b'},"term":3}',
    ]


def replace_tag(released: Released) -> Released:
    return Released(released.position, released.checksum, None, released.members, released.quorum)


async def test_a_claim_needs_the_row_it_saw(place: Place) -> None:
    """Whoever claimed first has it; the loser is given the row, and with it the way."""
    first, second = await place.node("n1"), await place.node("n2")
    stale = await place.claim(second)
    won = await place.claimed(first)
    outcome = await lost(place, stale)
    assert outcome.lease is not None
    assert (outcome.lease.row.state, outcome.lease.version) == (Held("n1", "7"), won.version)
    assert outcome.registered
    assert outcome.gate.open


async def test_a_claim_needs_the_holders_row_to_be_gone(place: Place) -> None:
    """While the node that the row names has a row, nobody claims over it; afterwards one may, with a later epoch."""
    first, second = await place.node("n1"), await place.node("n2")
    held = await place.claimed(first)
    assert (await lost(place, await place.claim(second))).holder == "n1"
    await place.remove(place.keys.node("n1"))
    taken = await place.claimed(second)
    assert taken.epoch > held.epoch
    assert not taken.created
    assert taken.previous is not None
    assert taken.previous.version == held.version


async def test_a_claim_over_my_own_row_needs_no_absence(place: Place) -> None:
    """The row's owner is me, and I do not have it resident: claim over it."""
    me = await place.node("n1")
    held = await place.claimed(me)
    again = await place.claimed(me)
    assert again.epoch > held.epoch
    assert not again.created


async def test_a_claim_needs_my_own_row_since_i_registered(place: Place) -> None:
    """Evicted, or evicted and registered again under the same id by a late write: claim no more."""
    me = await place.node("n1")
    claim = await place.claim(me)
    await place.remove(place.keys.node("n1"))
    assert not (await lost(place, claim)).registered
    await place.node("n1")
    assert not (await lost(place, claim)).registered


async def test_a_claim_needs_its_gate_open_at_the_version_seen(place: Place) -> None:
    """A gate closed, or changed in any way since, refuses the claim and comes back."""
    me = await place.node("n1")
    stale = await place.claim(me)
    gate = place.keys.gate_project("acme")
    await place.put(gate, GateRow(open=False, term=3, to="mars"))
    refused = await lost(place, stale)
    assert refused.gate.gate == GateRow(open=False, term=3, to="mars")
    assert (await lost(place, await place.claim(me))).gate.gate == refused.gate.gate
    await place.put(gate, GateRow(open=True, term=4))
    assert (await lost(place, stale)).gate.open
    assert (await place.claimed(me)).epoch.term == 4


async def test_an_absent_gate_is_closed(place: Place) -> None:
    """No gate, no claim."""
    me = await place.node("n1")
    await place.remove(place.keys.gate_project("acme"))
    assert (await lost(place, await place.claim(me))).gate.gate is None


async def test_a_claim_does_not_mind_less_specific_gates(place: Place) -> None:
    """While the class's own gate decides, the project's may close or change."""
    me = await place.node("n1")
    await place.put(place.keys.gate_class("acme", "Auction"), GateRow(open=True, term=8))
    claim = await place.claim(me)
    await place.put(place.keys.gate_project("acme"), GateRow(open=False, term=9))
    assert isinstance(await place.leases.claim(claim), Claimed)


@pytest.mark.parametrize("specific", ["class", "object"])
async def test_a_claim_needs_every_more_specific_gate_to_be_absent(place: Place, specific: str) -> None:
    """A class or an object that got a gate of its own behind my back is not claimed by the project's."""
    me = await place.node("n1")
    stale = await place.claim(me)
    gate = place.keys.gate_class("acme", "Auction") if specific == "class" else place.keys.gate_object(KEY.id)
    await place.put(gate, GateRow(open=False, term=9, to="mars"))
    assert (await lost(place, stale)).gate.gate == GateRow(open=False, term=9, to="mars")
    await lost(place, await place.claim(me))
    await place.put(gate, GateRow(open=True, term=10))
    await place.put(place.keys.gate_project("acme"), GateRow(open=False, term=3))
    assert (await place.claimed(me)).epoch.term == 10


async def test_a_drain_claim_needs_the_gate_closed_at_the_version_seen(place: Place) -> None:
    """It commits behind a closed gate only, and not once that gate has changed."""
    me = await place.node("n1")
    await place.claimed(me)
    await lost(place, await place.claim(me, drain=True))
    gate = place.keys.gate_project("acme")
    await place.put(gate, GateRow(open=False, term=3))
    stale = await place.claim(me, drain=True)
    assert isinstance(await place.leases.claim(stale), Claimed)
    await place.put(gate, GateRow(open=True, term=4))
    await lost(place, await place.claim(me, drain=True))
    await lost(place, replace(await place.claim(me), gate=stale.gate, drain=True))


@pytest.mark.parametrize("state", [MovingTo("mars", RELEASED), Forwarded("mars", 4)])
async def test_a_row_that_has_gone_elsewhere_is_not_claimed(place: Place, state: MovingTo | Forwarded) -> None:
    """Moving and forwarded rows refuse every claim, and the answer says where to."""
    me = await place.node("n1")
    await place.put(place.keys.lease(KEY.id), LeaseRow("acme", "Auction", "lot/42", FIRST_INCARNATION, state, 3))
    refused = await lost(place, await place.claim(me))
    assert refused.lease is not None
    assert refused.lease.row.state == state


async def test_a_birth_is_carried_on_until_a_clean_release(place: Place) -> None:
    """Takeovers before there is a manifest ask the members of the birth, of its epoch; a release ends that."""
    one, two = await place.node("n1"), await place.node("n2")
    born = await place.claimed(one)
    for _ in range(2):
        again = await place.claimed(one)
        assert again.birth == born.birth
    await place.remove(place.keys.node("n1"))
    taken = await place.claimed(two)
    assert taken.birth == Birth(BIRTH.members, BIRTH.quorum, born.epoch)
    assert isinstance((await place.leases.release([Release(taken, RELEASED)]))[KEY.id], int)
    woken = await place.claimed(two)
    assert (woken.birth, woken.created, woken.incarnation) == (None, False, FIRST_INCARNATION)
    assert woken.previous is not None
    assert woken.previous.row.state == RELEASED


async def test_a_release_that_landed_nothing_takes_the_object_back(place: Place) -> None:
    """No row in the directory; the next claim bears the same life anew, by its own epoch."""
    me = await place.node("n1")
    first = await place.claimed(me)
    await place.leases.release([Release(first, replace_tag(RELEASED))])
    assert not await place.there(place.keys.instance(KEY))
    second = await place.claimed(me)
    assert (second.created, second.incarnation) == (True, FIRST_INCARNATION)
    assert second.birth == Birth(BIRTH.members, BIRTH.quorum, second.epoch)
    assert await place.there(place.keys.instance(KEY))
    await place.leases.release([Release(second, RELEASED)])
    assert await place.there(place.keys.instance(KEY))


async def test_a_release_needs_its_own_claim(place: Place) -> None:
    """One that comes late, after another claim, changes nothing and says so."""
    me = await place.node("n1")
    old = await place.claimed(me)
    new = await place.claimed(me)
    outcome = (await place.leases.release([Release(old, RELEASED)]))[KEY.id]
    assert isinstance(outcome, Overtaken)
    assert outcome.lease is not None
    assert outcome.lease.version == new.version


async def test_a_release_looks_at_no_gate(place: Place) -> None:
    """Behind a closed gate residencies still end clean."""
    claimed = await place.claimed(await place.node("n1"))
    await place.put(place.keys.gate_project("acme"), GateRow(open=False, term=3))
    assert isinstance((await place.leases.release([Release(claimed, RELEASED)]))[KEY.id], int)


async def test_a_release_carries_the_right_alarm_row(place: Place) -> None:
    """In the same write, conditioned on `alarm-of`; when that was overtaken, nothing is written."""
    claimed = await place.claimed(await place.node("n1"))
    alarms = Alarms(place.store, place.keys)
    early, late = (alarm_row(KEY, claimed.incarnation, due) for due in (1000, 2000))
    seen = await alarms.set(KEY.id, claimed.version, Mirror(), early)
    assert isinstance(seen, Mirror)
    blind = (await place.leases.release([Release(claimed, RELEASED, Mirror(), late)]))[KEY.id]
    assert isinstance(blind, Overtaken)
    assert blind.alarm == seen
    assert blind.lease is not None
    assert blind.lease.version == claimed.version
    assert isinstance((await place.leases.release([Release(claimed, RELEASED, blind.alarm, late)]))[KEY.id], int)
    assert [due.row.due_ms for due in (await alarms.due(9999, 10)).rows] == [2000]
    assert (await alarms.read(KEY.id)).row == late


async def test_many_releases_go_out_in_few_writes_and_one_overtaken_holds_up_none(place: Place) -> None:
    """As many as fit into 128 conditions and mutations; the one that lost its lease is reported alone."""
    me = await place.node("n1")
    gate = await place.gates.read(KEY)
    releases = []
    for n in range(150):
        key = ObjectKey("acme", "Auction", f"{n}")
        claimed = await place.leases.claim(Claim(key, me, None, gate, BIRTH, 0, "7"))
        assert isinstance(claimed, Claimed)
        releases.append(Release(claimed, RELEASED, alarm=alarm_row(key, claimed.incarnation, n)))
    overtaken = releases[70].claimed
    lease = await place.leases.read(overtaken.key.id)
    again = await place.leases.claim(Claim(overtaken.key, me, lease, gate, BIRTH, 0, "8"))
    assert isinstance(again, Claimed)
    place.store.writes = 0  # type: ignore[attr-defined]
    results = await place.leases.release(releases)
    assert place.store.writes <= 7  # type: ignore[attr-defined]
    assert [key for key, result in results.items() if isinstance(result, Overtaken)] == [overtaken.key.id]
    assert len(results) == 150
    assert len((await Alarms(place.store, place.keys).due(9999, 1000)).rows) == 149


async def test_a_delete_is_one_write_and_the_next_life_has_its_epoch(place: Place) -> None:
    """Tombstone, no directory row, no alarm, a listed deletion; the claim over it starts the delete's incarnation."""
    me = await place.node("n1")
    claimed = await place.claimed(me)
    alarms = Alarms(place.store, place.keys)
    mirror = await alarms.set(KEY.id, claimed.version, Mirror(), alarm_row(KEY, claimed.incarnation, 5))
    assert isinstance(mirror, Mirror)
    gone = await place.leases.delete(claimed, mirror, key="idem")
    assert isinstance(gone, Gone)
    lease = await place.leases.read(KEY.id)
    assert lease is not None
    assert lease.row.state == Deleted("idem")
    assert gone.epoch == Epoch(3, lease.version)
    assert gone.epoch > claimed.epoch
    assert not await place.there(place.keys.instance(KEY))
    assert await place.there(place.keys.deleted(KEY))
    assert (await alarms.due(9999, 10)).rows == ()
    assert await alarms.read(KEY.id) == Mirror()
    reborn = await place.claimed(me)
    assert (reborn.incarnation, reborn.created) == (gone.epoch, True)
    assert reborn.birth == Birth(BIRTH.members, BIRTH.quorum, reborn.epoch)
    assert await place.there(place.keys.instance(KEY))
    assert not await place.there(place.keys.deleted(KEY))


async def test_a_deletion_copied_from_another_store_keeps_its_epoch(place: Place) -> None:
    """Versions of two stores count apart: the copy says the epoch, and no later life is lower."""
    row = LeaseRow("acme", "Auction", "lot/42", Epoch(3, 10**12), Deleted(), 3)
    await place.put(place.keys.lease(KEY.id), row)
    assert (await place.claimed(await place.node("n1"))).incarnation == Epoch(3, 10**12)


async def test_a_delete_needs_its_own_claim_and_the_alarm_row_it_saw(place: Place) -> None:
    """A former owner deletes nothing, and no alarm row is left behind."""
    me = await place.node("n1")
    old = await place.claimed(me)
    new = await place.claimed(me)
    assert isinstance(await place.leases.delete(old, Mirror()), Overtaken)
    await Alarms(place.store, place.keys).set(KEY.id, new.version, Mirror(), alarm_row(KEY, new.incarnation, 5))
    assert isinstance(await place.leases.delete(new, Mirror()), Overtaken)
    assert await place.there(place.keys.instance(KEY))


async def test_a_claim_whose_answer_was_lost_is_proved_by_reading(place: Place) -> None:
    """The row under my id at another version is that claim; epoch, birth and all."""
    me = await place.node("n1")
    claim = await place.claim(me)
    place.store.lose_answers = 1  # type: ignore[attr-defined]
    with pytest.raises(StoreUnavailable):
        await place.leases.claim(claim)
    settled = await place.leases.settle(claim)
    assert isinstance(settled, Claimed)
    lease = await place.leases.read(KEY.id)
    assert lease is not None
    assert settled.version == lease.version
    assert (settled.created, settled.birth) == (True, Birth(BIRTH.members, BIRTH.quorum, settled.epoch))


async def test_an_older_claims_row_is_not_taken_for_a_newer_ones(place: Place) -> None:
    """Two claims of one node over the same rows differ by their nonce: one residency per epoch."""
    me = await place.node("n1")
    older, newer = await place.claim(me), await place.claim(me, nonce="8")
    won = await place.leases.claim(older)
    assert isinstance(won, Claimed)
    settled = await place.leases.settle(newer)
    assert isinstance(settled, Lost)
    assert settled.lease is not None
    assert settled.lease.version == won.version


async def test_a_keyed_deletion_is_remembered_in_later_lives(place: Place) -> None:
    """Claims, releases and further deletions carry its key and epoch on; the oldest of more than sixteen goes."""
    me = await place.node("n1")
    gone = await place.leases.delete(await place.claimed(me), Mirror(), "k-0")
    assert isinstance(gone, Gone)
    life = await place.claimed(me)
    assert life.burials == (Burial("k-0", gone.epoch),)
    await place.leases.release([Release(life, RELEASED)])
    life = await place.claimed(me)
    assert life.burials == (Burial("k-0", gone.epoch),)
    assert isinstance(await place.leases.delete(life, Mirror()), Gone)
    for n in range(1, 17):
        life = await place.claimed(me)
        assert buried(life.burials, "k-0") == gone.epoch
        assert buried(life.burials, None) is None
        assert isinstance(await place.leases.delete(life, Mirror(), f"k-{n}"), Gone)
    assert [burial.key for burial in (await place.claimed(me)).burials] == [f"k-{n}" for n in range(1, 17)]


async def test_a_claim_that_may_still_be_on_its_way_is_not_settled(place: Place) -> None:
    """Reading the old row proves nothing; claiming again on it is safe whichever of the two lands."""
    me, other = await place.node("n1"), await place.node("n2")
    claim = await place.claim(me)
    assert await place.leases.settle(claim) is None
    late = await place.leases.claim(claim)
    assert isinstance(late, Claimed)
    again = await place.leases.claim(claim)
    assert isinstance(again, Lost)
    assert await place.leases.settle(claim) == late
    await place.remove(place.keys.node("n1"))
    await place.claimed(other)
    assert isinstance(await place.leases.settle(claim), Lost)


async def test_a_lost_claim_costs_no_second_round_trip(place: Place) -> None:
    """The Conflict is the routing answer: one write, nothing read."""
    me = await place.node("n1")
    stale = await place.claim(me)
    await place.claimed(me)
    place.store.writes = 0  # type: ignore[attr-defined]
    await place.leases.claim(stale)
    assert place.store.writes == 1  # type: ignore[attr-defined]


async def test_a_lease_row_is_never_removed(place: Place) -> None:
    """Born, released, deleted, reborn: the row's creation is always the first claim."""
    me = await place.node("n1")
    first = await place.claimed(me)
    await place.leases.release([Release(first, RELEASED)])
    await place.leases.delete(await place.claimed(me), Mirror())
    await place.claimed(me)
    lease = await place.leases.read(KEY.id)
    assert lease is not None
    assert lease.created == first.version
    check = await place.store.write([At(place.keys.lease(KEY.id), 0)], [])
    assert isinstance(check, Conflict)
