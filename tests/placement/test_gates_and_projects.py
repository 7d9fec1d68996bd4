"""Gates decide, projects open them; both stay known while a store is away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from domicile.errors import BadName, BadRequest, NoSuchProject, NotServing
from domicile.placement.followed import Followed
from domicile.placement.gates import Gates
from domicile.placement.keys import Keys
from domicile.placement.pins import Pins
from domicile.placement.projects import Projects
from domicile.placement.records import ClassRow, GateRow, ObjectKey, ProjectRow, RegionRow, encode
from domicile.placement.regions import Regions
from domicile.placement.store import Committed, Delete, Put, StoreUnavailable

pytestmark = pytest.mark.anyio

KEY = ObjectKey("acme", "Auction", "x")


@pytest.fixture
def gates(store: Any, keys: Keys, clock: Any) -> Gates:
    return Gates(store, keys, clock.sleep)


@pytest.fixture
def regions(store: Any, keys: Keys, clock: Any) -> Regions:
    regions = Regions(store, keys.control, clock.sleep)
    regions.remember({"r": RegionRow("r"), "mars": RegionRow("mars")}, {})
    return regions


@pytest.fixture
def projects(store: Any, gates: Gates, regions: Regions, clock: Any) -> Projects:
    return Projects(store, gates, regions, clock.wall_ms, clock.sleep)


@pytest.fixture
def pins(store: Any, keys: Keys, gates: Gates, regions: Regions, clock: Any) -> Pins:
    return Pins(store, keys, gates, regions, clock.sleep)


@pytest.fixture
async def following(gates: Gates, clock: Any) -> AsyncIterator[Gates]:
    task = asyncio.ensure_future(gates.followed.run())
    await gates.followed.loaded.wait()
    yield gates
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def test_golden_rows() -> None:
    """Gates, policies and classes are stored: their JSON, byte for byte."""
    assert encode(GateRow(True, 3)) == b'{"open":true,"term":3,"to":null}'
    assert encode(ProjectRow("r", 1, "wait", 9)) == b'{"region":"r","term":1,"on_incident":"wait","created_ms":9}'
    assert encode(ClassRow("r", 1)) == b'{"pin":"r","term":1}'


async def test_a_home_that_can_be_read_is_taken_by_nobody_else(
    store: Any, keys: Keys, gates: Gates, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a region that has not registered yet, whoever reads the policy first would have stood in for it."""
    theirs, placed = Regions(store, keys.control, clock.sleep), []
    write = store.write

    async def and_then_read(*args: Any) -> Any:
        outcome = await write(*args)
        if not placed and keys.control.project("acme") in await store.read([keys.control.project("acme")]):
            placed.append("")
            placed.append(await theirs.place(keys.region, "mars"))
        return outcome

    monkeypatch.setattr(store, "write", and_then_read)
    projects = Projects(store, gates, Regions(store, keys.control, clock.sleep), clock.wall_ms, clock.sleep)
    await projects.create("acme")
    assert placed == ["", keys.region]


async def test_the_most_specific_gate_decides(gates: Gates, keys: Keys) -> None:
    """An object's before its class's before its project's; none at all is closed."""
    assert not (await gates.read(KEY)).open
    await gates.create(keys.gate_project("acme"), GateRow(True, 1))
    assert (await gates.read(KEY)).open
    await gates.create(keys.gate_class("acme", "Auction"), GateRow(False, 2, "mars"))
    assert (await gates.read(KEY)).gate == GateRow(False, 2, "mars")
    assert (await gates.read(ObjectKey("acme", "Other", "x"))).open
    await gates.create(keys.gate_object(KEY.id), GateRow(True, 3))
    assert (await gates.read(KEY)).gate == GateRow(True, 3)
    assert not (await gates.read(ObjectKey("acme", "Auction", "y"))).open


async def test_creating_a_gate_again_changes_nothing(gates: Gates, keys: Keys) -> None:
    """The one that stands is given back: a late creation never reopens a gate that was closed."""
    key = keys.gate_project("acme")
    first = await gates.create(key, GateRow(True, 1))
    assert await gates.change(key, first.version, GateRow(False, 1, "mars"))
    assert not await gates.change(key, first.version, GateRow(True, 2))
    assert (await gates.create(key, GateRow(True, 1))).row == GateRow(False, 1, "mars")


async def test_watched_gates_follow_the_store(following: Gates, store: Any, keys: Keys, clock: Any) -> None:
    """Changes come without asking, are told once, and the last whole table outlasts the store's silence."""
    told: list[tuple[str, bool, bool]] = []
    following.followed.changed = lambda key, before, after: told.append((key, before is not None, after is not None))
    key = keys.gate_project("acme")
    seen = await following.create(key, GateRow(True, 1))
    await clock.advance(0)
    assert following.seen(KEY) == await following.read(KEY)
    await following.change(key, seen.version, GateRow(False, 1))
    await clock.advance(0)
    assert not following.seen(KEY).open
    await store.write([], [Delete(key)])
    await clock.advance(0)
    assert following.seen(KEY).gate is None
    assert told == [(key, False, True), (key, True, True), (key, True, False)]


async def test_a_table_that_missed_the_past_is_read_anew(keys: Keys, clock: Any) -> None:
    """After a Resync the differences are told, no more, and the table is right."""
    from domicile.placement.embedded import EmbeddedStore

    store = EmbeddedStore(":memory:", clock.monotonic, inline=True, changes_max=8)
    gates = Followed(store, keys.gates, GateRow, clock.sleep)
    told: list[str] = []
    gates.changed = lambda key, before, after: told.append(key.removeprefix(keys.gates))
    for name in ("same", "changed", "removed"):
        await store.write([], [Put(keys.gates + name, encode(GateRow(True, 1)))])
    following = asyncio.ensure_future(gates.run())
    await gates.loaded.wait()
    assert sorted(told) == ["changed", "removed", "same"]
    told.clear()
    await store.write([], [Put(keys.gates + "changed", encode(GateRow(False, 2))), Delete(keys.gates + "removed")])
    await store.write([], [Put(keys.gates + "new", encode(GateRow(True, 1)))])
    for n in range(20):
        await store.write([], [Put(f"/elsewhere/{n}", b"")])
    await clock.advance(0)
    assert sorted(told) == ["changed", "new", "removed"]
    assert {key: seen.row.term for key, seen in gates.rows.items()} == {
        keys.gates + "same": 1,
        keys.gates + "changed": 2,
        keys.gates + "new": 1,
    }
    await store.close()
    await following


async def test_creating_a_project_writes_policy_and_opens_its_gate(
    projects: Projects, gates: Gates, clock: Any
) -> None:
    """Policy in control, then the gate in the home with term 1; again it changes nothing."""
    row = await projects.create("acme", on_incident="wait")
    assert row == ProjectRow("r", 1, "wait", clock.wall_ms())
    assert (await gates.read(KEY)).gate == GateRow(True, 1)
    clock.jump(5)
    assert await projects.create("acme", "mars", "serve") == row
    assert await projects.get("acme") == row
    assert await projects.list() == {"acme": row}


async def test_a_project_is_created_in_full_by_doing_it_again(
    projects: Projects, gates: Gates, store: Any, clock: Any, keys: Keys
) -> None:
    """Stopped between policy and gate: the second time opens the gate, `ensure` too."""
    await store.write([], [Put(keys.control.project("acme"), encode(ProjectRow("r", 4)))])
    assert await projects.ensure("acme") == ProjectRow("r", 4)
    assert (await gates.read(KEY)).gate == GateRow(True, 4)
    writes = store.writes
    await projects.ensure("acme")
    assert store.writes == writes


async def test_a_project_at_home_elsewhere_gets_no_gate_here(projects: Projects, gates: Gates) -> None:
    """Only the home's region opens the gate; two gates open would be two homes."""
    assert (await projects.create("acme", "mars")).region == "mars"
    await projects.create("acme", "r")
    assert (await gates.read(KEY)).gate is None


async def test_bad_names_and_policies_are_refused(projects: Projects) -> None:
    """Nothing is written for a name that is none."""
    for project, region in (("Acme", None), ("control", None), ("acme", "control"), ("acme", "a/b")):
        with pytest.raises(BadName):
            await projects.create(project, region)
    with pytest.raises(BadRequest):
        await projects.create("acme", on_incident="hope")
    assert await projects.list() == {}
    with pytest.raises(NoSuchProject):
        await projects.get("acme")


async def test_a_class_is_registered_once_with_its_pin(
    projects: Projects, pins: Pins, gates: Gates, keys: Keys
) -> None:
    """Pinned here it has a gate of its own; pinned elsewhere none here; another pin is refused by name."""
    await projects.create("acme")
    assert await pins.register("acme", "Auction", "r") == ClassRow("r", 1)
    assert await pins.register("acme", "Auction", "r") == ClassRow("r", 1)
    assert (await gates.get(keys.gate_class("acme", "Auction"))) is not None
    assert await pins.register("acme", "Away", "mars") == ClassRow("mars", 1)
    assert await pins.register("acme", "Free", None) == ClassRow(None, 1)
    assert await gates.get(keys.gate_class("acme", "Away")) is None
    assert await gates.get(keys.gate_class("acme", "Free")) is None
    with pytest.raises(NotServing, match=r"Auction.*acme.*pinned to r, .*to mars.*repin"):
        await pins.register("acme", "Auction", "mars")
    with pytest.raises(NoSuchProject):
        await pins.register("nobody", "Auction", None)


async def test_a_class_is_born_with_the_term_of_its_write(
    projects: Projects, pins: Pins, store: Any, keys: Keys
) -> None:
    """A policy that takes a new term while the class is being registered is read again."""
    await projects.create("acme")

    async def new_term() -> None:
        await store.write([], [Put(keys.control.project("acme"), encode(ProjectRow("r", 7)))])

    store.before_write = new_term
    assert await pins.register("acme", "Auction", "r") == ClassRow("r", 7)


class Away:
    """A control store that does not answer."""

    def __getattr__(self, name: str) -> Any:
        async def refuse(*args: Any, **options: Any) -> Any:
            raise StoreUnavailable("away")

        return refuse


async def test_with_control_away_the_last_policy_seen_stays(
    keys: Keys, following: Gates, regions: Regions, clock: Any
) -> None:
    """Known by its policy, or by its gate standing here; otherwise `not_serving`, never `no_such_project`.

    A class that was ever registered is born on, and one that never was is not; no gate opens by a row remembered.
    """
    pins = Pins(Away(), keys, following, regions, clock.sleep)  # type: ignore[arg-type]
    pins.remember({"seen": {"Pinned": ClassRow("r", 3), "Free": ClassRow(None, 3)}})
    assert await pins.register("seen", "Free", None) == ClassRow(None, 3)
    with pytest.raises(NotServing):
        await pins.register("seen", "Pinned", "r")
    await following.create(keys.gate_class("seen", "Pinned"), GateRow(True, 3))
    await clock.advance(0)
    assert await pins.register("seen", "Pinned", "r") == ClassRow("r", 3)
    projects = Projects(Away(), following, regions, clock.wall_ms, clock.sleep)  # type: ignore[arg-type]
    projects.remember({"seen": ProjectRow("mars", 3, "wait")})
    assert await projects.get("seen") == ProjectRow("mars", 3, "wait")
    await following.create(keys.gate_project("acme"), GateRow(True, 5))
    await following.create(keys.gate_project("moved"), GateRow(False, 6, "mars"))
    await clock.advance(0)
    assert (await projects.get("acme")).region == "r"
    assert (await projects.get("moved")).region == "mars"
    for attempt in (
        projects.get("unknown"),
        projects.create("new"),
        projects.list(),
        pins.register("acme", "A", None),
    ):
        with pytest.raises(NotServing):
            await attempt


async def test_policies_are_followed(projects: Projects, pins: Pins, store: Any, keys: Keys, clock: Any) -> None:
    """A project that moved is known to have moved, and class rows are not taken for policies."""
    task = asyncio.ensure_future(projects.followed.run())
    await projects.create("acme")
    await pins.register("acme", "Auction", None)
    outcome = await store.write([], [Put(keys.control.project("acme"), encode(ProjectRow("mars", 2)))])
    assert isinstance(outcome, Committed)
    await clock.advance(0)
    assert projects.known("acme") == ProjectRow("mars", 2)
    assert list(projects.followed.rows) == [keys.control.project("acme")]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_events_older_than_the_table_are_not_applied_again(keys: Keys, clock: Any) -> None:
    """What changed between a Resync and the reading anew is in the table already, and not told twice."""
    from domicile.placement.embedded import EmbeddedStore

    class Busy(EmbeddedStore):
        terms = 0

        async def scan(self, *args: Any, **options: Any) -> Any:
            for _ in range(2):
                self.terms += 1
                await self.write([], [Put(keys.gate_project("acme"), encode(GateRow(True, self.terms)))])
            return await super().scan(*args, **options)

    store = Busy(":memory:", clock.monotonic, inline=True, changes_max=8)
    gates = Followed(store, keys.gates, GateRow, clock.sleep)
    told: list[int] = []
    gates.changed = lambda key, before, after: told.append(after.row.term if after else 0)
    following = asyncio.ensure_future(gates.run())
    await gates.loaded.wait()
    for n in range(20):
        await store.write([], [Put(f"/elsewhere/{n}", b"")])
    await clock.advance(0)
    assert told == [2, 4]
    await store.close()
    await following
