"""`domicile up --regions a,b`: real etcd for each region and for control, real nodes, one command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from etcd_servers import until
from up_cluster import WAIT_SECS, UpCluster

NODES = ("a-n1", "b-n1")
A, B = NODES
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


class Cluster(UpCluster):
    """Calls through the node of a region, which is named by it."""

    def add(self, through: str, cls: str, name: str, project: str = "acme") -> tuple[int, Any, str]:
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


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("regions")
    running = Cluster(folder, APP, "--regions", "a,b", "--nodes", "1", "--no-control")
    yield running
    running.end()


def test_every_region_has_parts_of_its_own(cluster: Cluster) -> None:
    """Nodes are named by region; etcd is there once a region and once for control; each region has its bucket."""
    document = cluster.first
    assert [(node["name"], node["region"]) for node in document["nodes"]] == [(A, "a"), (B, "b")]
    regions = document["regions"]
    assert [regions[name]["blobs"] for name in "ab"] == [f"file:{cluster.data / name / 'blobs'}" for name in "ab"]
    assert [regions[name]["ingress"] for name in "ab"] == [node["http"] for node in document["nodes"]]
    apart = [regions[name]["etcd"]["endpoints"][0] for name in "ab"]
    assert document["etcd"]["endpoints"][1:] == apart
    assert len(set(document["etcd"]["pids"])) == 3

    def listed(through: str) -> list[str]:
        return [region["name"] for region in cluster.get(through, "/v1/cluster")["regions"]]

    for through in NODES:
        until(lambda through=through: listed(through) == ["a", "b"], WAIT_SECS, "it knows both regions")


def test_a_call_through_the_other_region_is_one_hop(cluster: Cluster) -> None:
    """A project born in a, called through b: one hop, counted by metric, answered by a's node."""
    assert cluster.add(A, "Counter", "x")[:2] == (200, 1)
    before = cluster.hops(B), cluster.hops(A)
    assert cluster.add(B, "Counter", "x") == (200, 2, cluster.node(A)["node_id"])
    assert (cluster.hops(B), cluster.hops(A)) == (before[0] + 1, before[1])
    assert cluster.get(B, "/v1/acme/objects/Counter/x")["region"] == "a"


def test_pins_and_standins(cluster: Cluster) -> None:
    """A pinned class lives in its region; one pinned to nowhere has one home, whoever is asked."""
    assert [cluster.add(through, "InB", "x")[1:] for through in NODES] == [
        (n, cluster.node(B)["node_id"]) for n in (1, 2)
    ]
    first, second = cluster.add(B, "OnMars", "x"), cluster.add(A, "OnMars", "x")
    assert (first[1], second[1], first[2]) == (1, 2, second[2])
    assert cluster.get(A, "/v1/cluster")["standins"] == {"mars": "b"}


def test_the_schedule_is_listed_once(cluster: Cluster) -> None:
    """Both regions load the app; its schedule is one object under its script."""
    for through in NODES:
        path = "/v1/s.app/objects"
        until(
            lambda through=through, path=path: cluster.get(through, path)["objects"], WAIT_SECS, "the schedule is there"
        )
        assert [(one["class"], one["name"]) for one in cluster.get(through, path)["objects"]] == [("Cron", "nightly")]


def test_control_away(cluster: Cluster) -> None:
    """Its etcd stands still: known projects route and are born, unknown ones are `not_serving`."""
    assert cluster.add(A, "Counter", "x")[0] == 200
    os.kill(cluster.etcd(0), signal.SIGSTOP)
    try:
        assert cluster.add(B, "Counter", "born")[:2] == (200, 1)
        assert cluster.add(A, "InB", "born")[:2] == (200, 1)
        status, problem, _ = cluster.add(B, "Counter", "x", project="unknown")
        assert (status, problem["code"], problem["retryable"]) == (503, "not_serving", True)
    finally:
        os.kill(cluster.etcd(0), signal.SIGCONT)


def test_a_region_is_lost_and_comes_back(cluster: Cluster) -> None:
    """Its nodes and its etcd die: it stays down, the other goes on; its start script brings it back with its etcd."""
    b = cluster.node(B)
    os.kill(b["supervisor_pid"], signal.SIGKILL)
    until(lambda: cluster.node(B)["supervisor_pid"] is None, WAIT_SECS, "b's node is seen to be down")
    os.kill(cluster.etcd(2), signal.SIGKILL)
    until(lambda: len(cluster.now()["etcd"]["pids"]) == 2, WAIT_SECS, "b's etcd is down")
    assert cluster.add(A, "Counter", "alone")[:2] == (200, 1)
    status, problem, _ = cluster.add(A, "InB", "x")
    assert (status, problem["retryable"]) == (503, True)
    with subprocess.Popen([f"{b['data']}/start.sh"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as again:
        try:
            until(lambda: cluster.add(A, "InB", "x")[0] == 200, WAIT_SECS, "b serves again")
            assert cluster.add(A, "InB", "x")[1] > 3
        finally:
            again.terminate()
