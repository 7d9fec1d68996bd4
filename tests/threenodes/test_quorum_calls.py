"""Three nodes: answered means on other machines."""

from __future__ import annotations

import asyncio

import domicile
from domicile import Object


class Counter(Object):
    def init(self):
        self.sql.exec("CREATE TABLE c (n INTEGER NOT NULL)")
        self.sql.exec("INSERT INTO c VALUES (0)")

    def increment(self) -> int:
        return self.sql.one("UPDATE c SET n = n + 1 RETURNING n")["n"]

    @domicile.read
    def read(self) -> int:
        return self.sql.one("SELECT n FROM c")["n"]

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
