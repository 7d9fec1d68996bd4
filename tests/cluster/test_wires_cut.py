"""Cut wires: from the home to etcd, to its replicas, to the store, and all of it healed again."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from clusterkit.cluster import Cluster, waits
from crashkit.clients import progress
from crashkit.process import until
from crashkit.s3 import S3, start_s3

Start = Callable[..., Cluster]
HELD_SECS = float(os.environ.get("DOMICILE_HELD_SECS", "3"))  # `make soak`: 30


@pytest.fixture
def s3() -> Iterator[S3]:
    """A bucket; every node has its own wire to it, and it has one more before all of them."""
    server = start_s3()
    yield server
    server.close()


def test_a_home_cut_from_etcd_stops_in_time(wired: Cluster) -> None:
    """Field case 43: clients and replicas still reach it, etcd does not. It answers nothing once another may be home,
    and joins again when the wire is whole."""
    x = wired.fresh("x")
    client, there = wired.client("c"), wired.client("there", patience_secs=0)
    for _ in range(5):
        client.append(x)
    home = wired.home(x)
    at = wired.nodes.index(home)
    elsewhere = wired.nodes.index(wired.others(home)[0])
    client.at(elsewhere)
    wired.cut_etcd(home)
    end = time.monotonic() + 8
    while time.monotonic() < end:
        there.at(at).append(x, keyed=False)
        there.at(at).read(x)
        client.at(elsewhere).append(x)
    assert client.append(x).outcome == "answered"
    assert wired._home(x) not in ([], [home])
    wired.heal()
    wired.settle()
    assert there.at(at).append(x, keyed=False).outcome in ("answered", "not_run")


def test_blips_of_etcd_cost_nobody_the_home(wired: Cluster) -> None:
    """Field case 46: the wire to etcd fails for a moment, again and again: nobody takes over, nobody stops."""
    x = wired.fresh("x")
    client = wired.client("c")
    client.append(x)
    home, ids = wired.home(x), [node.node_id() for node in wired.nodes]
    assert home.etcd is not None
    for _ in range(6):
        home.etcd.down()
        waits(0.4)
        home.etcd.up()
        assert client.append(x).outcome == "answered"
        waits(0.3)
    assert wired.home(x) is home
    assert [node.node_id() for node in wired.nodes] == ids


def test_a_home_cut_from_its_replicas_answers_by_the_store(wired: Cluster) -> None:
    """Field case 29: with its replicas out of reach the manifest answers; they catch up by themselves when they are
    back, and hold what they must for the next death."""
    x = wired.fresh("x")
    client = wired.client("c")
    for _ in range(3):
        client.append(x)
    home = wired.home(x)
    client.at(wired.nodes.index(home))
    wired.isolate(home)
    for _ in range(5):
        assert client.at(wired.nodes.index(home)).append(x).outcome == "answered"
    wired.heal()
    wired.settle()
    for _ in range(3):
        client.append(x)
    until(lambda: all(copy["lag"] == 0 for copy in wired.about(x)["replicas"]), "the replicas caught up")
    home.kill_child()
    client.at(wired.nodes.index(wired.others(home)[0]))
    assert client.append(x).outcome == "answered"


def test_an_isolated_home_and_its_successor(wired: Cluster) -> None:
    """Field case 29: a home cut from everything but its clients; another takes over; the first heals without help."""
    x = wired.fresh("x")
    client, there = wired.client("c"), wired.client("there", patience_secs=0)
    for _ in range(3):
        client.append(x)
    home = wired.home(x)
    at, elsewhere = wired.nodes.index(home), wired.nodes.index(wired.others(home)[0])
    wired.isolate(home, etcd=True)
    end = time.monotonic() + 7
    while time.monotonic() < end:
        there.at(at).append(x, keyed=False)
        client.at(elsewhere).append(x)
    wired.heal()
    wired.settle()
    assert there.at(at).read(x).outcome in ("answered", "not_run")
    assert client.at(at).append(x).outcome == "answered"


def test_random_cuts_under_load(wired: Cluster) -> None:
    """Each node in turn loses the others, etcd, or both for some seconds, while clients roam."""
    load = wired.load(clients=4)
    for node in wired.nodes:
        load.era += 1
        progress(wired.history, 30, until)
        wired.isolate(node, etcd=wired.nodes.index(node) != 1)
        waits(4.0)
        wired.heal()
        wired.settle()
    progress(wired.history, 50, until)
    load.finish()


def test_the_store_goes_then_the_replicas_then_both(start: Start, s3: S3) -> None:
    """The store gone: the quorum answers, and the lag is shown. The replicas gone: the manifest answers. Both gone:
    `outcome_unknown`. All of it heals by itself."""
    cluster = start(wired=True, s3=s3, settings={"OBJECT_ACK_GATE_MS": "1500"})
    client = cluster.client("c")
    for _ in range(3):
        assert client.append("x").outcome == "answered"
    home = cluster.home("x")
    at = cluster.nodes.index(home)
    until(lambda: all(copy["lag"] == 0 for copy in cluster.about("x")["replicas"]), "the replicas are in step")

    s3.wire.down()
    for _ in range(5):
        assert client.at(at).append("x").outcome == "answered"
    about = cluster.about("x")
    assert about["store_length"] < about["length"] == about["watermark"]
    s3.wire.up()
    until(lambda: cluster.about("x")["store_length"] == cluster.about("x")["length"], "the store caught up")

    cluster.isolate(home)
    for _ in range(3):
        assert client.at(at).append("x").outcome == "answered"
    s3.wire.down()
    hurried = cluster.client("hurried", at, patience_secs=0)
    assert hurried.append("x", keyed=False).attempts[-1].code == "outcome_unknown"
    s3.wire.up()
    cluster.heal()
    cluster.settle()
    assert client.append("x").outcome == "answered"
    cluster.check()


def test_what_arrives_late_does_nothing(start: Start, s3: S3) -> None:
    """Requests of a home that was evicted, a manifest put and renewals, stay in the wire and are delivered long after
    another has taken over and written: none of them counts."""
    cluster = start(wired=True, s3=s3)
    client = cluster.client("c")
    for _ in range(3):
        client.append("x")
    home = cluster.home("x")
    at, elsewhere = cluster.nodes.index(home), cluster.nodes.index(cluster.others(home)[0])
    assert home.store is not None
    assert home.etcd is not None
    home.store.held = home.etcd.held = True
    cluster.isolate(home)
    there = cluster.client("there", at, patience_secs=0)
    for _ in range(2):
        there.at(at).append("x", keyed=False)
    for _ in range(5):
        assert client.at(elsewhere).append("x").outcome == "answered"
    waits(HELD_SECS)
    home.store.held = home.etcd.held = False
    for _ in range(5):
        assert client.at(elsewhere).append("x").outcome == "answered"
    cluster.heal()
    cluster.settle()
    assert client.at(at).append("x").outcome == "answered"
    cluster.check()


def test_a_release_that_arrives_late_does_nothing(start: Start) -> None:
    """A home is told to stop, and what it says to etcd stays in the wire: releases, and the deregistration by it and by
    its supervisor. It is evicted, another is home and writes; then all of it is delivered, and nothing of it counts."""
    cluster = start(wired=True)
    names = [f"x{n}" for n in range(5)]
    client = cluster.client("c")
    for name in names:
        client.at(0).append(name)
    home, elsewhere = cluster.nodes[0], 1
    assert all(cluster.home(name) is home for name in names)
    assert home.etcd is not None
    home.etcd.held = True
    home.signal(signal.SIGTERM)

    def taken(name: str) -> bool:
        """What it cannot release yet, the home that is told to stop still answers."""
        assert client.at(elsewhere).append(name).outcome == "answered"
        return cluster._home(name) not in ([], [home])

    for name in names:
        until(lambda name=name: taken(name), f"{name} has another home")
    homes = {name: (cluster.home(name), cluster.about(name)["epoch"]) for name in names}
    waits(HELD_SECS)
    home.etcd.held = False
    home.wait_dead()
    for name in names:
        assert client.at(elsewhere).append(name).outcome == "answered"
    assert {name: (cluster.home(name), cluster.about(name)["epoch"]) for name in names} == homes
    home.up()
    cluster.settle()
    assert client.at(0).append(names[0]).outcome == "answered"
    cluster.check()


def test_a_view_that_was_compacted_away(wired: Cluster) -> None:
    """Field case 50: a node cut from etcd misses changes that are then compacted; back again it sees what all see."""
    x = wired.fresh("x")
    client, cut = wired.client("c"), wired.nodes[2]
    client.append(x)
    wired.cut_etcd(cut)
    for n in range(20):
        client.at(n % 2).append(wired.fresh(f"meanwhile-{n}"))
    wired.nodes[0].kill_child()
    waits(1.0)
    wired.etcd.compact()
    wired.heal()
    wired.settle()
    for n in range(20):
        assert client.at(2).append(wired.fresh(f"meanwhile-{n}")).outcome == "answered"


def test_a_lost_machine_while_etcd_changes_leaders(start: Start) -> None:
    """Field case 48: the leader of three etcd members dies again and again, and a machine is lost meanwhile: its
    objects answer within the bound, because nothing waits for a grant to run out."""
    cluster = start(etcds=3)
    client = cluster.client("c")
    client.append("x")
    home = cluster.home("x")
    client.at(cluster.nodes.index(cluster.others(home)[0]))
    home.lose_machine()
    began = time.monotonic()
    asked = threading.Thread(target=client.append, args=("x",))
    asked.start()
    while asked.is_alive():  # in this thread: a member dies with the thread that started it
        leader = cluster.etcd.leader()
        leader.kill()
        asked.join(1.5)
        cluster.etcd.restart(leader)
        until(cluster.etcd.healthy, "etcd is whole")
        asked.join(0.5)
    print(f"\nlost machine, leaders changing: answered within {time.monotonic() - began:.2f} s")
    assert cluster.operations()[-1].outcome == "answered"
    assert time.monotonic() - began < 45
    home.up()
    cluster.settle()
    cluster.check()
