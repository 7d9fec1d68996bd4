"""The alarm mirror: one row an object, never another owner's, never a ghost's."""

from __future__ import annotations

from typing import Any

import pytest

from domicile.placement.alarms import Alarms, Mirror, Overtaken, alarm_row
from domicile.placement.keys import Keys
from domicile.placement.records import (
    AlarmRow,
    Deleted,
    Epoch,
    Forwarded,
    Generation,
    Held,
    LeaseRow,
    LeaseState,
    NodeRow,
    ObjectKey,
    Position,
    Released,
    encode,
)
from domicile.placement.store import Committed, Delete, Put

pytestmark = pytest.mark.anyio

KEY = ObjectKey("acme", "Auction", "x")
LIFE = Epoch(1, 5)
RELEASED = Released(Position(LIFE, Generation(Epoch(1, 6), 0), 0), b"", "tag")


@pytest.fixture
def alarms(store: Any, keys: Keys) -> Alarms:
    return Alarms(store, keys)


async def lease(store: Any, keys: Keys, state: LeaseState, incarnation: Epoch = LIFE) -> int:
    row = LeaseRow(KEY.scope, KEY.cls, KEY.name, incarnation, state, 1)
    outcome = await store.write([], [Put(keys.lease(KEY.id), encode(row))])
    assert isinstance(outcome, Committed)
    return outcome.version


def due(ms: int) -> AlarmRow:
    return alarm_row(KEY, LIFE, ms)


async def rows(store: Any, keys: Keys) -> list[str]:
    return [record.key.removeprefix(keys.root) for record in (await store.scan(keys.root + "alarm")).records]


def test_golden_alarm_row() -> None:
    """Alarm rows are stored: their JSON, byte for byte."""
    assert encode(due(7)) == b'{"scope":"acme","cls":"Auction","name":"x","incarnation":[1,5],"due_ms":7}'


async def test_an_object_has_one_row(alarms: Alarms, store: Any, keys: Keys) -> None:
    """Set, made earlier, made later, removed: each replaces the row before it, in both tables."""
    version = await lease(store, keys, Held("n1", "7"))
    mirror: Mirror | Overtaken = Mirror()
    for wanted in (500, 300, 900):
        assert isinstance(mirror, Mirror)
        mirror = await alarms.set(KEY.id, version, mirror, due(wanted))
        assert isinstance(mirror, Mirror)
        assert await rows(store, keys) == [f"alarm-of/{KEY.id}", f"alarms/{wanted:013d}/{KEY.id}"]
        assert mirror == await alarms.read(KEY.id)
    writes = store.writes
    assert await alarms.set(KEY.id, version, mirror, due(900)) == mirror
    assert store.writes == writes
    assert await alarms.set(KEY.id, version, mirror, None) == Mirror()
    assert await rows(store, keys) == []


async def test_a_former_owner_writes_no_row(alarms: Alarms, store: Any, keys: Keys) -> None:
    """Every write is conditioned on the lease row at this claim's version."""
    old = await lease(store, keys, Held("n1", "7"))
    new = await lease(store, keys, Held("n2", "7"))
    outcome = await alarms.set(KEY.id, old, Mirror(), due(5))
    assert isinstance(outcome, Overtaken)
    assert outcome.lease is not None
    assert outcome.lease.version == new
    assert await rows(store, keys) == []


async def test_a_write_needs_the_row_it_saw(alarms: Alarms, store: Any, keys: Keys) -> None:
    """An offer that came between is seen and replaced, leaving no stray row."""
    version = await lease(store, keys, Held("n1", "7"))
    first = await alarms.set(KEY.id, version, Mirror(), due(5))
    outcome = await alarms.set(KEY.id, version, Mirror(), due(3))
    assert isinstance(outcome, Overtaken)
    assert outcome.alarm == first
    assert isinstance(await alarms.set(KEY.id, version, outcome.alarm, due(3)), Mirror)
    assert await rows(store, keys) == [f"alarm-of/{KEY.id}", f"alarms/{3:013d}/{KEY.id}"]


async def test_a_sweep_sees_what_is_due_in_order_and_page_by_page(alarms: Alarms, store: Any, keys: Keys) -> None:
    """The earliest first, bounded, nothing of the future, and rows that cannot be woken do not hide the rest."""
    for n in range(7):
        key = ObjectKey("acme", "Auction", f"{n}")
        assert await alarms.offer(key.id, alarm_row(key, Epoch(0, 0), 1_000 - n))
    page = await alarms.due(997, 2)
    assert [row.row.due_ms for row in page.rows] == [994, 995]
    assert page.token is not None
    page = await alarms.due(997, 2, page.token)
    assert [row.row.due_ms for row in page.rows] == [996, 997]
    page = await alarms.due(997, 2, page.token)
    assert (page.rows, page.token) == ((), None)
    row = (await alarms.due(9999, 10)).rows[0]
    assert (row.object_id, row.row.name) == (ObjectKey("acme", "Auction", "6").id, "6")


async def test_an_offer_only_adds_what_is_missing_or_later(alarms: Alarms, store: Any, keys: Keys) -> None:
    """A row that is as early or earlier stays."""
    await lease(store, keys, RELEASED)
    assert await alarms.offer(KEY.id, due(500))
    assert not await alarms.offer(KEY.id, due(500))
    assert not await alarms.offer(KEY.id, due(600))
    assert await alarms.offer(KEY.id, due(400))
    assert await rows(store, keys) == [f"alarm-of/{KEY.id}", f"alarms/{400:013d}/{KEY.id}"]


async def test_no_offer_while_a_live_node_holds_the_lease(alarms: Alarms, store: Any, keys: Keys) -> None:
    """The owner knows storage; once its row is gone the offer stands in."""
    await lease(store, keys, Held("n2", "7"))
    await store.write([], [Put(keys.node("n2"), encode(NodeRow("n2", "h:1")))])
    assert not await alarms.offer(KEY.id, due(5))
    await store.write([], [Delete(keys.node("n2"))])
    assert await alarms.offer(KEY.id, due(5))


async def test_an_offer_loses_to_a_claim_in_between(alarms: Alarms, store: Any, keys: Keys) -> None:
    """Conditioned on the lease row it read."""
    await lease(store, keys, RELEASED)

    async def claimed() -> None:
        await lease(store, keys, Held("n1", "7"))

    store.before_write = claimed
    assert not await alarms.offer(KEY.id, due(5))
    assert await rows(store, keys) == []


@pytest.mark.parametrize(
    ("state", "incarnation"), [(Deleted(), LIFE), (Forwarded("mars", 2), LIFE), (RELEASED, Epoch(1, 99))]
)
async def test_no_offer_for_what_is_not_here_any_more(
    alarms: Alarms, store: Any, keys: Keys, state: LeaseState, incarnation: Epoch
) -> None:
    """Deleted, gone to another region, or another life: the index is of the past."""
    await lease(store, keys, state, incarnation)
    assert not await alarms.offer(KEY.id, due(5))


async def test_a_ghosts_row_goes_on_its_version(alarms: Alarms, store: Any, keys: Keys) -> None:
    """Removed for good, unless it has been written again since."""
    version = await lease(store, keys, Held("n1", "7"))
    mirror = await alarms.set(KEY.id, version, Mirror(), due(5))
    assert isinstance(mirror, Mirror)
    (seen,) = (await alarms.due(99, 10)).rows
    again = await alarms.set(KEY.id, version, mirror, alarm_row(KEY, Epoch(1, 6), 5))
    assert isinstance(again, Mirror)
    assert not await alarms.remove_ghost(seen)
    assert await alarms.read(KEY.id) == again
    (seen,) = (await alarms.due(99, 10)).rows
    assert await alarms.remove_ghost(seen)
    assert await rows(store, keys) == []


async def test_removing_a_stray_row_leaves_the_objects_own(alarms: Alarms, store: Any, keys: Keys) -> None:
    """A row that `alarm-of` does not name goes alone."""
    await lease(store, keys, RELEASED)
    await store.write([], [Put(keys.alarm(3, KEY.id), encode(due(3)))])
    await alarms.offer(KEY.id, due(5))
    stray = (await alarms.due(99, 10)).rows[0]
    assert stray.row.due_ms == 3
    assert await alarms.remove_ghost(stray)
    assert (await alarms.read(KEY.id)).due_ms == 5
    assert [row.row.due_ms for row in (await alarms.due(99, 10)).rows] == [5]
