"""Random faults under load: DOMICILE_FAULT_SECS says for how long (`make soak`: 20 minutes), DOMICILE_SEED which."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable

import pytest
from clusterkit.cluster import Cluster, Node, waits
from crashkit.clients import progress
from crashkit.process import until
from living import alive

Start = Callable[..., Cluster]
SECS = float(os.environ.get("DOMICILE_FAULT_SECS", "25"))
SEED = int(os.environ.get("DOMICILE_SEED", "1"))
CALM = 40
STORE_LAG_SECS = 3.0  # the store has by then what the homes have: OBJECT_STORE_LAG_MS and some


@pytest.mark.timeout(300 + 3 * SECS)
def test_random_faults_lose_double_and_show_nothing_old(start: Start) -> None:
    """Field case 65: deaths, pauses, cuts, wipes and restarts in any order: zero lost, zero doubled, zero stale; all
    heal by themselves."""
    rng = random.Random(SEED)
    cluster = start(wired=True, settings={"OBJECT_IDLE_SECS": "2", "OBJECT_WAL_ROTATE_KB": "256"})
    load = cluster.load(clients=5, seed=SEED)
    faults = _faults(cluster, rng)
    end, done = time.monotonic() + SECS, 0
    try:
        while time.monotonic() < end:
            name = rng.choice(sorted(faults))
            print(f"{SECS - (end - time.monotonic()):7.1f} s  {name}", flush=True)
            faults[name](rng.choice(cluster.nodes))
            cluster.heal()
            cluster.settle()
            progress(cluster.history, CALM, until)
            done += 1
            load.era = done // 4
    finally:
        cluster.heal()
    load.finish()
    print(f"{done} faults, {len(cluster.history.operations)} operations, {cluster.history.answered()} answered")
    assert done
    cluster.check()


def _faults(cluster: Cluster, rng: random.Random) -> dict[str, Callable[[Node], None]]:
    """Each breaks something, and leaves all processes running when it returns."""

    def some() -> float:
        return rng.choice((0.3, 1.0, 3.0, 5.0))

    def kill_child(node: Node) -> None:
        pid = node.serving_pid()
        node.kill_child()
        until(lambda: not alive(pid), "it died")

    def lose_machine(node: Node) -> None:
        node.lose_machine()
        waits(some())
        node.up()

    def stop(node: Node) -> None:
        assert node.stop() == 0
        waits(some())
        node.up()

    def pause(node: Node) -> None:
        node.pause()
        waits(some())
        node.go_on()

    def isolate(node: Node) -> None:
        cluster.isolate(node, etcd=rng.random() < 0.5)
        waits(some())

    def cut_etcd(node: Node) -> None:
        cluster.cut_etcd(node)
        waits(some())

    def hold_peer(node: Node) -> None:
        assert node.peer is not None
        node.peer.held = True
        waits(some())

    def hold_etcd(node: Node) -> None:
        assert node.etcd is not None
        node.etcd.held = True
        waits(some())

    def slow_peer(node: Node) -> None:
        assert node.peer is not None
        node.peer.delay_secs = 0.05
        waits(some())
        node.peer.delay_secs = 0.0

    def restart_etcd(_: Node) -> None:
        cluster.etcd.members[0].kill()
        waits(some() / 3)
        cluster.etcd.restart(cluster.etcd.members[0])

    def wipe(folder: str) -> Callable[[Node], None]:
        def wiped(node: Node) -> None:
            # An object whose home died is repaired by whoever wakes it: two wipes before that are two copies lost.
            cluster.wake_all()
            waits(STORE_LAG_SECS)
            node.kill()
            node.forget(folder)
            node.up()

        return wiped

    def all_at_once(_: Node) -> None:
        for node in cluster.nodes:
            node.lose_machine()
        for node in cluster.nodes:
            node.up()

    return {
        "kill child": kill_child,
        "lose machine": lose_machine,
        "stop in order": stop,
        "pause": pause,
        "isolate": isolate,
        "cut from etcd": cut_etcd,
        "hold what others say to it": hold_peer,
        "hold what it says to etcd": hold_etcd,
        "slow what others say to it": slow_peer,
        "restart etcd": restart_etcd,
        "wipe objects": wipe("objects"),
        "wipe replicas": wipe("replicas"),
        "kill all": all_at_once,
    }
