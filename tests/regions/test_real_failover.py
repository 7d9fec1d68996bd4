"""A region of real processes is lost with answered writes, gone on without, and comes back (PROTOCOLS section 10)."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from etcd_servers import until
from up_cluster import WAIT_SECS, UpCluster

APP = """
from domicile import Object

class Notes(Object):
    def init(self):
        self.sql.exec("CREATE TABLE notes(n INTEGER PRIMARY KEY, what TEXT)")

    def note(self, n: int, what: str) -> str:
        self.sql.exec("INSERT OR REPLACE INTO notes VALUES (?, ?)", n, what)
        return what

    def all(self) -> list[str]:
        return [row["what"] for row in self.sql.query("SELECT what FROM notes ORDER BY n")]
"""
FAILOVER = "/v1/control/operations/failover-acme"


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpCluster]:
    folder = tmp_path_factory.mktemp("failover")
    running = UpCluster(folder, APP, "--regions", "a,b", "--nodes", "1", OBJECT_SWEEP_SECS="2")
    yield running
    running.end()


def lose_region(cluster: UpCluster) -> None:
    """a's node, then its etcd, which stays down with it."""
    etcd = cluster.now()["etcd"]["pids"][1]
    cluster.lose(["a-n1"])
    until(lambda: cluster.node("a-n1")["supervisor_pid"] is None, WAIT_SECS, "a's node is seen to be down")
    os.kill(etcd, signal.SIGKILL)
    until(lambda: len(cluster.now()["etcd"]["pids"]) == 2, WAIT_SECS, "a's etcd is down")


def at_step(cluster: UpCluster, step: str) -> dict[str, Any]:
    def there() -> Any:
        status, found = cluster.ask("GET", "b-n1", FAILOVER)
        return status == 200 and (found["progress"] or {}).get("step") == step and found["progress"]

    found: dict[str, Any] = until(there, WAIT_SECS, f"the failover is at {step}")
    return found


@pytest.mark.timeout(240)
def test_a_region_is_lost_for_a_while(cluster: UpCluster) -> None:
    """Its nodes and its etcd are killed. The loss is stated and, control and Temporal having been killed meanwhile, is
    what is then counted. a returns: its gate is closed before anything else, what it had more becomes incidents, which
    are laid where nothing was written since, and the person decides of the rest."""
    names = [f"o{at}" for at in range(6)]
    more, born = names[:3], "born"
    for name in names:
        cluster.call("a-n1", "Notes", name, "note", 1, "copied")
    cluster.command("project", "replicate", "acme", "--to", "b", "--every", "3600", at="b-n1")

    def stands() -> bool:
        progress = cluster.ask("GET", "b-n1", "/v1/control/operations/replicate-acme")[1]["progress"] or {}
        return bool(progress.get("standing_at"))

    until(stands, WAIT_SECS, "the copy stands")
    for name in (*more, born):
        cluster.call("a-n1", "Notes", name, "note", 2, "lost")
    for name in (*more, born):

        def landed(name: str = name) -> bool:
            seen = cluster.described("a-n1", "Notes", name)
            return bool(seen["store_length"] == seen["length"])

        until(landed, WAIT_SECS, "it has landed")
    lose_region(cluster)
    asked = {"workflow": "FailoverRegion", "input": {"project": "acme", "to": "b"}}
    assert cluster.ask("POST", "b-n1", "/v1/control/operations", asked)[0] == 200
    stated = at_step(cluster, "ask")
    assert cluster.ask("POST", "b-n1", "/v1/acme/objects/Notes/o0/all", [])[0] == 503, "nothing was done yet"
    for part in ("control", "temporal"):
        os.kill(cluster.now()[part]["pid"], signal.SIGKILL)
    until(lambda: cluster.ask("POST", "b-n1", f"{FAILOVER}/go_on")[0] == 200, WAIT_SECS, "the loss is accepted")
    at_step(cluster, "away")
    lacking = [name for name in names if "lost" not in cluster.call("b-n1", "Notes", name, "all") and name in more]
    listed = {one["name"] for one in cluster.ask("GET", "b-n1", "/v1/acme/objects")[1]["objects"]}
    assert listed == set(names)
    assert (stated["counted"], stated["lost_objects"], stated["missing_objects"]) == (True, len(lacking) + 1, 1)
    assert stated["lost_bytes"] > 0
    cluster.call("b-n1", "Notes", "o0", "note", 3, "served")

    cluster.start(["a-n1"], "a-n1", 1)
    ended = until(
        lambda: found if (found := cluster.ask("GET", "b-n1", FAILOVER)[1])["status"] == "completed" else None,
        WAIT_SECS,
        "it has ended",
    )
    assert (ended["result"]["returned"], ended["result"]["incidents"]) == (True, len(more) + 1)
    assert cluster.call("a-n1", "Notes", "o5", "note", 2, "on") == "on"
    assert cluster.described("a-n1", "Notes", "o5")["region"] == "b"

    def one_asks() -> Any:
        left = cluster.command("incident", "ls", at="b-n1")
        return left if [one["step"] for one in left] == ["decide"] else None

    (incident,) = until(one_asks, WAIT_SECS, "the others are laid by themselves")
    assert incident["object"] == "acme/Notes/o0"
    assert cluster.command("incident", "apply", incident["incident"], at="b-n1")["rows"] == 1
    assert cluster.call("a-n1", "Notes", "o0", "all") == ["copied", "lost", "served"]
    assert [cluster.call("a-n1", "Notes", name, "all") for name in more[1:]] == [["copied", "lost"]] * 2
    assert cluster.call("b-n1", "Notes", born, "all") == ["lost"]
