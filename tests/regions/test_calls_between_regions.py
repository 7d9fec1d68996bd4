"""Calls find their region: by policy, pin, gate, or a row that says where the object went."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from domicile import Object, Region
from domicile.errors import DomicileError, Moving, NoSuchObject, NoSuchProject, NotServing
from domicile.placement.keys import Keys
from domicile.placement.records import (
    FIRST_INCARNATION,
    Forwarded,
    GateRow,
    InstanceRow,
    LeaseRow,
    ObjectKey,
    StandinRow,
    encode,
)
from domicile.placement.store import Put

A, B = Keys("domicile", "a"), Keys("domicile", "b")


class Counter(Object):
    """Counts in its database."""

    def init(self) -> None:
        self.sql.exec("CREATE TABLE counts(n INTEGER)")

    def add(self) -> int:
        self.sql.exec("INSERT INTO counts VALUES (1)")
        row = self.sql.one("SELECT count(*) AS n FROM counts")
        return int(row["n"]) if row else 0


class InB(Counter):
    """Pinned to b."""

    placement = Region("b")


class OnMars(Counter):
    """Pinned to a region that nobody has registered."""

    placement = Region("mars")


def test_a_project_is_called_through_another_region_in_one_hop(regions: Callable[..., None]) -> None:
    """Born in a, called through b: each call costs one hop, counted; called through a it costs none."""

    async def scenario(world: Any) -> None:
        assert await world.call("a", "acme", "Counter", "x", "add") == 1
        assert await world.call("b", "acme", "Counter", "x", "add") == 2
        assert await world.call("b", "acme", "Counter", "new", "add") == 1
        assert (world.hops("a"), world.hops("b")) == (0, 2)
        assert world.lives_in("acme", "Counter", "x") == world.lives_in("acme", "Counter", "new") == ["a"]
        answer = await world.answer("b", "acme", "Counter", "x", "add")
        assert answer.node == world.a.node.node_id

    regions(scenario, Counter)


def test_a_call_crosses_once_and_goes_to_the_home_there(regions: Callable[..., None]) -> None:
    """Whichever node of the other region is its ingress, the object has one home, and one node hop reaches it."""

    async def scenario(world: Any) -> None:
        for name in map(str, range(6)):
            assert await world.call("a", "acme", "Counter", name, "add") == 1
            assert await world.call("b", "acme", "Counter", name, "add") == 2
        assert world.hops("b") == 6

    regions(scenario, Counter, nodes=2)


def test_a_project_has_the_home_it_was_created_with(regions: Callable[..., None]) -> None:
    """By the region of the request's body, whoever was asked, else the one that was asked; its gate is there."""

    async def scenario(world: Any) -> None:
        assert (await world.b.node.put_project("acme", "a", None)).region == "a"
        assert (await world.b.node.put_project("here", None, None)).region == "b"
        assert (await world.b.node.put_project("acme", "b", None)).region == "a"
        assert (await world.a.node._gates.get(A.gate_project("acme"))).row == GateRow(True, 1)
        assert await world.b.node._gates.get(B.gate_project("acme")) is None
        assert await world.call("b", "acme", "Counter", "x", "add") == 1
        assert world.lives_in("acme", "Counter", "x") == ["a"]
        with pytest.raises(NoSuchProject):
            await world.call("b", "nobody", "Counter", "x", "add")

    regions(scenario, Counter, projects="declared")


def test_everything_else_crosses_too(regions: Callable[..., None]) -> None:
    """Described, listed and deleted through another region, an object is the same object."""

    async def scenario(world: Any) -> None:
        for name in ("x", "y"):
            await world.call("a", "acme", "Counter", name, "add")
        await world.call("a", "acme", "InB", "z", "add")
        key = ObjectKey("acme", "Counter", "x")
        assert (await world.b.node.describe(key))["region"] == "a"
        for through in (world.a, world.b):
            listed, token = [], None
            while True:
                page = await through.node.list_objects("acme", None, "", token)
                listed += [one["name"] for one in page["objects"]]
                token = page["token"]
                if token is None:
                    break
            assert listed == ["x", "y", "z"]
            page = await through.node.list_objects("acme", "InB", "", None)
            assert [one["name"] for one in page["objects"]] == ["z"]
        await world.b.node.delete(key, None, "once")
        with pytest.raises(NoSuchObject):
            await world.a.node.describe(key)
        with pytest.raises(NoSuchObject):
            await world.b.node.describe(ObjectKey("never", "Counter", "x"))

    regions(scenario, Counter, InB)


def test_a_pinned_class_lives_where_it_is_pinned(regions: Callable[..., None]) -> None:
    """Whatever the project's home, and whoever is asked; its own gate is there, and none in the home."""

    async def scenario(world: Any) -> None:
        assert await world.call("a", "acme", "InB", "x", "add") == 1
        assert await world.call("b", "acme", "InB", "x", "add") == 2
        assert (world.lives_in("acme", "InB", "x"), world.hops("a"), world.hops("b")) == (["b"], 1, 0)
        assert (await world.b.node._gates.get(B.gate_class("acme", "InB"))).row.open
        assert await world.a.node._gates.get(A.gate_class("acme", "InB")) is None

    regions(scenario, InB)


def test_a_project_whose_first_use_is_of_a_pinned_class(regions: Callable[..., None]) -> None:
    """Its home is where the request landed, not where the class is pinned."""

    async def scenario(world: Any) -> None:
        assert await world.call("a", "acme", "InB", "x", "add") == 1
        assert (await world.b.node.project("acme")).region == "a"
        assert await world.call("b", "acme", "Counter", "x", "add") == 1
        assert (world.lives_in("acme", "Counter", "x"), world.lives_in("acme", "InB", "x")) == (["a"], ["b"])

    regions(scenario, Counter, InB)


def test_another_pin_is_refused_by_name(regions: Callable[..., None]) -> None:
    """A class recorded with one pin is not born by a node that loads it with another."""

    async def scenario(world: Any) -> None:
        assert await world.call("a", "acme", "InB", "x", "add") == 1
        group = world.groups["b"]
        group.classes = (type("InB", (Counter,), {"__module__": __name__}),)
        await group.remove(world.b)
        await group.add("other")
        with pytest.raises(NotServing, match=r"InB of project acme is pinned to b, and in .* code to no region.*repin"):
            await world.call("b", "acme", "InB", "y", "add")

    regions(scenario, InB)


def test_one_region_stands_in_for_one_that_is_not_there(regions: Callable[..., None]) -> None:
    """A class pinned to an unregistered region, called through both at once, has one home, and keeps it."""

    async def scenario(world: Any) -> None:
        answers = await asyncio.gather(
            *(world.call(through, "acme", "OnMars", "x", "add") for through in ("a", "b", "a", "b"))
        )
        assert sorted(answers) == [1, 2, 3, 4]
        (home,) = world.lives_in("acme", "OnMars", "x")
        key = A.control.standin("mars")
        assert (await world.control.read([key]))[key].value == encode(StandinRow(home))

    regions(scenario, OnMars)


def test_control_may_be_away(regions: Callable[..., None]) -> None:
    """Known projects route and are born on, in both regions and after a restart; unknown ones are `not_serving`."""

    async def scenario(world: Any) -> None:
        for cls in ("Counter", "InB"):
            await world.call("a", "acme", cls, "x", "add")
        await world.until(lambda: world.b.node._projects.known("acme"), "b has seen the policy")
        await world.until(lambda: (world.b.root / "control-hints.json").exists(), "it is on disk")
        world.control.away = True

        async def works() -> None:
            assert await world.call("b", "acme", "Counter", "x", "add") > 1
            assert await world.call("a", "acme", "InB", "x", "add") > 1
            assert await world.call("b", "acme", "Counter", f"new{world.b.node.node_id}", "add") == 1
            assert await world.call("a", "acme", "InB", f"new{world.b.node.node_id}", "add") == 1
            for project, cls in (("unknown", "Counter"), ("acme", "OnMars")):
                with pytest.raises(NotServing):
                    await world.call("b", project, cls, "x", "add")

        await works()
        for group in world.groups.values():
            (one,) = group.nodes
            await group.remove(one)
            await group.add(one.name)
        world.control.away = False
        for group in world.groups.values():
            await group.open_ingress()
        await world.all_know("a", "b")
        world.control.away = True
        await works()

    regions(scenario, Counter, InB, OnMars)


def test_an_object_that_moved_by_itself_is_found_and_remembered(regions: Callable[..., None]) -> None:
    """The first call through a third region takes two hops, the next one; through the old home one each time."""

    async def scenario(world: Any) -> None:
        key = ObjectKey("acme", "Counter", "x")
        await world.call("a", "acme", "Counter", "other", "add")
        row = LeaseRow("acme", "Counter", "x", FIRST_INCARNATION, Forwarded("b", 2), 1)
        await world.groups["a"].store.write([], [Put(A.lease(key.id), encode(row))])
        await world.groups["b"].store.write([], [Put(B.gate_object(key.id), encode(GateRow(True, 2)))])
        seen = world.b.node._gates.followed.rows
        await world.until(lambda: B.gate_object(key.id) in seen, "b has seen the gate")
        counted, hops = [], []
        for through in ("c", "c", "a", "a", "b"):
            before = world.hops(through)
            counted.append(await world.call(through, "acme", "Counter", "x", "add"))
            hops.append(world.hops(through) - before)
        assert (counted, hops) == ([1, 2, 3, 4, 5], [2, 1, 1, 1, 0])
        assert world.lives_in("acme", "Counter", "x") == ["b"]
        await world.groups["a"].store.write([], [Put(A.instance(key), encode(InstanceRow(key.id, 1)))])
        await world.call("a", "acme", "InB", "y", "add")
        found, token = [], None
        while found == [] or token is not None:
            page = await world.c.node.list_objects("acme", None, "", token)
            found, token = found + [one["name"] for one in page["objects"]], page["token"]
        assert found == ["other", "x", "y"]

    regions(scenario, Counter, InB, names=("a", "b", "c"))


@pytest.mark.parametrize("through", ["a", "b", "c"])
def test_a_closed_gate_refuses_or_names_the_new_home(regions: Callable[..., None], through: str) -> None:
    """`moving` while no gate is open, also where the old one names the new home already; then the new home."""

    async def scenario(world: Any) -> None:
        await world.call("a", "acme", "Counter", "x", "add")
        assert await world.call("c", "acme", "Counter", "y", "add") == 1
        gate = A.gate_project("acme")

        async def close(to: str | None) -> None:
            await world.groups["a"].store.write([], [Put(gate, encode(GateRow(False, 1, to)))])
            followed = world.a.node._gates.followed.rows
            await world.until(lambda: followed[gate].row == GateRow(False, 1, to), "a has seen its gate")

        for to in (None, "b"):
            await close(to)
            with pytest.raises(Moving) as refused:
                await world.call(through, "acme", "Counter", "new", "add")
            assert refused.value.retry_after
        await world.groups["b"].store.write([], [Put(B.gate_project("acme"), encode(GateRow(True, 2)))])
        await world.until(lambda: B.gate_project("acme") in world.b.node._gates.followed.rows, "b has seen its gate")
        assert await world.call(through, "acme", "Counter", "new", "add") == 1
        assert world.lives_in("acme", "Counter", "new") == ["b"]
        assert await world.call("c", "acme", "Counter", "new", "add") == 2

    regions(scenario, Counter, names=("a", "b", "c"))


def test_a_region_that_does_not_answer(regions: Callable[..., None]) -> None:
    """What cannot have run is `not_serving`; the next address of the ingress is tried before that."""

    async def scenario(world: Any) -> None:
        await world.call("a", "acme", "Counter", "x", "add")
        first, second = world.groups["a"].nodes
        await world.call("b", "acme", "Counter", "x", "add")
        await world.groups["a"].remove(first)
        assert await world.call("b", "acme", "Counter", "x", "add", key="k") == 3
        await world.groups["a"].remove(second)
        with pytest.raises(DomicileError) as refused:
            await world.call("b", "acme", "Counter", "x", "add")
        assert refused.value.retryable

    regions(scenario, Counter, nodes=2)
