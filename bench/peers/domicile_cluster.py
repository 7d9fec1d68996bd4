"""Domicile itself: three nodes and their etcd, as `domicile up` runs them."""

import json
import os
import signal
import sys
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from bench.load import EVERYWHERE, HOMES, OTHER, OWNER
from bench.peers.base import READY_SECONDS, HttpInstance, Instance
from bench.peers.domicile import Domicile
from bench.process import free_ports

if TYPE_CHECKING:
    from bench.load import Answers, Client, Load

NODES = 3
LOST_SECONDS = 90  # above a node's time to live


class DomicileCluster(Domicile):
    """The cluster of this repository, in the interpreter that runs the benchmarks."""

    title = "Domicile, three nodes, two replicas of each object"
    answer_means = (
        "both replicas (K = 2, Q = 2), on the two other nodes, have synced the frames to their journals; the owner's"
        " file is not synced, and the blob store, a directory, follows behind. No TLS between nodes on loopback; one"
        " etcd, asked for ownership only, not by calls"
    )
    restores_from_store = False
    many_nodes = True

    def environment(self, data: Path) -> Mapping[str, str]:
        return {"DOMICILE_OBJECT_REPLICAS": "2", "DOMICILE_OBJECT_QUORUM": "2"}

    def command(self, port: int, data: Path) -> Sequence[str]:
        app = Path(__file__).resolve().parent.parent / "app.py"
        up = [sys.executable, "-m", "domicile.cli.main", "up", "--app", str(app), "--nodes", str(NODES)]
        return [*up, "--port", str(port), "--data", str(data / "up"), "--json"]

    def start(self, data: Path) -> Instance:
        data.mkdir(parents=True, exist_ok=True)
        return ClusterInstance(self, data)


class SleepyCluster(DomicileCluster):
    """The same with objects that sleep after a second."""

    def environment(self, data: Path) -> Mapping[str, str]:
        return {**super().environment(data), "DOMICILE_OBJECT_IDLE_SECS": "1"}


class ClusterInstance(HttpInstance):
    """A running cluster. Node number i answers at the first port + i; objects are born at the node first called."""

    nodes = NODES
    idle_cores: ClassVar[float] = 0.25

    def _free_port(self) -> int:
        return free_ports(NODES)

    def _answers(self) -> bool:
        """Every node serves: each has its own object, and asks the others about them."""
        told = [node for node in self._document().get("nodes", []) if node["node_id"] and node["pid"]]
        if len(told) < NODES:
            return False
        return all(isinstance(self._ask("warm", "increment", (), False, READY_SECONDS, i), int) for i in range(NODES))

    def run(self, client: "Client", load: "Load") -> "Answers":
        every = [self.port + i for i in range(NODES)]
        ports = {OWNER: every[:1], OTHER: every[1:2], EVERYWHERE: every, HOMES: every}[load.at]
        return client.http(ports, self.peer.path(load.name, load.method, load.ballast), load)

    def roles(self, load: "Load") -> Mapping[str, Sequence[int]]:
        document = self._document()
        pids = [node["supervisor_pid"] for node in document["nodes"]]
        etcd = {"etcd": document["etcd"]["pids"]}
        if load.at in (HOMES, EVERYWHERE) and load.objects > 1:
            return {"node": pids, **etcd}  # each is owner of a third, and replica of the rest
        return {"owner": pids[:1], "replica": pids[1:], **etcd}

    def residents(self) -> int:
        """Objects awake at the first node, by its own count."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=READY_SECONDS) as answer:
            lines = answer.read().decode().splitlines()
        return sum(int(float(line.rsplit(" ", 1)[1])) for line in lines if line.startswith("domicile_residents{"))

    def lose_last_node(self) -> None:
        """As a machine is lost: supervisor and child at once. Returns when its row is gone, so that it is known."""
        last = self._document()["nodes"][-1]
        for pid in (last["supervisor_pid"], last["pid"]):
            os.kill(pid, signal.SIGKILL)
        self.server.wait_until(lambda: self._members() < NODES, LOST_SECONDS)

    def _members(self) -> int:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/v1/cluster", timeout=READY_SECONDS) as answer:
            return len(json.load(answer)["nodes"])

    def _document(self) -> Any:
        """Addresses and process ids as they are now; empty before the first are known."""
        try:
            return json.loads((self.data / "up" / "cluster.json").read_text())
        except FileNotFoundError:
            return {}
