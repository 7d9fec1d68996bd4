"""Cut wires: from the home to etcd, to its replicas, to the store, and all of it healed again."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from clusterkit.cluster import Cluster, waits
from crashkit.clients import progress
from crashkit.process import until
from crashkit.s3 import start_s3

Start = Callable[..., Cluster]


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


def test_the_store_goes_then_the_replicas_then_both(start: Start, tmp_path: Path) -> None:
    """The store gone: the quorum answers, and the lag is shown. The replicas gone: the manifest answers. Both gone:
    `outcome_unknown`. All of it heals by itself."""
    s3 = start_s3()
    try:
        cluster = start(wired=True, settings={**s3.settings, "OBJECT_ACK_GATE_MS": "1500"})
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
        cluster.check(s3.look)
    finally:
        s3.close()
