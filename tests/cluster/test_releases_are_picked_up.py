"""A node is told to stop: as each of its objects is released, another answers for it at once."""

from __future__ import annotations

import base64
import json
import os
import queue
import signal
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from urllib.request import Request, urlopen

import msgspec
from clusterkit.clients import RovingClient
from clusterkit.cluster import Cluster
from crashkit.clients import progress
from crashkit.process import until

from domicile.placement.records import LeaseRow, Released

RESIDENTS = int(os.environ.get("DOMICILE_RESIDENTS", "60"))
DIRTY = 2 * RESIDENTS // 5
PICKERS = 2
HAMMERS = 2
SOON_SECS = 0.1
SLACK = 3  # the processors may be others', too


class ReleasesSeen:
    """Names of objects, each from the moment etcd has told of its release."""

    def __init__(self, cluster: Cluster) -> None:
        root = cluster.nodes[0].registrar["root"]
        within = {"key": _b64(f"{root}leases/"), "range_end": _b64(f"{root}leases0")}
        asked = Request(
            f"http://{cluster.etcd.members[0].endpoint}/v3/watch", json.dumps({"create_request": within}).encode()
        )
        self.told: queue.Queue[tuple[str, float] | None] = queue.Queue()
        self._stream = urlopen(asked)
        assert json.loads(self._stream.readline())["result"]["created"]
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self._stream:
            now = time.monotonic()
            for event in json.loads(line)["result"].get("events", ()):
                row = msgspec.json.decode(base64.b64decode(event["kv"]["value"]), type=LeaseRow)
                if isinstance(row.state, Released):
                    self.told.put((row.name, now))

    def pick_up(self, client: RovingClient, took: list[tuple[float, float]]) -> None:
        """Call each that is released, until there are no more."""
        while (told := self.told.get()) is not None:
            name, released = told
            asked = time.monotonic()
            assert client.append(name).outcome == "answered"
            took.append((time.monotonic() - asked, time.monotonic() - released))


def test_what_a_leaving_node_releases_is_answered_elsewhere_at_once(cluster: Cluster) -> None:
    """Residents, two fifths of them dirty, under load: nothing is in doubt, and each answers elsewhere a moment after
    its release: a call that comes then takes no longer than a wake. (All at once they wait for processors.)"""
    names = [cluster.fresh(f"left-{n}") for n in range(RESIDENTS)]
    leaver, stay = cluster.nodes[0], (1, 2)
    fill = [cluster.client(f"f{n}", 0) for n in range(6)]
    _all(fill, lambda client, n: [client.append(name) for name in names[n :: len(fill)]])
    mine = [name for name in names if cluster.home(name) is leaver]
    seen, took, over = ReleasesSeen(cluster), [], threading.Event()
    pickers = [cluster.client(f"p{n}", stay[n % 2]) for n in range(PICKERS)]
    hammers = [cluster.client(f"h{n}", stay[n % 2], patience_secs=0) for n in range(HAMMERS)]
    picking = _begin(pickers, lambda client, n: seen.pick_up(client, took))
    hammering = _begin(hammers, lambda client, n: _hammer(client.at(stay[n]), names[n::HAMMERS], over))
    try:
        _all(fill, lambda client, n: [client.append(name) for name in names[:DIRTY][n :: len(fill)]])
        progress(cluster.history, 50, until)
        leaver.signal(signal.SIGTERM)
        assert leaver.wait_dead() == 0
        until(lambda: len(took) >= len(mine), "each that was released is answered")
    finally:
        over.set()
        for _ in pickers:
            seen.told.put(None)
        for thread in (*picking, *hammering):
            thread.join()
    assert [op.attempts[-1] for op in cluster.operations() if op.outcome == "unknown"] == []
    calls, since = sorted(call for call, _ in took), sorted(since for _, since in took)
    print(
        f"\n{len(took)} releases, {DIRTY} dirty: a call after it takes {_told(calls)}, within {SOON_SECS} s"
        f" {sum(one <= SOON_SECS for one in calls) / len(calls):.0%}; all asked by {PICKERS}, {_told(since)} after it"
    )
    assert statistics.median(calls) <= SLACK * SOON_SECS


def _told(times: list[float]) -> str:
    return f"{statistics.median(times):.3f} s (median), {times[int(0.95 * (len(times) - 1))]:.3f} (p95)"


def _hammer(client: RovingClient, names: list[str], over: threading.Event) -> None:
    """Calls without a key, so that each is sent once."""
    while not over.is_set():
        for name in names:
            client.append(name, keyed=False)


def _begin(clients: Sequence[RovingClient], work: Callable[[RovingClient, int], object]) -> list[threading.Thread]:
    threads = [threading.Thread(target=work, args=(client, n)) for n, client in enumerate(clients)]
    for thread in threads:
        thread.start()
    return threads


def _all(clients: Sequence[RovingClient], work: Callable[[RovingClient, int], object]) -> None:
    for thread in _begin(clients, work):
        thread.join()


def _b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
