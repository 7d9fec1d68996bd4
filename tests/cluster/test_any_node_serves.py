"""Three nodes are one service: calls through any of them, reads that are never stale, told to stop without a doubt."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable

from clusterkit.cluster import Cluster
from crashkit.clients import progress
from crashkit.process import until

ROUNDS = 60
RESIDENTS = int(os.environ.get("DOMICILE_RESIDENTS", "60"))


def test_calls_through_any_node_count_right(cluster: Cluster) -> None:
    """A mixed load through all nodes: one order explains every answer, and the bucket holds it in the end."""
    load = cluster.load(clients=5)
    progress(cluster.history, 400, until)
    load.finish()
    assert len({op.object for op in cluster.operations() if op.outcome == "answered"}) > 10


def test_a_read_anywhere_shows_what_was_answered_before(cluster: Cluster) -> None:
    """Field case 38: what the home answered is in every read that begins afterwards, at any node, replicas too."""
    x = cluster.fresh("x")
    writer = cluster.client("writer")
    writer.append(x)
    home = cluster.home(x)
    writer.at(cluster.nodes.index(home))
    readers = [cluster.client(f"r{n}", cluster.nodes.index(node)) for n, node in enumerate(cluster.others(home))]
    for _ in range(ROUNDS):
        assert writer.append(x).outcome == "answered"
        at_once = [threading.Thread(target=reader.read, args=(x,)) for reader in readers]
        for thread in at_once:
            thread.start()
        for thread in at_once:
            thread.join()
    shown = [op.shown for op in cluster.operations() if op.op == "read" and op.shown is not None]
    assert len(shown) == len(readers) * ROUNDS
    assert "replica" in {one.served_by for one in shown}


def test_a_node_told_to_stop_leaves_nobody_in_doubt(cluster: Cluster) -> None:
    """SIGTERM of a node with many residents under load, none sent twice: whatever ran was answered, the rest refused;
    every object answers elsewhere."""
    names = [cluster.fresh(f"many-{n}") for n in range(RESIDENTS)]
    fill = [cluster.client(f"f{n}", n % 3) for n in range(6)]
    _each(fill, lambda client, n: [client.append(name) for name in names[n::6]])
    leaver = cluster.home(names[0])
    stay = [n for n, node in enumerate(cluster.nodes) if node is not leaver]
    over = threading.Event()
    clients = [cluster.client(f"c{n}", stay[n % 2], patience_secs=0) for n in range(8)]

    def hammer(n: int) -> None:
        at = n
        while not over.is_set():
            clients[n].at(stay[n % 2]).append(names[at % RESIDENTS], keyed=False)
            at += 8

    threads = [threading.Thread(target=hammer, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    progress(cluster.history, 100, until)
    told = time.monotonic()
    leaver.signal(signal.SIGTERM)
    assert leaver.wait_dead() == 0
    gone = time.monotonic()
    progress(cluster.history, 200, until)
    over.set()
    for thread in threads:
        thread.join()
    asked = [op.attempts[-1] for op in cluster.operations() if op.invoked > told - 0.2]
    slowest = max(one.returned - one.invoked for one in asked if one.returned is not None)
    print(
        f"\n{RESIDENTS} objects, one of three nodes stopped in {gone - told:.2f} s; slowest answer {slowest:.3f} s,"
        f" {sum(one.outcome == 'not_run' for one in asked)} of {len(asked)} refused"
    )
    assert [op.attempts[-1] for op in cluster.operations() if op.outcome == "unknown"] == []
    rest = cluster.client("rest", stay[0])
    assert all(rest.read(name).outcome == "answered" for name in names)


def test_every_node_restarted_in_turn(cluster: Cluster) -> None:
    """A rolling restart under load: every call is answered, by one node or another, and nothing is lost."""
    load = cluster.load(clients=4)
    for node in cluster.nodes:
        load.era += 1
        progress(cluster.history, 60, until)
        assert node.stop() == 0
        progress(cluster.history, 60, until)
        node.up()
        cluster.settle()
    progress(cluster.history, 60, until)
    load.finish()


def _each(clients: list, work: Callable[..., object]) -> None:  # type: ignore[type-arg]
    threads = [threading.Thread(target=work, args=(client, n)) for n, client in enumerate(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
