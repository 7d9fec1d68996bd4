"""How long objects are away when their home dies: measured on real processes, printed as a distribution.

    python tests/cluster/takeover_times.py [--runs 20] [--many 1000] [--only killed-child,many] [--json FILE]

The next answered call through another node is what counts, by a client that asks again after 20 ms. Deaths come at
random moments between two renewals. What the machine's processors did meanwhile is printed beside it.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "crash"), str(HERE.parent / "sim"), str(HERE.parent / "kit")]
sys.path.append(str(HERE.parent.parent))

from clusterkit.clients import RovingClient, in_parallel  # noqa: E402 - found beside this file
from clusterkit.cluster import Cluster, Node  # noqa: E402

from bench.process import machine_cpu_seconds, tree_cpu_seconds  # noqa: E402

DEFAULTS = {"DOMICILE_PROFILE": "", "OBJECT_IDLE_SECS": "300", "OBJECT_CALL_SECS": "10"}
FAST = {**DEFAULTS, "DOMICILE_PROFILE": "fast"}
BEATS = {"": 5.0, "fast": 0.5}
CLIENTS = 16


def main() -> None:
    options = _options()
    cases: dict[str, Callable[[], dict[str, Any]]] = {
        "killed-child": lambda: _deaths(options.runs, DEFAULTS, Node.kill_child),
        "lost-machine": lambda: _deaths(options.runs, DEFAULTS, Node.lose_machine),
        "lost-machine-fast": lambda: _deaths(options.runs, FAST, Node.lose_machine),
        "many": lambda: _many(options.many),
    }
    wanted = options.only.split(",") if options.only else list(cases)
    results = {}
    for name in wanted:
        results[name] = cases[name]()
        print(f"{name}: {json.dumps(results[name])}", flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--many", type=int, default=1000)
    parser.add_argument("--only", default="", metavar="CASES")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def _deaths(runs: int, settings: dict[str, str], die: Callable[[Node], None]) -> dict[str, Any]:
    """`runs` deaths of the home of one object, each from a cluster at rest."""
    rng, took, busy = random.Random(1), [], []
    with _Clusters(settings) as cluster:
        client = cluster.client("c")
        for _ in range(runs):
            for _ in range(5):
                client.append("x")
            home = cluster.home("x")
            client.at(cluster.nodes.index(cluster.others(home)[0]))
            threading.Event().wait(rng.random() * BEATS[settings["DOMICILE_PROFILE"]])
            spent, began = machine_cpu_seconds(), time.monotonic()
            die(home)
            assert client.append("x").outcome == "answered"
            took.append(time.monotonic() - began)
            busy.append((machine_cpu_seconds() - spent) / took[-1])
            if home not in cluster.running():
                home.up()
            cluster.settle()
        cluster.check()
    return {**_distribution(took), "busy_cores": round(statistics.median(busy), 2)}


def _many(count: int) -> dict[str, Any]:
    """A killed node with `count` residents: until each of them has answered through one of the others."""
    names = [f"many-{n}" for n in range(count)]
    with _Clusters(DEFAULTS) as cluster:
        clients = [cluster.client(f"c{n}", 0) for n in range(CLIENTS)]
        in_parallel(clients, names, lambda client, name: client.append(name))
        dead, others = cluster.nodes[0], cluster.nodes[1:]
        for client in clients:
            client.at(1 + clients.index(client) % len(others))
        before = {node.name: tree_cpu_seconds(node.pid) for node in cluster.nodes}
        etcd = tree_cpu_seconds(cluster.etcd.members[0].pid)
        own, machine = time.process_time(), machine_cpu_seconds()
        each: list[float] = []
        dead.kill_child()
        began = time.monotonic()
        in_parallel(clients, names, lambda client, name: _timed(client, name, each))
        took = time.monotonic() - began
        spent = {node.name: tree_cpu_seconds(node.pid) - before[node.name] for node in cluster.nodes}
        spent |= {"etcd": tree_cpu_seconds(cluster.etcd.members[0].pid) - etcd}
        spent |= {"client": time.process_time() - own, "machine": machine_cpu_seconds() - machine}
        cluster.check()
    cpu = {name: round(secs, 2) for name, secs in spent.items()}
    return {"objects": count, "secs": round(took, 2), "each": _distribution(each), "cpu_secs": cpu}


def _timed(client: RovingClient, name: str, each: list[float]) -> None:
    began = time.monotonic()
    assert client.append(name).outcome == "answered"
    each.append(time.monotonic() - began)


def _distribution(took: list[float]) -> dict[str, Any]:
    ordered = sorted(took)
    places = {"min": 0.0, "p50": 0.5, "p90": 0.9, "max": 1.0}
    told = {name: round(ordered[round(place * (len(ordered) - 1))], 3) for name, place in places.items()}
    return {"runs": len(took), **told}


class _Clusters:
    """One cluster in a folder of its own, gone at the end whatever happens."""

    def __init__(self, settings: dict[str, str]) -> None:
        self._where = Path(tempfile.mkdtemp(prefix="takeover-"))
        self._cluster = Cluster(self._where / "cluster", settings=settings)

    def __enter__(self) -> Cluster:
        try:
            self._cluster.start()
        except BaseException:
            self.__exit__()
            raise
        return self._cluster

    def __exit__(self, *_: object) -> None:
        self._cluster.abandon()
        shutil.rmtree(self._where, ignore_errors=True)


if __name__ == "__main__":
    main()
