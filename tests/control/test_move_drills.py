"""MoveProject in bad hours: load, dead owners, deaf nodes (PROTOCOLS section 10)."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from control_plane import settled
from counting import Ledger
from killed_workers import STRIKE_SECS, Killer, intercepted
from moves import PROJECT, REGIONS, begin, gate

from domicile import Region
from domicile.errors import DomicileError
from domicile.node.errors import BlobUnavailable
from domicile.placement.records import Held, ObjectKey

OBJECTS = int(os.environ.get("DOMICILE_MOVED_OBJECTS", "40"))
WRITES_PER_SEC = 50


class Pinned(Ledger):
    placement = Region("a")


class Load:
    """Writes through every node of every region, one after the other to each object; refused ones are sent again."""

    def __init__(self, plane: Any, names: list[str]) -> None:
        self._nodes = [one for group in plane.regions.values() for one in group.nodes]
        self._names = names
        self._over = False
        self.answered = dict.fromkeys(names, 0)
        self.refused: list[DomicileError] = []
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        at, calls = 0, set()
        while not self._over:
            calls.add(asyncio.create_task(self._write(at)))
            at += 1
            await asyncio.sleep(1 / WRITES_PER_SEC)
        await asyncio.gather(*calls)

    async def _write(self, at: int) -> None:
        name, node = self._names[at % len(self._names)], self._nodes[at % len(self._nodes)]
        while True:
            try:
                await node.call("Ledger", name, "add", key=f"w{at}")
                break
            except DomicileError as error:
                self.refused.append(error)
                await asyncio.sleep(error.retry_after or 0.1)
        self.answered[name] += 1

    async def end(self) -> None:
        self._over = True
        await self._task


def test_every_answered_write_is_there_after_a_move_under_load(control: Any) -> None:
    """Under 50 writes a second every answered write is in b, none is there twice, callers saw `moving` alone, and the
    time without service is stated and under 5 s. The last pass copied what had changed."""

    async def scenario(plane: Any) -> None:
        a, b = plane.regions["a"].nodes[0], plane.regions["b"].nodes[0]
        names = [f"o{at}" for at in range(OBJECTS)]
        for at in range(0, OBJECTS, 20):
            await asyncio.gather(*(a.call("Ledger", name, "fill", 1_000_000) for name in names[at : at + 20]))
        await a.call("Ledger", "bell", "ring", 4_000)
        load = Load(plane, names)
        await plane.until(lambda: sum(load.answered.values()) > 20, "writes are answered")
        moved = await (await begin(plane, "b")).result()
        await plane.a_while(0.5)
        await load.end()
        assert moved["moved"]
        assert {error.code for error in load.refused} <= {"moving"}, {e.code: e.detail for e in load.refused}
        assert all(error.retry_after for error in load.refused)
        assert 0 < moved["unserved_secs"] < 5
        assert moved["last_pass_bytes"] < moved["copied_bytes"] / 4
        counts = await asyncio.gather(*(b.call("Ledger", name, "look") for name in names))
        assert counts == list(load.answered.values())
        await plane.until(lambda: settled_look(b, "bell", 1), "the alarm fired in b")

    control(scenario, Ledger, regions=REGIONS)


async def settled_look(one: Any, name: str, count: int) -> bool:
    return await one.call("Ledger", name, "look") == count


def test_a_project_is_called_through_both_regions_while_it_is_copied(control: Any) -> None:
    """However long a pass takes: nobody is told that it is moving before the old gate closes."""

    async def scenario(plane: Any) -> None:
        a, b = plane.regions["a"].nodes[0], plane.regions["b"].nodes[0]
        assert await a.call("Ledger", "x", "add") == 1
        killer = Killer(("move-copy",))
        await intercepted(plane, killer)
        handle = await begin(plane, "b")
        await asyncio.wait_for(killer.struck.wait(), STRIKE_SECS)
        seen = b.node._gates.followed.rows
        key = (await plane.world.region("b")).keys.gate_project(PROJECT)
        await plane.until(lambda: key in seen, "b has seen its gate, which is closed")
        assert await b.call("Ledger", "x", "add") == 2
        assert await b.call("Ledger", "new", "add") == 1
        assert await a.call("Ledger", "x", "add") == 3
        await plane.stop_worker()
        await plane.start_worker()
        assert (await handle.result())["moved"]
        assert await settled(a.call, "Ledger", "x", "add") == 4
        assert await b.call("Ledger", "new", "add") == 2

    control(scenario, Ledger, regions=REGIONS)


def test_answers_of_owners_that_died_are_in_the_new_region(control: Any) -> None:
    """Owners killed right after a quorum had answered, the bucket cut: the drain lands what the members have."""

    async def scenario(plane: Any) -> None:
        group = plane.regions["a"]
        names = [f"o{at}" for at in range(20)]
        for name in names:
            await group.nodes[0].call("Ledger", name, "add")
        put = group.blobs.put

        async def cut(*args: Any) -> str:
            raise BlobUnavailable("the bucket is cut off")

        group.blobs.put = cut
        answered = [await group.nodes[0].call("Ledger", name, "add") for name in names]
        await group.nodes[0].crash()
        group.blobs.put = put
        world = await plane.world.region("a")
        held = [await world.leases.read(ObjectKey(PROJECT, "Ledger", name).id) for name in names]
        assert any(isinstance(seen.row.state, Held) for seen in held)
        moved = await (await begin(plane, "b")).result()
        assert moved["moved"]
        assert moved["landed"] > 0
        b = plane.regions["b"].nodes[0]
        assert [await b.call("Ledger", name, "look") for name in names] == answered

    control(scenario, Ledger, regions=REGIONS, nodes=3)


def test_a_node_that_hears_nothing_claims_nothing(control: Any) -> None:
    """A node whose watches are cut for the whole move and after it answers nothing of the project itself after its last
    release, whatever it remembers; and a class that is pinned to a serves there all along."""

    async def scenario(plane: Any) -> None:
        deaf, b = plane.regions["a"].nodes[0], plane.regions["b"].nodes[0]
        assert await deaf.call("Ledger", "x", "add") == 1
        assert await deaf.call("Pinned", "p", "add") == 1
        for followed in (deaf.node._gates.followed, deaf.node._projects.followed):
            followed._apply = lambda event: None
        pinned = asyncio.create_task(keep_adding(plane, deaf, "p"))
        assert (await (await begin(plane, "b")).result())["moved"]
        pinned.cancel()
        assert await b.call("Ledger", "x", "add") == 2
        for name, count in (("x", 3), ("never seen", 1)):  # its claims are refused by a gate that names b
            assert await settled(deaf.call, "Ledger", name, "add") == count
            assert not deaf.home_of("Ledger", name)
            assert b.home_of("Ledger", name)
        assert deaf.home_of("Pinned", "p"), "the pinned class stays"
        assert await deaf.call("Pinned", "p", "look") > 1

    async def keep_adding(plane: Any, one: Any, name: str) -> None:
        while True:
            await one.call("Pinned", name, "add")
            await plane.a_while(0.02)

    control(scenario, Ledger, Pinned, regions=REGIONS)


def test_an_incident_stops_a_move_and_asks(control: Any) -> None:
    """Two of three copies are gone: the move waits with the gate closed and names the object; told to go on, it moves
    what is there, and the incident is recorded in both regions."""

    async def scenario(plane: Any) -> None:
        group = plane.regions["a"]
        await group.nodes[0].call("Ledger", "x", "add")
        home = group.home("Ledger", "x")
        member = next(one for one in group.others(home) if one.node._copy_id() in members(home))
        rest = next(one for one in group.nodes if one not in (home, member))
        await member.crash()
        await home.crash()
        await group.until(lambda: len(rest.node._nodes.all()) == 1, "their rows are gone")
        handle = await begin(plane, "b")
        await plane.until(lambda: asks(handle), "it asks")
        assert not (await gate(plane, "a")).open
        await handle.signal("go_on")
        assert (await handle.result())["moved"]
        assert len(await rest.node.incidents()) == 1
        b = plane.regions["b"].nodes[0]
        assert len(await b.node.incidents()) == 1
        assert await b.call("Ledger", "x", "look") == 1

    def members(home: Any) -> set[str]:
        return set(home.residency("Ledger", "x").leg.manifest.members)

    async def asks(handle: Any) -> bool:
        incidents = (await handle.query("progress"))["incidents"]
        return bool(incidents) and "Ledger/x" in incidents[0]

    control(scenario, Ledger, regions=REGIONS, nodes=3, object_quorum=1, object_takeover_wait_ms=300)
