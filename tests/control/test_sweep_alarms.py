"""SweepAlarms: due rows wake their objects on live nodes, each once a run (PROTOCOLS section 9)."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from domicile import Object
from domicile.errors import DomicileError
from domicile.placement.records import GateRow, ObjectKey
from domicile.placement.rendezvous import Candidate, rank
from domicile.placement.store import Committed, Put
from domicile.workflows.queues import CONTROL_QUEUE

HOUR_MS = 3_600_000
# `make soak` and the figures of docs/control.md take 10,000.
MANY = int(os.environ.get("DOMICILE_SWEPT_ALARMS", "200"))
QUIET = {"temporal": "127.0.0.1:1", "object_sweep_secs": 86_400}  # nodes leave everything to the schedule
FAST = {"node_heartbeat_secs": 0.5, "node_renew_timeout_secs": 0.3, "node_admission_secs": 2.0, "node_ttl_secs": 60}
FAST |= {"node_fence_margin_secs": 1.0}


class Bell(Object):
    """Counts how often its alarm rang."""

    def arm(self, when: str) -> None:
        self.set_alarm(when)

    def on_alarm(self) -> None:
        self.kv.put("rung", self.rung() + 1)

    def rung(self) -> int:
        return self.kv.get("rung", 0)


async def begin(plane: Any, region: str = "local", **more: Any) -> Any:
    return await plane.client.start_workflow(
        "SweepAlarms", {"region": region, **more}, id=f"sweep-{region}", task_queue=CONTROL_QUEUE
    )


async def sweep(plane: Any, **more: Any) -> Any:
    return await (await begin(plane, **more)).result()


async def ridden(one: Any, name: str, method: str, *args: Any) -> Any:
    """As a client does: what may be tried again is."""
    while True:
        try:
            return await one.call("Bell", name, method, *args, key=f"{name}-{method}")
        except DomicileError as error:
            if not error.retryable:
                raise


async def armed_and_left(group: Any, count: int, new: tuple[str, ...] = ("later",)) -> list[str]:
    """Bells with an alarm in an hour, asleep, of nodes that are gone; new nodes serve, and it is two hours later."""
    names = [f"b{at}" for at in range(count)]
    first = list(group.nodes)
    for at in range(0, count, 100):
        await asyncio.gather(*(ridden(first[0], name, "arm", "1h") for name in names[at : at + 100]))
    for name in new:
        await group.add(name)
    for one in first:  # asleep before it leaves: one that is awake is handed over, and awake at its next home
        residents = one.node._residents
        await asyncio.gather(*residents.sleep_soon([bell for bell in residents.awake() if bell.serving]))
        assert await residents.settled(60) == 0
        await group.remove(one)
    await group.until(lambda: _known(group), "every node knows who is left")
    assert not any(one.home_of("Bell", name) for one in group.nodes for name in names)
    group.watch.ahead_ms = 2 * HOUR_MS
    return names


def _known(group: Any) -> bool:
    ids = {one.node.node_id for one in group.nodes}
    return all({row.node_id for row in one.node._nodes.all()} == ids for one in group.nodes)


async def rung(group: Any, names: list[str]) -> list[int]:
    found: list[int] = []
    for at in range(0, len(names), 100):
        found += await asyncio.gather(*(ridden(group.nodes[0], name, "rung") for name in names[at : at + 100]))
    return found


def test_a_sweep_wakes_what_dead_nodes_left(control: Any) -> None:
    """Every alarm whose node is gone rings once, in passes whose history does not grow with what they wake."""

    async def scenario(plane: Any) -> None:
        group = plane.regions["local"]
        names = await armed_and_left(group, MANY)
        handle = await begin(plane, rows=50 if MANY < 1000 else 256)
        swept = await handle.result()
        assert (swept["rows"], swept["woken"] + swept["left"]) == (MANY, MANY)
        events = await plane.history_events(handle)
        assert events < 10 + 7 * (MANY // (50 if MANY < 1000 else 256) + 1), events
        while (await sweep(plane))["rows"]:  # those that a busy machine had not woken in time, if any
            pass
        assert await rung(group, names) == [1] * MANY

    control(scenario, Bell, **QUIET)


def test_a_sweep_goes_on_with_the_next_worker(control: Any, temporal: Any) -> None:
    """The worker is killed in the middle of a sweep, then Temporal: what is left is swept, and nothing rings twice.

    Field case 121: the next worker keeps nothing in memory, so it takes each decision by replaying the history.
    """

    async def scenario(plane: Any) -> None:
        group = plane.regions["local"]
        names = await armed_and_left(group, 60)
        asked = 0
        held = asyncio.Event()

        async def hang_later(method: str) -> None:
            nonlocal asked
            asked += 1
            if asked > 2:
                held.set()
                await asyncio.Event().wait()

        plane.before_ask = hang_later
        handle = await begin(plane, rows=20)
        await held.wait()
        await plane.stop_worker()
        temporal.restart()
        plane.before_ask = None
        await plane.start_worker(cached=0)
        swept = await handle.result()
        assert (swept["rows"], swept["woken"]) == (60, 60)
        assert await rung(group, names) == [1] * 60

    control(scenario, Bell, **QUIET)


def test_a_row_whose_gate_is_closed_is_skipped(control: Any) -> None:
    """Nothing wakes while its project moves; the row stays for the sweep that comes after."""

    async def scenario(plane: Any) -> None:
        group = plane.regions["local"]
        names = await armed_and_left(group, 3)
        region = await plane.world.region("local")
        key = region.keys.gate_project("demo")
        gate = await region.gates.get(key)
        assert await region.gates.change(key, gate.version, GateRow(open=False, term=gate.row.term, to="b"))
        swept = await sweep(plane)
        assert swept == {"rows": 3, "woken": 0, "ghosts": 0, "skipped": 3, "left": 0}
        assert not group.nodes[0].node._residents.awake()
        closed = await region.gates.get(key)
        assert await region.gates.change(key, closed.version, GateRow(open=True, term=gate.row.term + 1))
        assert (await sweep(plane))["woken"] == 3
        assert await rung(group, names) == [1, 1, 1]

    control(scenario, Bell, **QUIET)


def test_a_wake_creates_no_object(control: Any) -> None:
    """The row of an object that is gone goes too, and nothing is born."""

    async def scenario(plane: Any) -> None:
        group = plane.regions["local"]
        (name,) = await armed_and_left(group, 1)
        key = ObjectKey("demo", "Bell", name)
        keys = (await plane.world.region("local")).keys
        row = (await group.store.scan(keys.alarms)).records[0]
        await group.nodes[0].node.delete(key, None, None)
        assert isinstance(await group.store.write([], [Put(row.key, row.value)]), Committed)
        swept = await sweep(plane)
        assert (swept["rows"], swept["ghosts"]) == (1, 1)
        assert not (await group.store.scan(keys.alarms)).records
        assert not (await group.store.scan(keys.instances("demo"))).records

    control(scenario, Bell, **QUIET)


def test_without_a_schedule_the_first_node_by_rank_takes_what_is_overdue(control: Any) -> None:
    """A sweep late, one node wakes it; the others leave it to that node for as long again."""

    async def scenario(plane: Any) -> None:
        group = plane.regions["local"]
        (name,) = await armed_and_left(group, 1, new=("one", "other"))
        key = ObjectKey("demo", "Bell", name)
        order = rank(key.id, [Candidate(one.node.node_id) for one in group.nodes])
        first, second = sorted(group.nodes, key=lambda one: one.node.node_id != order[0].id)
        group.watch.ahead_ms = HOUR_MS + 500_000  # half a sweep late
        await first.node._sweep.pass_over()
        assert not first.home_of("Bell", name)
        group.watch.ahead_ms = HOUR_MS + 1_500_000
        await second.node._sweep.pass_over()
        assert not second.home_of("Bell", name)
        await first.node._sweep.pass_over()
        assert first.home_of("Bell", name)
        assert await second.call("Bell", name, "rung") == 1

    control(scenario, Bell, worker=False, temporal="127.0.0.1:1", object_sweep_secs=1000)


def test_a_home_that_does_not_answer_is_looked_at(control: Any) -> None:
    """A machine that is gone without a word: the first sweep that asks it in vain has it evicted, the next one wakes
    what it was home to."""

    async def scenario(plane: Any) -> None:
        group = plane.regions["local"]
        await group.nodes[0].call("Bell", "a", "arm", "1h")
        home = group.home("Bell", "a")
        left = next(one for one in group.nodes if one is not home)
        await home.hood.close()
        await home.node._heartbeat.stop()  # its row stays, and no beat comes
        group.watch.ahead_ms = HOUR_MS + 1_000  # due, and not overdue by a sweep
        assert (await sweep(plane))["woken"] == 0
        await group.until(lambda: len(left.node._nodes.all()) == 1, "it is evicted")
        assert (await sweep(plane))["woken"] == 1
        assert left.home_of("Bell", "a")

    control(scenario, Bell, nodes=2, **QUIET, **FAST)


def test_with_temporal_away_nodes_sweep(control: Any) -> None:
    """An alarm whose home died rings all the same, by the nodes' own sweeps, where nobody else sweeps."""

    async def scenario(plane: Any) -> None:
        group = plane.regions["local"]
        await group.nodes[0].call("Bell", "a", "arm", "1s")
        await group.home("Bell", "a").crash()
        (left,) = group.nodes
        await group.until(lambda: left.home_of("Bell", "a"), "it was woken")
        assert await left.call("Bell", "a", "rung") == 1

    control(scenario, Bell, nodes=2, worker=False, temporal="127.0.0.1:1", object_sweep_secs=0.5)


def test_an_object_that_is_awake_is_told_at_its_home(control: Any) -> None:
    """A due row whose object is awake is no other node's: its home is asked, and nothing changes hands."""

    async def scenario(plane: Any) -> None:
        group = plane.regions["local"]
        await group.nodes[0].call("Bell", "a", "arm", "1h")
        home = group.home("Bell", "a")
        epoch = home.residency("Bell", "a").epoch
        group.watch.ahead_ms = 2 * HOUR_MS  # as after a suspension: its timer counts on
        swept = await sweep(plane)
        assert swept["woken"] == 1
        await plane.until(lambda: _rung_once(home), "it rang")
        assert home.residency("Bell", "a").epoch == epoch

    control(scenario, Bell, nodes=2, **QUIET)


async def _rung_once(home: Any) -> bool:
    return bool(await home.call("Bell", "a", "rung") == 1)
