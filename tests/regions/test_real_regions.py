"""`domicile up --regions a,b`: real etcd for each region and for control, real nodes, one command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from etcd_servers import until
from up_cluster import PORTS

WAIT_SECS = 60.0
APP = """
from domicile import Object, Region, cron

class Counter(Object):
    def add(self) -> int:
        self.kv.put("n", self.kv.get("n", 0) + 1)
        return self.kv.get("n")

class InB(Counter):
    placement = Region("b")

class OnMars(Counter):
    placement = Region("mars")

@cron("0 3 * * *")
def nightly():
    pass
"""


class Cluster:
    """The running command, and calls over HTTP."""

    def __init__(self, folder: Path) -> None:
        self.data = folder / "up"
        app = folder / "app.py"
        app.write_text(APP)
        kept = {n: v for n, v in os.environ.items() if not n.startswith(("DOMICILE_", "NODE_", "OBJECT_"))}
        self.said = (folder / "said").open("wb")
        command = ["up", "--regions", "a,b", "--nodes", "1", "--no-control", "--json", "--data", str(self.data), *PORTS]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "domicile.cli.main", *command, "--app", str(app)],
            cwd=folder,
            env={**kept, "DOMICILE_PROFILE": "fast"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self.said,
            text=True,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, (folder / "said").read_text()
        self.document: dict[str, Any] = json.loads(line)

    def now(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.data / "cluster.json").read_text())
        return found

    def node(self, region: str) -> dict[str, Any]:
        found: dict[str, Any] = next(node for node in self.now()["nodes"] if node["region"] == region)
        return found

    def get(self, region: str, path: str) -> Any:
        with urllib.request.urlopen(self.node(region)["http"] + path, timeout=20) as answer:
            body = answer.read()
        return json.loads(body) if body[:1] in b"{[" else body.decode()

    def call(self, through: str, cls: str, name: str, project: str = "acme") -> tuple[int, Any, str]:
        """Status, JSON and Domicile-Node of one `add`."""
        url = f"{self.node(through)['http']}/v1/{project}/objects/{cls}/{name}/add"
        request = urllib.request.Request(url, b"[]", {"Content-Type": "application/json"}, method="POST")
        try:
            with urllib.request.urlopen(request, timeout=40) as answer:
                return answer.status, json.loads(answer.read()), answer.headers["Domicile-Node"]
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read()), ""

    def hops(self, through: str) -> int:
        lines = self.get(through, "/metrics").splitlines()
        return sum(int(float(line.split()[-1])) for line in lines if line.startswith("domicile_region_hops_total{"))

    def etcd(self, at: int) -> int:
        """Process id: control's at 0, then the regions'."""
        pid: int = self.now()["etcd"]["pids"][at]
        return pid

    def end(self) -> None:
        self.process.send_signal(signal.SIGINT)
        self.process.wait(WAIT_SECS)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.said.close()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    running = Cluster(tmp_path_factory.mktemp("regions"))
    yield running
    running.end()


def test_every_region_has_parts_of_its_own(cluster: Cluster) -> None:
    """Nodes are named by region; etcd is there once a region and once for control; each region has its bucket."""
    document = cluster.document
    assert [(node["name"], node["region"]) for node in document["nodes"]] == [("a-n1", "a"), ("b-n1", "b")]
    regions = document["regions"]
    assert [regions[name]["blobs"] for name in "ab"] == [f"file:{cluster.data / name / 'blobs'}" for name in "ab"]
    assert [regions[name]["ingress"] for name in "ab"] == [node["http"] for node in document["nodes"]]
    apart = [regions[name]["etcd"]["endpoints"][0] for name in "ab"]
    assert document["etcd"]["endpoints"][1:] == apart
    assert len(set(document["etcd"]["pids"])) == 3
    for through in "ab":
        assert [region["name"] for region in cluster.get(through, "/v1/cluster")["regions"]] == ["a", "b"]


def test_a_call_through_the_other_region_is_one_hop(cluster: Cluster) -> None:
    """A project born in a, called through b: one hop, counted by metric, answered by a's node."""
    assert cluster.call("a", "Counter", "x")[:2] == (200, 1)
    before = cluster.hops("b"), cluster.hops("a")
    assert cluster.call("b", "Counter", "x") == (200, 2, cluster.node("a")["node_id"])
    assert (cluster.hops("b"), cluster.hops("a")) == (before[0] + 1, before[1])
    assert cluster.get("b", "/v1/acme/objects/Counter/x")["region"] == "a"


def test_pins_and_standins(cluster: Cluster) -> None:
    """A pinned class lives in its region; one pinned to nowhere has one home, whoever is asked."""
    assert [cluster.call(through, "InB", "x")[1:] for through in "ab"] == [
        (n, cluster.node("b")["node_id"]) for n in (1, 2)
    ]
    first, second = cluster.call("b", "OnMars", "x"), cluster.call("a", "OnMars", "x")
    assert (first[1], second[1], first[2]) == (1, 2, second[2])
    assert cluster.get("a", "/v1/cluster")["standins"] == {"mars": "b"}


def test_the_schedule_is_listed_once(cluster: Cluster) -> None:
    """Both regions load the app; its schedule is one object under its script."""
    for through in "ab":
        path = "/v1/s.app/objects"
        until(
            lambda through=through, path=path: cluster.get(through, path)["objects"], WAIT_SECS, "the schedule is there"
        )
        assert [(one["class"], one["name"]) for one in cluster.get(through, path)["objects"]] == [("Cron", "nightly")]


def test_control_away(cluster: Cluster) -> None:
    """Its etcd stands still: known projects route and are born, unknown ones are `not_serving`."""
    assert cluster.call("a", "Counter", "x")[0] == 200
    os.kill(cluster.etcd(0), signal.SIGSTOP)
    try:
        assert cluster.call("b", "Counter", "born")[:2] == (200, 1)
        assert cluster.call("a", "InB", "born")[:2] == (200, 1)
        status, problem, _ = cluster.call("b", "Counter", "x", project="unknown")
        assert (status, problem["code"], problem["retryable"]) == (503, "not_serving", True)
    finally:
        os.kill(cluster.etcd(0), signal.SIGCONT)


def test_a_region_is_lost_and_comes_back(cluster: Cluster) -> None:
    """Its nodes and its etcd die: it stays down, the other goes on; its start script brings it back with its etcd."""
    b = cluster.node("b")
    os.kill(b["supervisor_pid"], signal.SIGKILL)
    until(lambda: cluster.node("b")["supervisor_pid"] is None, WAIT_SECS, "b's node is seen to be down")
    os.kill(cluster.etcd(2), signal.SIGKILL)
    until(lambda: len(cluster.now()["etcd"]["pids"]) == 2, WAIT_SECS, "b's etcd is down")
    assert cluster.call("a", "Counter", "alone")[:2] == (200, 1)
    status, problem, _ = cluster.call("a", "InB", "x")
    assert (status, problem["retryable"]) == (503, True)
    with subprocess.Popen([f"{b['data']}/start.sh"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as again:
        try:
            until(lambda: cluster.call("a", "InB", "x")[0] == 200, WAIT_SECS, "b serves again")
            assert cluster.call("a", "InB", "x")[1] > 3
        finally:
            again.terminate()
