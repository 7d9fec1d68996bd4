"""Operations over real processes, in bad hours: nodes lost with their alarms, answers that two lost replicas have, a
drain under load (PROTOCOLS sections 9 and 10)."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext

import pytest
from etcd_servers import until
from up_cluster import WAIT_SECS, UpCluster

from domicile import Client

SWEEP_SECS = 3.0
SLACK_SECS = 4.0  # for wakes, takeovers and polls; a machine that is busy needs more
SLACK_CALLS = 20
RESIDENTS = int(os.environ.get("DOMICILE_DRAINED_RESIDENTS", "100"))
NAMES = ("n1", "n2", "n3", "n4")
APP = """
import time
from domicile import Object

class Bell(Object):
    def arm(self, when: str) -> None:
        self.set_alarm(when)

    def on_alarm(self) -> None:
        self.kv.put("rung", [*self.rung(), time.time()])

    def rung(self) -> list[float]:
        return self.kv.get("rung", [])

class Ledger(Object):
    def init(self):
        self.sql.exec("CREATE TABLE entries(id INTEGER PRIMARY KEY, what TEXT)")

    def note(self, id: int, what: str) -> str:
        self.sql.exec("INSERT OR REPLACE INTO entries VALUES (?, ?)", id, what)
        return what

    def all(self) -> list[str]:
        return [row["what"] for row in self.sql.query("SELECT what FROM entries ORDER BY id")]

    def add(self) -> int:
        self.kv.put("n", self.kv.get("n", 0) + 1)
        return self.kv.get("n")
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpCluster]:
    folder = tmp_path_factory.mktemp("operations")
    running = UpCluster(folder, APP, "--nodes", "4", OBJECT_SWEEP_SECS=str(SWEEP_SECS), OBJECT_TAKEOVER_WAIT_MS="300")
    yield running
    running.end()


@pytest.mark.parametrize("temporal", ["there", "away"])
def test_alarms_of_a_lost_node_ring_within_two_sweeps(cluster: UpCluster, temporal: str) -> None:
    """Nobody calls them: each rings once, no later than OBJECT_SWEEP_SECS and one sweep after it is due and its home is
    known to be lost; with Temporal standing still too, by the nodes' own sweeps."""
    names = [f"{temporal}{at}" for at in range(5)]
    began = time.time()
    for name in names:
        cluster.call("n2", "Bell", name, "arm", "4s")
    due = time.time() + 4
    assert {cluster.named(cluster.described("n1", "Bell", name)["node"]) for name in names} == {"n2"}
    away = cluster.stopped(cluster.now()["temporal"]["pid"])
    meanwhile: AbstractContextManager[None] = away if temporal == "away" else nullcontext()
    with meanwhile:
        cluster.lose(["n2"])
        until(lambda: cluster.known("n1") == 3, WAIT_SECS, "it is evicted")
        late = max(due, time.time()) + SLACK_SECS
        asked = time.monotonic()
        cluster.call("n1", "Bell", f"{temporal}-new", "rung")
        late += SLACK_CALLS * (time.monotonic() - asked)

        def rang(name: str) -> bool:
            seen = cluster.described("n1", "Bell", name)
            return bool(seen) and seen["alarm_due"] is None

        for name in names:
            until(lambda name=name: rang(name), WAIT_SECS, f"{name} rang, by its row")
        for name in names:
            (at,) = cluster.call("n1", "Bell", name, "rung")
            assert began + 3.9 < at < late + 2 * SWEEP_SECS
    cluster.start(["n2"], "n1", 4)


def test_answers_that_two_lost_replicas_had_come_back_by_a_person(cluster: UpCluster) -> None:
    """The owner and two of three replicas are lost with answered writes that the bucket lacks. The object is served
    from what there is, as an incident, and written to; they return: the person sees what, how much and which rows,
    has the branch as a file, and applies it."""
    for id in (1, 2):
        cluster.call("n1", "Ledger", "one", "note", id, "before")
    landed = until(
        lambda: seen if (seen := cluster.described("n1", "Ledger", "one"))["store_length"] == seen["length"] else None,
        WAIT_SECS,
        "it has landed",
    )
    home = cluster.named(landed["node"])
    behind, *others = [name for name in NAMES if name != home]
    cluster.lose([behind])
    blobs = cluster.data / "blobs"
    blobs.rename(cluster.data / "cut off")
    blobs.touch()
    for id, what in ((2, "changed"), (3, "lost")):
        cluster.call(home, "Ledger", "one", "note", id, what)
    cluster.lose([home, *others])
    blobs.unlink()
    (cluster.data / "cut off").rename(blobs)
    cluster.start([behind], behind, 1)
    assert cluster.call(behind, "Ledger", "one", "all") == ["before", "before"]
    cluster.call(behind, "Ledger", "one", "note", 4, "since")
    (incident,) = until(lambda: cluster.command("incident", "ls", at=behind), WAIT_SECS, "it is listed")
    cluster.start([home, *others], behind, 4)

    def asks() -> bool:
        return bool(cluster.command("incident", "show", incident["incident"], at=behind)["step"] == "decide")

    until(asks, WAIT_SECS, "it asks")
    shown = cluster.command("incident", "show", incident["incident"], at=behind)
    (table,) = [table for table in shown["branch"]["tables"] if table["table"] == "entries"]
    assert (table["added"], table["updated"], table["deleted"]) == (1, 1, 0)
    rows = [(row["kind"], row["was"], row["is"]) for row in table["rows"]]
    assert sorted(rows) == [("added", None, [3, "lost"]), ("updated", [2, "before"], [2, "changed"])]
    cluster.command("incident", "export", incident["incident"], str(cluster.data / "lost.db"), at=behind)
    assert b"changed" in (cluster.data / "lost.db").read_bytes()
    assert cluster.command("incident", "apply", incident["incident"], at=behind)["outcome"] == "applied"
    assert cluster.call("n1", "Ledger", "one", "all") == ["before", "changed", "lost", "since"]
    assert cluster.command("incident", "ls", at="n1") == []


def test_a_node_leaves_empty_while_clients_write(cluster: UpCluster) -> None:
    """Through every node, by the client library: no call fails, every answered one is there, and none of its objects
    is left on the node that was drained."""
    names = [f"t{at}" for at in range(RESIDENTS)]

    async def main() -> None:
        clients = [Client(cluster.node(name)["http"]) for name in NAMES]
        for at in range(0, RESIDENTS, 20):
            objects = [clients[3].project("acme").object("Ledger", name) for name in names[at : at + 20]]
            await asyncio.gather(*(one.add() for one in objects))
        over = asyncio.Event()
        answered = dict.fromkeys(names, 1)

        async def write(at: int) -> None:
            while not over.is_set():
                name = names[at % RESIDENTS]
                await clients[at % 4].project("acme").object("Ledger", name).add()
                answered[name] += 1
                at += 13

        writing = [asyncio.create_task(write(at)) for at in range(8)]
        node_id = cluster.node("n4")["node_id"]
        drained = await asyncio.to_thread(cluster.command, "drain", node_id, at="n1")
        over.set()
        await asyncio.gather(*writing)
        assert drained["state"] == "empty"
        assert drained["released"] >= RESIDENTS
        assert sum(answered.values()) > RESIDENTS + 20
        objects = [clients[0].project("acme").object("Ledger", name) for name in names]
        assert [await one.add() - 1 for one in objects] == list(answered.values())
        for client in clients:
            await client.close()

    asyncio.run(main())
    nodes = cluster.ask("GET", "n1", "/v1/cluster")[1]["nodes"]
    (left,) = [node for node in nodes if node["node_id"] == cluster.node("n4")["node_id"]]
    assert (left["state"], left["residents"]) == ("leaving", 0)
