"""Copies that are wiped, stale, half-made, or of a life that is over."""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Callable

import pytest
from clusterkit.cluster import Cluster, waits
from crashkit.clients import LARGE, SMALL
from crashkit.process import until

Start = Callable[..., Cluster]


def _in_step(cluster: Cluster, name: str, count: int = 2) -> None:
    """Until the object has this many copies, all of them whole."""

    def whole() -> bool:
        replicas = cluster.about(name)["replicas"]
        return len(replicas) == count and all(copy["lag"] == 0 for copy in replicas)

    until(whole, f"{count} copies of {name} are in step")


def test_two_replicas_down_then_the_home(cluster: Cluster) -> None:
    """Field case 33: with both replicas down the manifest answers; then the home dies and the stale two come back
    alone: they serve all of it."""
    x = cluster.fresh("x")
    client = cluster.client("c")
    for _ in range(5):
        client.append(x)
    _in_step(cluster, x)
    home = cluster.home(x)
    stale = cluster.others(home)
    for node in stale:
        node.lose_machine()
    client.at(cluster.nodes.index(home))
    for _ in range(10):
        assert client.at(cluster.nodes.index(home)).append(x).outcome == "answered"
    home.lose_machine()
    for node in stale:
        node.up()
    cluster.settle()
    client.at(cluster.nodes.index(stale[0]))
    assert client.read(x).outcome == "answered"
    assert client.append(x).outcome == "answered"
    home.up()
    cluster.settle()
    assert client.at(cluster.nodes.index(home)).append(x).outcome == "answered"


def test_a_wiped_replica_never_answers_for_the_lost_one(cluster: Cluster) -> None:
    """`replicas/` of one member is wiped while it is down; it returns as another copy, and the home's death loses
    nothing."""
    x = cluster.fresh("x")
    client = cluster.client("c")
    for _ in range(5):
        client.append(x)
    _in_step(cluster, x)
    home = cluster.home(x)
    wiped, kept = cluster.others(home)
    before = {copy["copy_id"] for copy in cluster.about(x)["replicas"]}
    assert wiped.stop() == 0
    wiped.forget("replicas")
    client.at(cluster.nodes.index(home))
    for _ in range(3):
        client.append(x)
    wiped.up()
    cluster.settle()
    until(lambda: {copy["copy_id"] for copy in cluster.about(x)["replicas"]} != before, "the set was repaired")
    _in_step(cluster, x)
    home.lose_machine()
    client.at(cluster.nodes.index(kept))
    assert client.append(x).outcome == "answered"


def test_a_home_without_its_own_files(cluster: Cluster) -> None:
    """`objects/` of the home is wiped while it is down; wherever the object wakes, it is whole."""
    x = cluster.fresh("x")
    client = cluster.client("c")
    for _ in range(5):
        client.append(x, LARGE)
    home = cluster.home(x)
    home.kill()
    home.forget("objects")
    home.up()
    client.at(cluster.nodes.index(home))
    assert client.append(x).outcome == "answered"
    cluster.settle()


def test_a_catch_up_killed_between_pieces(start: Start) -> None:
    """A member that lost everything is killed again and again while it fetches; it gets there, and nothing is lost."""
    cluster = start(settings={"OBJECT_WAL_ROTATE_KB": "256"})
    client = cluster.client("c")
    for _ in range(60):
        client.append("x", LARGE)
    home = cluster.home("x")
    member = cluster.others(home)[0]
    member.kill()
    member.forget("replicas")
    client.at(cluster.nodes.index(home))
    for pause in (0.0, 0.1, 0.3, 0.6, 1.0):
        member.up()
        until(member.is_ready, "it is there")
        waits(pause)
        client.append("x", SMALL)
        member.kill()
    member.up()
    cluster.settle()
    client.append("x")
    _in_step(cluster, "x")
    home.lose_machine()
    client.at(cluster.nodes.index(member))
    assert client.append("x").outcome == "answered"
    cluster.check()


def test_a_life_that_is_over_does_not_return(cluster: Cluster) -> None:
    """Field case 36: deleted and made anew while a node with a copy was down: that copy is void when it comes back."""
    x = cluster.fresh("x")
    client = cluster.client("c")
    for _ in range(30):
        client.append(x)
    _in_step(cluster, x)
    home = cluster.home(x)
    absent, present = cluster.others(home)
    absent.lose_machine()
    client.at(cluster.nodes.index(home))
    assert client.delete(x).outcome == "answered"
    assert client.append(x).outcome == "answered"
    absent.up()
    cluster.settle()
    for at in range(3):
        found = client.at(at).read(x)
        assert found.shown is not None
        assert len(found.shown.items) == 1
    home.lose_machine()
    client.at(cluster.nodes.index(absent))
    assert len(client.append(x).shown.items) == 2  # type: ignore[union-attr]
    assert present.is_ready()


def test_a_log_shipped_in_pieces_is_never_half_there(cluster: Cluster) -> None:
    """Field case 34: large transactions while the other node dies and returns: all of one or nothing of it."""
    x = cluster.fresh("x")
    client = cluster.client("c")
    client.append(x)
    home = cluster.home(x)
    member = cluster.others(home)[0]
    for _ in range(3):
        client.at(cluster.nodes.index(home))
        for _ in range(4):
            assert client.append(x, 10 * LARGE).outcome == "answered"
        member.kill_child()
        for _ in range(4):
            assert client.append(x, 10 * LARGE).outcome == "answered"
        cluster.settle()
        assert client.at(cluster.nodes.index(member)).read(x).outcome == "answered"
    home.kill_child()
    assert client.at(cluster.nodes.index(member)).append(x).outcome == "answered"


def test_a_replica_whose_disk_is_full(cluster: Cluster) -> None:
    """Field case 41: one member can write no more: calls are answered all the same, and once it can it is in step
    again without help."""
    x = cluster.fresh("x")
    client = cluster.client("c")
    client.append(x)
    _in_step(cluster, x)
    home = cluster.home(x)
    full = cluster.others(home)[0]
    full.refuse_writes(True)
    for _ in range(40):
        assert client.at(cluster.nodes.index(home)).append(x, 4 * LARGE).outcome == "answered"
    full.refuse_writes(False)
    cluster.settle()
    client.append(x)
    _in_step(cluster, x)


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace makes the disk slow")
def test_a_replica_whose_disk_is_slow(cluster: Cluster) -> None:
    """Each sync of one member takes 0.3 s: calls are answered, by the manifest where a quorum would need the slow one;
    nothing is lost with the home, and the member is in step again."""
    x = cluster.fresh("x")
    client = cluster.client("c")
    client.append(x)
    _in_step(cluster, x)
    home = cluster.home(x)
    slow = cluster.others(home)[0]
    client.at(cluster.nodes.index(home))
    took = []
    with slow.slow_disk(0.3):
        for _ in range(10):
            began = time.monotonic()
            assert client.at(cluster.nodes.index(home)).append(x).outcome == "answered"
            took.append(time.monotonic() - began)
    print(f"\none replica syncs 0.3 s slower: answers took {statistics.median(took):.3f} s, at most {max(took):.3f} s")
    home.kill_child()
    client.at(cluster.nodes.index(slow))
    assert client.append(x).outcome == "answered"
    cluster.settle()
    _in_step(cluster, x)


def test_large_commits_through_a_forwarding_node(cluster: Cluster) -> None:
    """Field case 95: commits and arguments around the usual limit of a message, and far above it, in one piece."""
    x = cluster.fresh("x")
    client = cluster.client("c")
    client.append(x)
    home = cluster.home(x)
    away = cluster.nodes.index(cluster.others(home)[0])
    for megabytes in (3.9, 4.0, 4.2, 15.0):
        assert client.at(away).append(x, int(megabytes * 1e6)).outcome == "answered"
    argument = "a" * 6_000_000
    told = {"sql": "CREATE TABLE t AS SELECT ? AS a", "params": [argument]}
    database = f"/v1/drill/databases/{cluster.fresh('d')}"
    assert client.line.ask("POST", f"{database}/exec", told, key="once").status == 200
    answer = client.at((away + 1) % 3).line.ask("POST", f"{database}/query", {"sql": "SELECT a FROM t"})
    assert answer.json() == [{"a": argument}]
    _in_step(cluster, x)
    home.kill_child()
    assert client.at(away).append(x).outcome == "answered"


def test_no_quorum_asked_for_is_a_fan_out_in_shadow(start: Start) -> None:
    """OBJECT_QUORUM=0: the manifest answers, the copies are kept all the same, and a takeover uses them."""
    cluster = start(settings={"OBJECT_QUORUM": "0"})
    client = cluster.client("c")
    for _ in range(5):
        client.append("x")
    _in_step(cluster, "x")
    home = cluster.home("x")
    client.at(cluster.nodes.index(cluster.others(home)[0]))
    home.lose_machine()
    assert client.append("x").outcome == "answered"
    home.up()
    cluster.settle()
    cluster.check()
