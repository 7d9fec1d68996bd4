"""New terms after a placement store was put back: above all that was drawn, in every gate, by what the policy says."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from domicile.placement.embedded import EmbeddedStore
from domicile.placement.keys import Keys
from domicile.placement.new_term import NewTerm
from domicile.placement.records import (
    FIRST_INCARNATION,
    ClassRow,
    GateRow,
    Held,
    LeaseRow,
    ObjectKey,
    ProjectRow,
    StandinRow,
    encode,
)
from domicile.placement.store import Put

pytestmark = pytest.mark.anyio

HERE = Keys("c", "here")
KEY = ObjectKey("acme", "Lot", "42")


def store() -> EmbeddedStore:
    return EmbeddedStore(":memory:", lambda: 0.0, inline=True)


async def put(store: EmbeddedStore, key: str, row: object) -> None:
    await store.write([], [Put(key, encode(row))])  # type: ignore[arg-type]


async def gate(store: EmbeddedStore, key: str) -> GateRow:
    return msgspec.json.decode((await store.read([key]))[key].value, type=GateRow)


async def project(store: EmbeddedStore, name: str) -> ProjectRow:
    key = HERE.control.project(name)
    return msgspec.json.decode((await store.read([key]))[key].value, type=ProjectRow)


async def test_every_gate_of_a_project_gets_the_next_term() -> None:
    """The project's, a pinned class's and an object's own, open or closed; the counter goes along."""
    region, control = store(), store()
    await put(control, HERE.control.project("acme"), ProjectRow("here", 3))
    await put(control, HERE.control.project_class("acme", "Lot"), ClassRow("here", 2))
    await put(region, HERE.gate_project("acme"), GateRow(True, 3))
    await put(region, HERE.gate_class("acme", "Lot"), GateRow(True, 2))
    await put(region, HERE.gate_object(KEY.id), GateRow(False, 1, "there"))
    lease = LeaseRow("acme", "Lot", "42", FIRST_INCARNATION, Held("n", "x"), 3)
    await put(region, HERE.lease(KEY.id), lease)
    renewal = NewTerm(region, control, HERE)
    (done,) = await renewal.renew(await renewal.seen())
    assert (done.before, done.term, done.rewritten, done.closed, done.shut) == (3, 4, 3, [], False)
    assert await gate(region, HERE.gate_project("acme")) == GateRow(True, 4)
    assert await gate(region, HERE.gate_class("acme", "Lot")) == GateRow(True, 4)
    assert await gate(region, HERE.gate_object(KEY.id)) == GateRow(False, 4, "there")
    assert (await project(control, "acme")).term == 4


async def test_a_gate_the_policy_does_not_know_of_is_closed() -> None:
    """The store is older than a move: two open gates would be two homes."""
    region, control = store(), store()
    await put(control, HERE.control.project("gone"), ProjectRow("there", 5))
    await put(control, HERE.control.project("pinned"), ProjectRow("there", 5))
    await put(control, HERE.control.project_class("pinned", "Lot"), ClassRow("here", 2))
    await put(control, HERE.control.project("stood-in"), ProjectRow("nowhere", 5))
    await put(control, HERE.control.standin("nowhere"), StandinRow("here"))
    for key in (HERE.gate_project("gone"), HERE.gate_class("pinned", "Lot"), HERE.gate_project("stood-in")):
        await put(region, key, GateRow(True, 1))
    done = {one.project: one for one in await NewTerm(region, control, HERE).renew({})}
    assert done["gone"].closed == [HERE.gate_project("gone")]
    assert await gate(region, HERE.gate_project("gone")) == GateRow(False, 6, "there")
    assert (await gate(region, HERE.gate_class("pinned", "Lot"))).open
    assert (await gate(region, HERE.gate_project("stood-in"))).open
    assert done["pinned"].closed == done["stood-in"].closed == []


async def test_a_gate_that_is_closed_at_home_is_told_and_stays() -> None:
    """Whether a move runs cannot be known here."""
    region, control = store(), store()
    await put(control, HERE.control.project("acme"), ProjectRow("here", 5))
    await put(region, HERE.gate_project("acme"), GateRow(False, 5, "there"))
    (done,) = await NewTerm(region, control, HERE).renew({})
    assert done.shut
    assert not (await gate(region, HERE.gate_project("acme"))).open


@given(
    counter=st.integers(1, 50), gate_term=st.integers(1, 50), leased=st.integers(1, 50), elsewhere=st.integers(0, 50)
)
def test_the_new_term_exceeds_every_term_drawn(counter: int, gate_term: int, leased: int, elsewhere: int) -> None:
    """Whatever was put back: the counter, the gate, lease rows and manifests."""

    async def play() -> None:
        region, control = store(), store()
        await put(control, HERE.control.project("acme"), ProjectRow("here", counter))
        await put(region, HERE.gate_project("acme"), GateRow(True, gate_term))
        lease = LeaseRow("acme", "Lot", "42", FIRST_INCARNATION, Held("n", "x"), leased)
        await put(region, HERE.lease(KEY.id), lease)
        renewal = NewTerm(region, control, HERE)
        seen = await renewal.seen()
        (done,) = await renewal.renew({"acme": max(seen["acme"], elsewhere)})
        assert done.term > max(counter, gate_term, leased, elsewhere)
        assert (await gate(region, HERE.gate_project("acme"))).term == done.term
        again = await renewal.renew({})
        assert again[0].term == done.term + 1

    asyncio.run(play())
