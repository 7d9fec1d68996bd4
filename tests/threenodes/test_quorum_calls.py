"""Three nodes: answered means on other machines."""

from __future__ import annotations

import asyncio

import counting

from domicile.errors import DomicileError
from domicile.node import rotation
from domicile.placement.records import ObjectKey


class Counter(counting.Counter):
    def grow(self, size: int) -> int:
        self.sql.exec("CREATE TABLE IF NOT EXISTS b (x BLOB)")
        self.sql.exec("INSERT INTO b VALUES (randomblob(?))", size)
        return self.sql.one("SELECT count(*) AS n FROM b")["n"]


def test_increments_through_any_node_count_right(cluster):
    """Calls land anywhere and are forwarded one hop to the one home."""

    async def scenario(c):
        numbers = [await c.nodes[i % 3].call("Counter", "a", "increment") for i in range(30)]

        assert numbers == list(range(1, 31))
        assert sum(one.home_of("Counter", "a") for one in c.nodes) == 1
        home = c.home("Counter", "a")
        held = home.residency("Counter", "a").replicas.held()
        assert len(held) == 2

    cluster(scenario, Counter)


def test_a_quorum_answers_while_the_store_is_away(cluster):
    """With two members in step a write is answered by them, the store follows."""

    async def scenario(c):
        home = c.nodes[0]
        await home.call("Counter", "a", "increment")
        residency = home.residency("Counter", "a")
        await c.until(lambda: residency.replicas.hopeful, "both members are in step")
        await asyncio.gather(*(home.call("Counter", "a", "increment") for _ in range(20)))
        held = residency.replicas.held()

        assert all(mark >= residency.flights.mark for mark in list(held.values()))

    cluster(scenario, Counter)


def test_the_home_dies_and_nothing_is_lost(cluster):
    """Answered by a quorum, then the home is gone: the freshest copy is laid elsewhere, the count goes on."""

    async def scenario(c):
        home = c.nodes[0]
        for _ in range(10):
            await home.call("Counter", "a", "increment")
        await home.crash()
        rest = c.nodes

        assert await rest[0].call("Counter", "a", "increment", key="k") == 11
        assert await rest[1].call("Counter", "a", "read") == 11

    cluster(scenario, Counter, object_store_interval_ms=2000)


def test_rotations_reach_the_members(cluster):
    """A folded log is folded at the members too, and survives the home."""

    async def scenario(c):
        home = c.nodes[0]
        await home.call("Counter", "a", "increment")
        residency, rows = home.residency("Counter", "a"), 0
        while not residency.log.rotations:
            rows = await home.call("Counter", "a", "grow", 60_000)
        await c.until(lambda: residency.replicas.hopeful, "members are in step again")
        await home.call("Counter", "a", "increment")
        await home.crash()

        assert await c.nodes[1].call("Counter", "a", "grow", 10) == rows + 1
        assert await c.nodes[0].call("Counter", "a", "read") == 2

    cluster(scenario, Counter, object_wal_rotate_kb=256, object_store_interval_ms=50)


def test_what_members_and_homes_do_is_counted(cluster):
    """Flights to members, sync passes of their journals, reads at the home: each shows in the node's metrics."""

    async def scenario(c):
        home = c.nodes[0]
        for _ in range(3):
            await home.call("Counter", "a", "increment")
        assert await home.call("Counter", "a", "read") == 3
        residency = home.residency("Counter", "a")
        await c.until(lambda: residency.replicas.hopeful, "both members are in step")
        telemetry = home.node._host.telemetry
        before = telemetry.flights.of("replica", "landed").value
        syncs = [sum(one.node._host.telemetry.replica_sync_seconds.counts) for one in c.nodes[1:]]
        await home.call("Counter", "a", "increment")

        assert telemetry.reads.of("owner").value == 1
        assert telemetry.flights.of("replica", "landed").value == before + 1
        after = [sum(one.node._host.telemetry.replica_sync_seconds.counts) for one in c.nodes[1:]]
        assert all(now > then for now, then in zip(after, syncs, strict=True))

    cluster(scenario, Counter)


def test_a_rotation_does_not_wait_for_the_store_to_be_due(cluster, monkeypatch):
    """Members answer, so the store is in no hurry; a rotation that needs it is, and nobody stands still for long."""
    monkeypatch.setattr(rotation, "STANDSTILL_SECS", 12.0)

    async def scenario(c):
        home = c.nodes[0]
        await home.call("Counter", "a", "increment")
        residency = home.residency("Counter", "a")
        await c.until(lambda: residency.replicas.hopeful, "both members are in step")
        loop, longest = asyncio.get_running_loop(), 0.0
        while residency.log.rotations < 2:
            began = loop.time()
            await home.call("Counter", "a", "grow", 60_000)
            longest = max(longest, loop.time() - began)

        assert longest < 10, "no rotation waited until it gave up"

    cluster(scenario, Counter, object_wal_rotate_kb=256, object_store_interval_ms=60_000, object_store_lag_ms=120_000)


def test_a_read_anywhere_sees_every_write_answered_before_it_began(cluster):
    """Write at the home, read at each other node at once: never stale, and served by the copies there."""

    async def scenario(c):
        home = c.nodes[0]
        await home.call("Counter", "a", "increment")
        residency = home.residency("Counter", "a")
        await c.until(lambda: residency.replicas.hopeful, "both members are in step")
        for n in range(2, 60):
            assert await home.call("Counter", "a", "increment") == n
            assert await asyncio.gather(*(one.call("Counter", "a", "read") for one in c.nodes)) == [n] * 3

        served = [one.node._host.telemetry.reads.of("replica").value for one in c.nodes[1:]]
        assert all(count > 0 for count in served)

    cluster(scenario, Counter)


def test_deletion_reaches_everybody(cluster):
    """Deleted through another node: the copies go, the next life starts empty, also after the home dies."""

    async def scenario(c):
        home = c.nodes[0]
        for _ in range(5):
            await home.call("Counter", "a", "increment")
        await c.until(lambda: home.residency("Counter", "a").replicas.hopeful, "both members are in step")
        await c.nodes[1].node.delete(ObjectKey("demo", "Counter", "a"), None, "k")
        assert await c.nodes[2].call("Counter", "a", "increment") == 1
        home = c.home("Counter", "a")
        await home.crash()

        assert await c.nodes[0].call("Counter", "a", "increment") == 2

    cluster(scenario, Counter)


def test_a_node_that_leaves_sends_its_callers_on(cluster):
    """An orderly stop under load: no call fails otherwise than by retryable refusals, and every count stands."""

    async def scenario(c):
        leaver = c.nodes[0]
        for name in "abcdefgh":
            await leaver.call("Counter", name, "increment")
        numbers: dict[str, list[int]] = {name: [1] for name in "abcdefgh"}
        refusals: set[str] = set()
        stop = False

        async def caller(name):
            while not stop:
                try:
                    numbers[name].append(await c.nodes[-1].call("Counter", name, "increment"))
                except DomicileError as error:
                    refusals.add(error.outcome)
                    await asyncio.sleep(0.01)

        callers = [asyncio.create_task(caller(name)) for name in numbers]
        await c.until(lambda: all(len(seen) > 3 for seen in numbers.values()), "load runs")
        await leaver.stop()
        c.nodes.remove(leaver)
        after = {name: len(seen) for name, seen in numbers.items()}
        await c.until(lambda: all(len(seen) > after[name] + 3 for name, seen in numbers.items()), "it goes on")
        stop = True
        await asyncio.gather(*callers)

        assert all(seen == list(range(1, len(seen) + 1)) for seen in numbers.values())
        assert refusals <= {"not_run"}

    cluster(scenario, Counter)


def test_idle_copies_leave_stubs_and_the_object_comes_back(cluster):
    """A copy that the manifest covers leaves the disk once idle; a takeover afterwards has everything all the same."""

    async def scenario(c):
        home = c.nodes[0]
        for _ in range(5):
            await home.call("Counter", "a", "increment")
        object_id = ObjectKey("demo", "Counter", "a").id
        await c.until(lambda: not home.residency("Counter", "a").leg.behind, "the store has it all")
        await c.until(
            lambda: all(one.hood.replicas.copy(object_id) is None for one in c.nodes[1:]), "the copies are let go"
        )
        await home.crash()

        assert await c.nodes[0].call("Counter", "a", "increment") == 6
        assert await c.nodes[1].node.incidents() == []

    cluster(scenario, Counter, object_replica_idle_secs=0.5, object_store_interval_ms=100)
