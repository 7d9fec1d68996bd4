"""A cluster of real processes: etcd, nodes, one blob store, and a wire before each listener where drills want that."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import secrets
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from crashkit.bucket import in_directory, restored
from crashkit.oracle import check_cold, check_heard, check_live
from crashkit.process import NodeProcess, until
from crashkit.s3 import S3
from etcd_servers import Etcd
from living import alive
from ports import free_port
from simworld.history import History, Operation

from clusterkit.clients import RovingClient, RovingLoad
from clusterkit.wires import Wire
from domicile.node.config import load
from domicile.placement.keys import Keys

ETCD_FLAGS = ("--heartbeat-interval", "50", "--election-timeout", "250")
ETCDS_FLAGS = ("--heartbeat-interval", "100", "--election-timeout", "600")
QUICK = {
    "DOMICILE_PROFILE": "fast",
    "DOMICILE_CALL_DEADLINE_SECS": "12",
    "OBJECT_CALL_SECS": "5",
    "OBJECT_IDLE_SECS": "60",
    "OBJECT_JOURNAL_MB": "16",
}
ERAS = 1000
EVICTED_SECS = 3.0  # admission and margin of PROFILE=fast


class Node(NodeProcess):
    """One of a cluster. `peer` leads to its peer listener, `etcd` to the placement store, `store` to a bucket; None
    without wires."""

    @property
    def wires(self) -> list[Wire]:
        return [wire for wire in (self.peer, self.etcd, self.store) if wire is not None]

    def __init__(self, name: str, where: Path, settings: dict[str, str]) -> None:
        super().__init__(where, settings)
        self.name = name
        self.peer: Wire | None = None
        self.etcd: Wire | None = None
        self.store: Wire | None = None

    def up(self) -> None:
        """Start it under its supervisor."""
        self.start(supervised=True)

    def kill_child(self) -> None:
        """The node's process dies; its supervisor lives."""
        os.kill(self.serving_pid(), signal.SIGKILL)

    def lose_machine(self) -> None:
        """Supervisor and child die at once, and nobody says so to anyone."""
        family = [self.pid, *self.children()]
        for pid in family:
            os.kill(pid, signal.SIGSTOP)  # so that the supervisor does not see its child die
        for pid in family:
            os.kill(pid, signal.SIGKILL)
        self.wait_dead()
        until(lambda: not any(alive(pid) for pid in family), "all of it is dead")

    def pause(self) -> None:
        os.kill(self.serving_pid(), signal.SIGSTOP)

    def go_on(self) -> None:
        os.kill(self.serving_pid(), signal.SIGCONT)

    def forget(self, folder: str) -> None:
        """Lose `objects/` or `replicas/`; the node is down."""
        shutil.rmtree(self.data / folder, ignore_errors=True)

    @contextlib.contextmanager
    def slow_disk(self, secs: float) -> Iterator[None]:
        """Meanwhile each sync of the node's process takes so much longer. Needs strace, and the right to trace."""
        calls = "pwritev2,fsync,fdatasync"
        inject = f"inject={calls}:delay_exit={int(secs * 1e6)}"
        command = ["strace", "-f", "-q", "-o", "/dev/null", "-e", f"trace={calls}", "-e", inject]
        with subprocess.Popen([*command, "-p", str(self.serving_pid())]) as tracer:
            try:
                until(lambda: tracer.poll() is not None or self.is_traced(), "strace has attached")
                assert tracer.poll() is None, "strace may not trace"
                yield
            finally:
                tracer.terminate()

    def is_traced(self) -> bool:
        """Whether somebody traces the node's process."""
        status = Path(f"/proc/{self.serving_pid()}/status").read_text()
        return "TracerPid:\t0\n" not in status

    def get(self, path: str, secs: float = 5.0) -> tuple[dict[str, str], Any] | None:
        """Headers and JSON of a GET; None when there is no answer of 200."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=secs)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            body = json.loads(answer.read())
            return (dict(answer.headers), body) if answer.status == 200 else None
        except (OSError, http.client.HTTPException, ValueError):
            return None
        finally:
            connection.close()

    def node_id(self) -> str | None:
        found = self.get("/healthz", 1.0)
        return found[0]["domicile-node"] if found else None

    def sees(self) -> set[str]:
        """The node ids it knows to serve, and to keep copies."""
        found = self.get("/v1/cluster", 1.0)
        nodes = found[1]["nodes"] if found else []
        return {node["node_id"] for node in nodes if node["state"] == "serving" and node["copy_id"]}


class Cluster:
    """`count` nodes with K and Q as `domicile up` gives them. `history` is of all clients; `check` holds it."""

    def __init__(
        self,
        where: Path,
        *,
        count: int = 3,
        settings: dict[str, str] | None = None,
        wired: bool = False,
        etcds: int = 1,
        etcd: Etcd | None = None,
        s3: S3 | None = None,
    ) -> None:
        self.where = where
        self.history = History()
        self._clients: list[RovingClient] = []
        self._loads: list[RovingLoad] = []
        self._drill = self._began = 0
        self.etcd = etcd or Etcd(where / "etcd", etcds, ETCD_FLAGS if etcds == 1 else ETCDS_FLAGS)
        self._settings = {**QUICK, **self._places(count), **(settings or {})}
        self.nodes = [Node(f"n{n + 1}", where / f"n{n + 1}", {}) for n in range(count)]
        self._bucket = s3.look if s3 is not None else in_directory(where / "blobs")
        for node in self.nodes:
            self._place(node, wired)
            if s3 is not None:
                node.store = Wire(("127.0.0.1", s3.wire.port))
                node.settings |= s3.settings | {"DOMICILE_BLOBS_ENDPOINT": f"http://127.0.0.1:{node.store.port}"}

    def _places(self, count: int) -> dict[str, str]:
        self.where.mkdir(parents=True, exist_ok=True)
        secret = self.where / "secret"
        secret.write_text(secrets.token_hex(32))
        copies = min(3, count - 1)
        return {
            "DOMICILE_BLOBS": f"file:{self.where / 'blobs'}",
            "DOMICILE_CLUSTER_SECRET_FILE": str(secret),
            "OBJECT_REPLICAS": str(copies),
            "OBJECT_QUORUM": str(min(2, copies)),
        }

    def _place(self, node: Node, wired: bool) -> None:
        peer, store = f"127.0.0.1:{free_port()}", ",".join(self.etcd.endpoints)
        node.settings |= self._settings | {"DOMICILE_PEER_LISTEN": peer}
        if wired:
            node.peer = Wire(_address(peer), self._speakers)
            node.etcd = Wire(_address(store))  # of one member: drills cut the node off, not one endpoint
            node.settings["DOMICILE_ADVERTISE"] = f"127.0.0.1:{node.peer.port}"
            store = f"127.0.0.1:{node.etcd.port}"
        self.lead_to(node, store.split(","))

    def lead_to(self, node: Node, endpoints: list[str]) -> None:
        """The node's way to etcd from its next start on."""
        node.settings["DOMICILE_PLACEMENT"] = f"etcd://{','.join(endpoints)}"
        config = load(node.settings).config
        root = Keys(config.cluster, config.region).root
        node.registrar = {"access": {"endpoints": endpoints}, "root": root, "ttl_secs": config.node_ttl_secs}

    def _speakers(self) -> dict[str, int]:
        return {node.name: node.serving_pid() for node in self.running()}

    # Beginning and end.

    def start(self) -> None:
        self.etcd.start()
        for node in self.nodes:
            node.up()
        self.settle()

    def load(self, *, clients: int = 4, seed: int = 1) -> RovingLoad:
        """Clients that use all nodes until its `finish`."""
        ports, number = [node.port for node in self.nodes], len(self._loads) + 1
        load = RovingLoad(f"l{number}", ports, self.history, clients=clients, seed=seed)
        load.era = ERAS * number
        self._loads.append(load)
        return load.start()

    # Drills that share the cluster.

    def end_loads(self) -> None:
        """Those of a drill that failed, too: they would go on under the next."""
        for begun in self._loads:
            begun.finish()

    def begin_drill(self) -> None:
        """From here on `fresh` names and `operations` are another drill's."""
        self._drill += 1
        self._began = len(self.history.operations)

    def fresh(self, name: str) -> str:
        """A name no other drill uses."""
        return f"{name}-{self._drill}"

    def operations(self) -> list[Operation]:
        """Of this drill."""
        return self.history.operations[self._began :]

    def make_whole(self) -> None:
        """All wires, etcd and all nodes as at the start."""
        self.heal()
        member = self.etcd.members[0]
        if member.process is None:
            self.etcd.restart(member)
        for node in self.nodes:
            if node not in self.running():
                node.up()
            else:
                node.go_on()
        self.settle()

    def check_live(self) -> None:
        """What clients saw, against the promises."""
        check_live(self.history)
        check_heard(self.history)

    def running(self) -> list[Node]:
        return [node for node in self.nodes if node.process is not None and node.process.poll() is None]

    def settle(self) -> None:
        """Until all that run serve and know each other."""
        nodes = self.running()

        def settled() -> bool:
            known = {node.node_id() for node in nodes}
            return None not in known and all(node.is_ready() and node.sees() == known for node in nodes)

        try:
            until(settled, "all nodes know each other")
        except AssertionError as error:
            told = [f"{node.name} sees {node.sees()} and says:\n{node.said()[-1500:]}" for node in nodes]
            raise AssertionError("\n".join([str(error), *told])) from error

    def stop(self) -> None:
        """In order, all at once; then the bucket alone holds all that was answered."""
        nodes = self.running()
        for node in nodes:
            node.signal(signal.SIGTERM)
        assert [node.wait_dead() for node in nodes] == [0] * len(nodes)

    def wake_all(self) -> None:
        """Every object answers. What a dead home had not shipped is then shipped by the next."""
        reader = self.client("reader")
        told = {name: reader.read(name).outcome for name in self.history.of_objects()}
        silent = {name: outcome for name, outcome in told.items() if outcome not in ("answered", "absent")}
        assert not silent, f"these do not answer: {silent}"

    def check(self) -> None:
        """Stop, and hold everything clients saw against the promises and against the bucket."""
        self.wake_all()
        self.stop()
        check_cold(self.history, restored(self._bucket))
        self.check_live()

    def abandon(self) -> None:
        """Whatever happened: nothing is left running."""
        for client in self._clients:
            client.close()
        for node in self.nodes:
            if node.process is not None and node.process.poll() is None:
                for pid in (node.pid, *node.children()):
                    os.kill(pid, signal.SIGCONT)
            node.kill()
            for wire in node.wires:
                wire.close()
        self.etcd.stop()

    # Who is where.

    def client(self, name: str, first: int = 0, patience_secs: float = 60.0) -> RovingClient:
        """One that asks node `first`, and another when that is not there."""
        name = f"{name}{len(self._clients)}"  # what clients write is told apart by their names
        client = RovingClient(name, [node.port for node in self.nodes], self.history, first, patience_secs)
        self._clients.append(client)
        return client

    def home(self, name: str) -> Node:
        """The node where the probe `name` is awake."""
        found: list[Node] = until(lambda: self._home(name), f"{name} is awake somewhere")
        return found[0]

    def _home(self, name: str) -> list[Node]:
        ids = {node.node_id(): node for node in self.running()}
        for node in self.running():
            about = node.get(f"/v1/drill/objects/Probe/{name}")
            if about and about[1]["resident"] and about[1]["node"] in ids:
                return [ids[about[1]["node"]]]
        return []

    def about(self, name: str) -> dict[str, Any]:
        """What the object's home says of it."""
        found = self.home(name).get(f"/v1/drill/objects/Probe/{name}")
        assert found is not None
        about: dict[str, Any] = found[1]
        return about

    def others(self, node: Node) -> list[Node]:
        return [other for other in self.nodes if other is not node]

    # The wires.

    def isolate(self, node: Node, *, etcd: bool = False) -> None:
        """Cut the node from all other nodes, both ways, and from etcd if asked."""
        for other in self.others(node):
            assert other.peer is not None
            other.peer.bar(node.name)
        assert node.peer is not None
        node.peer.down()
        if etcd:
            self.cut_etcd(node)

    def cut_etcd(self, node: Node) -> None:
        assert node.etcd is not None
        node.etcd.down()

    def heal(self) -> None:
        for node in self.nodes:
            for wire in node.wires:
                wire.admit()
                wire.held = False
                if wire.is_down:
                    wire.up()


def _address(text: str) -> tuple[str, int]:
    host, port = text.split(":")
    return host, int(port)


def waits(secs: float) -> None:
    """Time is the matter of some drills: a deadline must pass."""
    threading.Event().wait(secs)


def shuffled(rng: random.Random, nodes: list[Node]) -> list[Node]:
    return rng.sample(nodes, len(nodes))
