"""Bytes stop on wires that stay open: nobody is told of anything, and only deadlines help."""

from __future__ import annotations

import threading
import time

from clusterkit.clients import RovingClient
from clusterkit.cluster import EVICTED_SECS, Cluster, Node, waits

SILENT_SECS = 5.0  # what an old connection is given to answer
LASTS_SECS = 16.0
EVERY_SECS = 0.5
SLACK_SECS = 10.0  # for machines that are busy


def test_a_home_whose_bytes_stop_without_a_reset(wired: Cluster) -> None:
    """Field case 45, a flow that is dropped: the home hears and says nothing, each connection to it stays. Calls
    through the others succeed within the eviction and a few seconds, none waits for minutes, and the home, heard
    again, serves nothing of before."""
    x = wired.fresh("x")
    first = wired.client("first")
    for _ in range(5):
        first.append(x)
    home = wired.home(x)
    clients = [wired.client("c", wired.nodes.index(other)) for other in wired.others(home)]
    for client in clients:
        client.append(x)  # its node has a connection to the home
    _stall(wired, home)
    stalled, answered = time.monotonic(), []
    threads = [threading.Thread(target=_each_moment, args=(client, x, answered)) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    soonest, longest = min(end for _, end in answered) - stalled, max(end - began for began, end in answered)
    print(f"\nbytes of the home stopped: answered again after {soonest:.1f} s, longest call {longest:.1f} s")
    assert soonest < EVICTED_SECS + SILENT_SECS + SLACK_SECS
    assert longest < EVICTED_SECS + SILENT_SECS + SLACK_SECS
    assert wired._home(x) not in ([], [home])
    there = wired.client("there", wired.nodes.index(home), patience_secs=0)
    for _ in range(3):
        there.at(wired.nodes.index(home)).read(x)
    wired.heal()
    wired.settle()
    assert there.at(wired.nodes.index(home)).read(x).outcome in ("answered", "not_run")
    assert first.append(x).outcome == "answered"


def _stall(cluster: Cluster, node: Node) -> None:
    """Nothing gets to the node, from other nodes or etcd, or comes from it any more; no connection ends."""
    assert node.peer is not None
    assert node.etcd is not None
    node.peer.held = node.etcd.held = True
    for other in cluster.others(node):
        assert other.peer is not None
        other.peer.muted.add(node.name)


def _each_moment(client: RovingClient, name: str, answered: list[tuple[float, float]]) -> None:
    """A call by way of its own node, again and again."""
    at, end = client._at, time.monotonic() + LASTS_SECS
    while (began := time.monotonic()) < end:
        assert client.at(at).append(name).outcome == "answered"
        answered.append((began, time.monotonic()))
        waits(EVERY_SECS)
