"""Alarms and schedules of real processes whose home is killed: the supervisor lives and says so (section 9)."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from etcd_servers import until
from up_cluster import WAIT_SECS, UpCluster

SWEEP_SECS = 3.0
SLACK_SECS = 4.0  # for a takeover and polls; a machine that is busy needs more
SLACK_CALLS = 20
NAMES = ("n1", "n2", "n3")
MINUTE_MS = 60_000
TICK = "/v1/s.app/objects/Cron/tick"
APP = """
import os, time
from domicile import Object, cron

class Bell(Object):
    def arm(self, when: str) -> None:
        self.set_alarm(when)

    def on_alarm(self) -> None:
        self.kv.put("rung", [*self.rung(), time.time()])

    def rung(self) -> list[float]:
        return self.kv.get("rung", [])

@cron("* * * * *")
def tick():
    with open(os.environ["TICKS"], "a") as ticks:
        ticks.write(f"{time.time()} {os.getpid()}\\n")
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpCluster]:
    folder = tmp_path_factory.mktemp("schedules")
    env = {"OBJECT_SWEEP_SECS": str(SWEEP_SECS), "TICKS": str(folder / "ticks")}
    running = UpCluster(folder, APP, "--nodes", "3", **env)
    yield running
    running.end()


def kill_home(cluster: UpCluster, node_id: str) -> tuple[str, int]:
    """The node's process alone; its name and its process id."""
    name = cluster.named(node_id)
    pid = cluster.node(name)["pid"]
    os.kill(pid, signal.SIGKILL)
    return name, pid


def test_an_alarm_of_a_killed_home_rings_within_two_sweeps(cluster: UpCluster) -> None:
    """Nobody calls it: it rings once, no later than OBJECT_SWEEP_SECS and one sweep after it is due."""
    cluster.call("n2", "Bell", "a", "arm", "3s")
    due = time.time() + 3
    home, _ = kill_home(cluster, cluster.described("n2", "Bell", "a")["node"])
    other = next(name for name in NAMES if name != home)
    asked = time.monotonic()
    cluster.call(other, "Bell", "another", "rung")
    slack = SLACK_SECS + SLACK_CALLS * (time.monotonic() - asked)

    def rang() -> bool:
        seen = cluster.described(other, "Bell", "a")
        return bool(seen) and seen["alarm_due"] is None

    until(rang, WAIT_SECS, "it rang, by its row")
    (at,) = cluster.call(other, "Bell", "a", "rung")
    print(f"it rang {at - due:.2f} s after it was due; a sweep is {SWEEP_SECS} s, slack {slack:.1f} s")
    assert due - 0.2 < at < due + 2 * SWEEP_SECS + slack


@pytest.mark.timeout(400)
def test_a_schedule_whose_home_is_killed_fires_once_an_occurrence(cluster: UpCluster) -> None:
    """Listed under its script through every node, it fires on another node for the occurrence after its home's death,
    and each minute has one run."""
    status(cluster)
    ticks = Path(cluster.env["TICKS"])
    runs = until(lambda: ran(ticks), 2 * WAIT_SECS, "it fired")
    listed = [cluster.ask("GET", name, "/v1/s.app/objects")[1]["objects"] for name in NAMES]
    assert [[(one["class"], one["name"]) for one in page] for page in listed] == [[("Cron", "tick")]] * 3
    _, pid = kill_home(cluster, cluster.ask("GET", "n1", TICK)[1]["node"])
    assert runs[-1][1] == pid, "it ran at its home"
    runs = until(lambda: len(now := ran(ticks)) > len(runs) and now, 3 * WAIT_SECS, "it fired again")
    said = until(lambda: (now := status(cluster))["runs"] == len(ran(ticks)) and now, WAIT_SECS, "it counts what ran")
    assert runs[-1][1] != pid, "another process ran it"
    minutes = Counter(int(at // 60) for at, _ in ran(ticks))
    print(
        f"{said['runs']} runs; of each minute: {dict(minutes)}; each {[round(at % 60, 2) for at, _ in runs]} s after it"
    )
    assert set(minutes.values()) == {1}
    assert said["next_ms"] == said["occurrence_ms"] + MINUTE_MS


def status(cluster: UpCluster) -> dict[str, Any]:
    """What the schedule says of itself, asked until somebody answers."""

    def asked() -> list[Any]:
        for name in NAMES:
            code, found = cluster.ask("POST", name, f"{TICK}/status", [])
            if code == 200:
                return [found]
        return []

    found: dict[str, Any] = until(asked, WAIT_SECS, "the schedule answers")[0]
    return found


def ran(ticks: Path) -> list[tuple[float, int]]:
    """When it ran, and in which process."""
    lines = ticks.read_text().splitlines() if ticks.exists() else []
    return [(float(at), int(pid)) for at, pid in map(str.split, lines)]
