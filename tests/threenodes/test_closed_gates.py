"""What a closed gate does to what is awake, and what a move asks of nodes (PROTOCOLS section 10)."""

from __future__ import annotations

import asyncio
import threading

import msgspec
import pytest

from domicile import Object
from domicile.errors import Moving, NotHome
from domicile.node.control.messages import DrainObject, DrainProject, Landed, ProjectLeft, SettleObject
from domicile.placement.records import GateRow, Held, ObjectKey, Released

PROJECT = "demo"


class Ledger(Object):
    go_on = threading.Event()  # for those that are slow

    def init(self):
        self.sql.exec("CREATE TABLE l (n INTEGER NOT NULL)")
        self.sql.exec("INSERT INTO l VALUES (0)")

    def add(self) -> int:
        return self.sql.one("UPDATE l SET n = n + 1 RETURNING n")["n"]

    async def add_slowly(self) -> int:
        while not self.go_on.is_set():
            await asyncio.sleep(0.01)
        return self.add()


async def gate(cluster, *, is_open: bool) -> None:
    """As a move does it: conditioned on the version read."""
    gates = cluster.nodes[0].node._gates
    key = gates.keys.gate_project(PROJECT)
    seen = await gates.get(key)
    term = seen.row.term + is_open
    assert await gates.change(key, seen.version, GateRow(open=is_open, term=term))


async def lease(cluster, name: str):
    return (await cluster.nodes[0].node.leases.read(ObjectKey(PROJECT, "Ledger", name).id)).row


async def ask(one, method: str, body: msgspec.Struct, kind: type):
    return msgspec.msgpack.decode(await one.node.handler.ask(method, msgspec.msgpack.encode(body)), type=kind)


def test_a_closed_gate_ends_residencies_well(cluster):
    """What runs finishes and is answered; what waits and what comes gets `moving`, not run; the row is a release."""

    async def scenario(cluster):
        await cluster.nodes[0].call("Ledger", "a", "add")
        home = cluster.home("Ledger", "a")
        Ledger.go_on.clear()
        running = asyncio.create_task(home.call("Ledger", "a", "add_slowly"))
        residency = home.residency("Ledger", "a")
        await cluster.until(lambda: not residency.mailbox.idle and not residency.mailbox.waiting, "it runs")
        waiting = asyncio.create_task(home.call("Ledger", "a", "add"))
        await cluster.until(lambda: residency.mailbox.waiting == 1, "one waits")
        await gate(cluster, is_open=False)
        with pytest.raises(Moving) as refused:
            await waiting
        assert (refused.value.outcome, refused.value.retry_after) == ("not_run", 1.0)
        with pytest.raises(Moving):
            await home.call("Ledger", "a", "add")
        Ledger.go_on.set()
        assert await running == 2
        await cluster.until(lambda: home.residency("Ledger", "a") is None, "it was released")
        assert isinstance((await lease(cluster, "a")).state, Released)
        for one in cluster.nodes:
            with pytest.raises(Moving):
                await one.call("Ledger", "a", "add")
        await gate(cluster, is_open=True)
        assert await cluster.nodes[1].call("Ledger", "a", "add") == 3

    cluster(scenario, Ledger)


def test_the_moves_question_reads_the_gates_anew(cluster):
    """A node whose watch is cut serves on, and ends what is behind closed gates when it is asked."""

    async def scenario(cluster):
        one = cluster.nodes[0]
        await one.call("Ledger", "a", "add")
        home = cluster.home("Ledger", "a")
        watched = home.node._gates.followed
        watched._apply = lambda event: None  # the watch is cut
        await gate(cluster, is_open=False)
        assert await home.call("Ledger", "a", "add") == 2
        assert await ask(home, "drain-project", DrainProject(PROJECT), ProjectLeft) == ProjectLeft(0, 1)
        assert isinstance((await lease(cluster, "a")).state, Released)
        with pytest.raises(Moving):
            await home.call("Ledger", "a", "add")

    cluster(scenario, Ledger)


def test_a_refused_claim_ends_what_the_watch_did_not(cluster):
    """A claim that conflicts with a closed gate tells the node, whose other residents of the project end too."""

    async def scenario(cluster):
        await cluster.nodes[0].call("Ledger", "a", "add")
        home = cluster.home("Ledger", "a")
        home.node._gates.followed._apply = lambda event: None
        await gate(cluster, is_open=False)
        with pytest.raises(Moving):
            await home.call("Ledger", "another", "add")
        await cluster.until(lambda: home.residency("Ledger", "a") is None, "the other one was released")
        assert isinstance((await lease(cluster, "a")).state, Released)

    cluster(scenario, Ledger)


def test_a_drain_claim_lands_what_a_dead_owner_left(cluster):
    """Behind a closed gate the row of a dead node is claimed, landed, released; nobody is served meanwhile."""

    async def scenario(cluster):
        for _ in range(3):
            await cluster.nodes[0].call("Ledger", "a", "add")
        home = cluster.home("Ledger", "a")
        for one in cluster.nodes:
            one.node._gates.followed._apply = lambda event: None
        await gate(cluster, is_open=False)
        await home.crash()
        await cluster.until(lambda: len(cluster.nodes[0].node._nodes.all()) == 2, "its row is gone")
        assert isinstance((await lease(cluster, "a")).state, Held)
        other = cluster.nodes[0]
        assert await ask(other, "drain-object", DrainObject(PROJECT, "Ledger", "a"), Landed) == Landed()
        released = (await lease(cluster, "a")).state
        assert isinstance(released, Released)
        assert released.tag is not None
        assert await ask(other, "drain-object", DrainObject(PROJECT, "Ledger", "a"), Landed) == Landed()
        assert (await lease(cluster, "a")).state == released, "asked again it changes nothing"
        await gate(cluster, is_open=True)
        assert await other.call("Ledger", "a", "add") == 4

    cluster(scenario, Ledger)


def test_a_drain_stops_at_an_incident(cluster):
    """Without a read quorum a drain claim records nothing and says so; told to serve, it records and lands."""

    async def scenario(cluster):
        await cluster.nodes[0].call("Ledger", "a", "add")
        home = cluster.home("Ledger", "a")
        members = set(home.residency("Ledger", "a").leg.manifest.members)
        keepers = [one for one in cluster.others(home) if one.node._copy_id() in members]
        rest = next(one for one in cluster.nodes if one is not home and one is not keepers[0])
        await gate(cluster, is_open=True)
        for one in cluster.nodes:
            one.node._gates.followed._apply = lambda event: None
        await gate(cluster, is_open=False)
        await keepers[0].crash()
        await home.crash()
        await cluster.until(lambda: len(rest.node._nodes.all()) == 1, "their rows are gone")
        landed = await ask(rest, "drain-object", DrainObject(PROJECT, "Ledger", "a"), Landed)
        assert "members answered" in landed.incident
        assert await rest.node.incidents() == []
        assert await ask(rest, "drain-object", DrainObject(PROJECT, "Ledger", "a", True), Landed) == Landed()
        assert len(await rest.node.incidents()) == 1
        assert isinstance((await lease(cluster, "a")).state, Released)

    cluster(scenario, Ledger, object_replicas=2, object_quorum=1, object_takeover_wait_ms=300, on_incident="serve")


def test_settling_releases_and_holds_callers_off(cluster):
    """For MoveObject: the row is a release, and for a moment calls there get `moving`; then it wakes as ever."""

    async def scenario(cluster):
        await cluster.nodes[0].call("Ledger", "a", "add")
        home = cluster.home("Ledger", "a")
        assert await ask(home, "settle-object", SettleObject(PROJECT, "Ledger", "a"), Landed) == Landed()
        assert isinstance((await lease(cluster, "a")).state, Released)
        with pytest.raises(Moving, match="the object is moving"):
            await home.call("Ledger", "a", "add")

    cluster(scenario, Ledger)


def test_a_drain_gets_past_a_node_that_is_gone_without_a_word(cluster):
    """Its row stands yet, and nobody calls it: whoever is asked to land its objects looks at it, and it is evicted."""

    async def scenario(cluster):
        await cluster.nodes[0].call("Ledger", "a", "add")
        home = cluster.home("Ledger", "a")
        home.node._residents.send_away = lambda residency, refusal: None
        await gate(cluster, is_open=False)
        gone = home.node._heartbeat

        async def without_a_word(why: str) -> bool:
            await gone.stop()
            return False

        gone.leave = without_a_word
        await home.crash()
        other = cluster.nodes[0]
        with pytest.raises(NotHome):
            await ask(other, "drain-object", DrainObject(PROJECT, "Ledger", "a"), Landed)
        await cluster.until(lambda: len(other.node._nodes.all()) == 2, "it was evicted")
        assert await ask(other, "drain-object", DrainObject(PROJECT, "Ledger", "a"), Landed) == Landed()
        assert isinstance((await lease(cluster, "a")).state, Released)

    cluster(
        scenario,
        Ledger,
        node_heartbeat_secs=1.0,
        node_renew_timeout_secs=1.0,
        node_admission_secs=4.0,
        node_fence_margin_secs=1.0,
        node_ttl_secs=30.0,
    )
