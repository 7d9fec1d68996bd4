"""`project repin`: a class lives in another region from now on; what stands in the way is said."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from domicile import Object, Region
from domicile.errors import BadName, BadRequest, Moving, NoSuchProject, NotHome, NotServing
from domicile.placement.keys import Keys
from domicile.placement.records import ClassRow, GateRow, ObjectKey
from domicile.placement.store import Delete, Put

A, B = Keys("domicile", "a"), Keys("domicile", "b")


class Counter(Object):
    """Counts."""

    def add(self) -> int:
        self.kv.put("n", self.kv.get("n", 0) + 1)
        return int(self.kv.get("n"))


def pinned(region: str | None) -> type[Object]:
    """The class `Tally`, pinned to a region or to none."""
    body = {"__module__": __name__, "placement": Region(region) if region else None}
    return type("Tally", (Counter,), body)


async def deploy(world: Any, *classes: type[Object]) -> None:
    """Every node anew, with these classes."""
    for group in world.groups.values():
        group.classes = classes
        for one in list(group.nodes):
            await group.remove(one)
            await group.add(one.name + "'")
    for group in world.groups.values():
        await group.open_ingress()
    await world.all_know(*world.groups)


async def gate(world: Any, keys: Keys) -> GateRow | None:
    seen = await world.groups[keys.region].nodes[0].node._gates.get(keys.gate_class("acme", "Tally"))
    return seen.row if seen is not None else None


def test_a_class_is_pinned_to_another_region(regions: Callable[..., None]) -> None:
    """Not while objects live where it was; then old code is refused by name, new code is born where it is pinned."""

    async def scenario(world: Any) -> None:
        assert await world.call("a", "acme", "Tally", "x", "add") == 1
        with pytest.raises(BadRequest, match=r"class Tally live in region b, 'x'.*object move"):
            await world.a.node.repin("acme", "Tally", "a")
        assert await world.call("a", "acme", "Tally", "x", "add") == 2
        assert await gate(world, B) == GateRow(True, 1)
        await world.a.node.delete(ObjectKey("acme", "Tally", "x"), None, None)
        row = await world.b.node.repin("acme", "Tally", "a")
        assert (row.pin, row.term > 1) == ("a", True)
        assert await gate(world, B) == GateRow(False, row.term, "a")
        assert await gate(world, A) == GateRow(True, row.term)
        for through in "ab":
            with pytest.raises(NotServing, match=r"Tally of project acme is pinned to a, and in this node.s code to b"):
                await world.call(through, "acme", "Tally", "y", "add")
        await deploy(world, pinned("a"))
        assert [await world.call(through, "acme", "Tally", "y", "add") for through in "ab"] == [1, 2]
        assert world.lives_in("acme", "Tally", "y") == ["a"]
        key = ObjectKey("acme", "Tally", "y")
        assert (await world.b.node.describe(key))["epoch"].startswith(f"{row.term}.")

    regions(scenario, pinned("b"))


def test_a_class_that_nobody_pinned_is_pinned_where_it_lives_and_set_free(regions: Callable[..., None]) -> None:
    """Its objects stay and serve on, and their epochs grow."""

    async def scenario(world: Any) -> None:
        key = ObjectKey("acme", "Tally", "x")
        epochs = []

        async def served(counted: int) -> None:
            assert await world.call("b", "acme", "Tally", "x", "add") == counted
            epochs.append(tuple(map(int, (await world.a.node.describe(key))["epoch"].split("."))))

        await world.call("a", "acme", "Counter", "x", "add")
        await served(1)
        assert (await world.b.node.repin("acme", "Tally", "a")).pin == "a"
        await deploy(world, pinned("a"), Counter)
        await served(2)
        assert (await world.b.node.repin("acme", "Tally", None)).pin is None
        assert await gate(world, A) is None
        await deploy(world, pinned(None), Counter)
        await served(3)
        assert epochs == sorted(set(epochs))
        assert world.lives_in("acme", "Tally", "x") == ["a"]

    regions(scenario, pinned(None), Counter)


def test_a_node_that_goes_by_an_old_row_is_sent_on(regions: Callable[..., None]) -> None:
    """Every region's own gate names the new one, whatever a node remembers of pins: nothing is born twice."""

    async def scenario(world: Any) -> None:
        await world.call("a", "acme", "Tally", "x", "add")
        await world.a.node.delete(ObjectKey("acme", "Tally", "x"), None, None)
        await world.until(lambda: world.c.node._control.pins.known("acme", "Tally"), "c has seen the pin")
        stale = world.c.node._control.pins
        await world.a.node.repin("acme", "Tally", "a")
        await deploy_only(world, "a", pinned("a"))
        stale._seen["acme"]["Tally"] = ClassRow("b", 1)
        stale.followed.changed = lambda key, before, after: None
        assert await world.call("c", "acme", "Tally", "y", "add") == 1
        assert (world.lives_in("acme", "Tally", "y"), world.hops("c")) == (["a"], 1)

    async def deploy_only(world: Any, region: str, cls: type[Object]) -> None:
        group = world.groups[region]
        group.classes = (cls,)
        await group.remove(group.nodes[0])
        await group.add("new")
        await group.open_ingress()
        await world.all_know(region)

    regions(scenario, pinned("b"), names=("a", "b", "c"))


def test_births_while_a_class_is_pinned_anew(regions: Callable[..., None]) -> None:
    """Either the birth or the pin is refused; never is an object left behind a closed gate."""

    async def scenario(world: Any) -> None:
        await world.call("a", "acme", "Tally", "0", "add")
        await world.a.node.delete(ObjectKey("acme", "Tally", "0"), None, None)

        async def born(name: str) -> bool:
            try:
                return bool(await world.call("b", "acme", "Tally", name, "add") == 1)
            except (NotServing, NotHome, Moving):
                return False

        async def repinned() -> bool:
            try:
                return (await world.a.node.repin("acme", "Tally", "a")).pin == "a"
            except BadRequest:
                return False

        for turn in range(5):
            names = [f"{turn}.{n}" for n in range(4)]
            *births, pin = await asyncio.gather(*map(born, names), repinned())
            if pin:
                assert not any(births)
                break
            for name, there in zip(names, births, strict=True):
                if there:
                    await world.b.node.delete(ObjectKey("acme", "Tally", name), None, None)

    regions(scenario, pinned("b"))


def test_what_cannot_be_pinned(regions: Callable[..., None]) -> None:
    """Bad names, an unknown project, a project that moves, control or a region that does not answer."""

    async def scenario(world: Any) -> None:
        node = world.a.node
        await world.call("a", "acme", "Counter", "x", "add")
        for project, cls, pin in (("Acme", "C", "a"), ("acme", "no class", "a"), ("acme", "C", "control")):
            with pytest.raises(BadName):
                await node.repin(project, cls, pin)
        with pytest.raises(NoSuchProject):
            await node.repin("nobody", "C", "a")
        mark = A.control.move("acme")
        await world.control.write([], [Put(mark, b"{}")])
        with pytest.raises(NotServing, match="moving"):
            await node.repin("acme", "C", "a")
        await world.control.write([], [Delete(mark)])
        assert (await node.repin("acme", "C", "b")).pin == "b"
        (b,) = world.groups["b"].nodes
        await world.groups["b"].remove(b)
        with pytest.raises(NotServing):
            await node.repin("acme", "C", "a")
        world.control.away = True
        with pytest.raises(NotServing):
            await node.repin("acme", "C", "a")

    regions(scenario, Counter)
