"""`domicile up`: a cluster on this machine from real parts: etcd, Temporal, and nodes as in production (API, "CLI").

Under the directory: `etcd/` who owns what, `blobs/` the store, `nodes/nX/` a node's own files, `control/` and
`temporal.db` what operations need, `secret` what nodes prove to each other, `cluster.json` addresses and process ids as
they are now. Starting again on it resumes.

A node whose supervisor is killed stays down, as a machine that was lost; its `start.sh` brings it back. Whatever was
started here dies with this command.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from domicile.cli import check, settings
from domicile.cli.failures import CliError, Exit
from domicile.cli.local_etcd import LocalEtcd
from domicile.cli.local_node import SCRIPT, LocalNode, Place
from domicile.cli.local_operations import LocalOperations
from domicile.cli.local_ports import HOST, Ports
from domicile.cli.output import Output
from domicile.node.supervisor import InUseError, lock_data

PORT = 8080
READY_SECS = 90.0
STOP_SECS = 60.0
LOOK_SECS = 0.25
REPLICAS_MAX, QUORUM_MAX = 3, 2
CLUSTER_FILE = "cluster.json"
SECRET_BYTES = 32
# A node's place is given to it; everything else the environment says of nodes stands.
GIVEN = (
    "DOMICILE_LISTEN",
    "DOMICILE_PEER_LISTEN",
    "DOMICILE_ADVERTISE",
    "DOMICILE_DATA",
    "DOMICILE_APP",
    "DOMICILE_PLACEMENT",
    "DOMICILE_CLUSTER_SECRET_FILE",
)
NO_APP = '''"""No classes of your own yet: databases only. `domicile up --app APP` serves yours."""\n'''


@dataclass(frozen=True)
class Up:
    """What the command line asked for. `app` and `port` are None when not given."""

    app: str | None
    nodes: int
    data: Path
    port: int | None
    control: bool = True


def run(up: Up, output: Output) -> None:
    """Returns when told to stop. Raises CliError when the app or settings are bad, or a part does not start."""
    data = up.data.resolve()
    app = _checked_app(up.app, data)
    try:
        lock_data(str(data))  # kept until this process ends
    except InUseError:
        raise CliError(f"another `domicile up` runs over {data}", Exit.FAILED, "stop it, or give --data") from None
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: stop.set())
    cluster = Cluster(up, app, data)
    try:
        cluster.start(stop, output)
        if not stop.is_set():
            cluster.tell(output)
        while not stop.wait(LOOK_SECS):
            cluster.look(output)
    finally:
        cluster.stop(output)


class Cluster:
    """The parts, from the first start to the last stop."""

    def __init__(self, up: Up, app: str, data: Path) -> None:
        self._app, self._data = app, data
        self._file = data / CLUSTER_FILE
        before = _read(self._file)
        ports = Ports()
        places = _places(up, data, before, ports)
        known = before.get("etcd", {}).get("endpoints", [])
        client = ports.take(_port_of(known[0]) if known else 0)
        environ = settings.for_node({n: v for n, v in os.environ.items() if n not in GIVEN})
        self._operations = LocalOperations(data, before, ports, environ, wanted=up.control)
        self._shared = _shared_settings(environ, app, data, len(places), f"{HOST}:{client}")
        self._shared |= self._operations.settings
        self._environ = environ
        settings.loaded({**environ, **self._shared})
        self.nodes = [LocalNode(place, environ, {**self._shared, **_own_settings(place)}) for place in places]
        self._down: set[str] = set()
        self._etcd = LocalEtcd(data / "etcd", (client, ports.take()))

    def start(self, stop: threading.Event, output: Output) -> None:
        """Returns when every node serves and knows of all the others, or `stop` is set."""
        self._operations.begin()
        self._etcd.wait_ready(stop.is_set)
        for node in self.nodes:
            node.start()
        self._operations.start({**self._environ, **self._shared}, stop.is_set)
        end = time.monotonic() + READY_SECS
        while not stop.wait(LOOK_SECS):
            self._write()
            all_know = all(node.look().node_id and node.peers >= len(self.nodes) for node in self.nodes)
            if all_know and self._operations.ready():
                break
            for node in self.nodes:
                if not node.retry_in_use() and (code := node.exit_code()) is not None:
                    raise CliError(f"node {node.place.name} ended with exit code {code}: see {node.log}", Exit.FAILED)
            if time.monotonic() > end:
                late = [node.place.name for node in self.nodes if node.peers < len(self.nodes)] or ["control"]
                raise CliError(f"not ready after {READY_SECS:g} s: {', '.join(late)}; see the log", Exit.FAILED)
        self._write()

    def tell(self, output: Output) -> None:
        """The document with --json, else what to try."""
        if output.as_json:
            output.value(self.document())
            return
        for node in self.nodes:
            output.say(f"{node.place.name}  {node.place.url}  pid {node.seen.pid}  {node.place.folder}")
        first = self.nodes[0].place.url
        output.say(f"etcd  {self._etcd.endpoint}  pid {self._etcd.pid}  {self._data / 'etcd'}")
        self._operations.tell(output)
        output.say(f"\nApp {self._app}. Addresses and pids, always as they are now: {self._file}")
        output.say("Call an object through any node, kill the one it lives on, and call it again:\n")
        output.say(f"  domicile call demo CLASS NAME METHOD '[]' --url {self.nodes[-1].place.url}")
        output.say(f"  domicile inspect demo CLASS NAME --url {first}")
        output.say(f"  domicile cluster --url {first}\n\nCtrl-C stops everything.")

    def look(self, output: Output) -> None:
        """Once in a while: keep etcd running, see who died and who came, and write that down."""
        if self._etcd.keep() and not output.as_json:
            output.say("etcd died; it was started again")
        self._operations.look(output)
        for node in self.nodes:
            name, gone = node.place.name, node.look().supervisor_pid is None
            if gone and name not in self._down:
                self._down.add(name)
                if not output.as_json:
                    output.say(f"{name} is down; {node.place.folder / SCRIPT} starts it again")
            elif not gone:
                self._down.discard(name)
        self._write()

    def stop(self, output: Output) -> None:
        """Operations, then nodes, all at once, so that they release what they hold; then what they stand on."""
        self._operations.stop()
        for node in self.nodes:
            node.ask_to_end()
        end = time.monotonic() + STOP_SECS
        for node in self.nodes:
            node.end_within(end - time.monotonic())
        self._etcd.stop()
        for node in self.nodes:
            node.look()
        self._write()
        output.say("stopped")

    def document(self) -> dict[str, Any]:
        """`cluster.json`."""
        region = self._shared["DOMICILE_REGION"]
        blobs = self._shared["DOMICILE_BLOBS"]
        return {
            "nodes": [
                {
                    "name": node.place.name,
                    "region": region,
                    "http": node.place.url,
                    "node_id": node.seen.node_id,
                    "copy_id": node.seen.copy_id,
                    "supervisor_pid": node.seen.supervisor_pid,
                    "pid": node.seen.pid,
                    "data": str(node.place.folder),
                }
                for node in self.nodes
            ],
            **self._operations.document(),
            "etcd": {"endpoints": [self._etcd.endpoint], "pids": [self._etcd.pid] if self._etcd.pid else []},
            "regions": {region: {"blobs": blobs, "ingress": self.nodes[0].place.url}},
        }

    def _write(self) -> None:
        """In one step, and only when something is new."""
        document = self.document()
        if document != _read(self._file):
            new = self._file.with_suffix(".new")
            new.write_text(json.dumps(document, indent=2) + "\n")
            new.replace(self._file)


def _checked_app(app: str | None, data: Path) -> str:
    """The app to serve. Raises CliError with what is wrong with it."""
    data.mkdir(parents=True, exist_ok=True)
    if app is None:
        (data / "app.py").write_text(NO_APP)
        return str(data / "app.py")
    if problems := check.examine(app)[0]:
        raise CliError(f"{app} cannot be served:\n    " + "\n    ".join(map(str, problems)), Exit.FAILED)
    path = Path(app)
    return str(path.resolve()) if path.exists() else app


def _places(up: Up, data: Path, before: Mapping[str, Any], ports: Ports) -> list[Place]:
    """HTTP ports count up from `--port`; without it they are those of last time, or from 8080, or any free ones."""
    last = {node["name"]: _port_of(node["http"]) for node in before.get("nodes", [])}
    places = []
    for number in range(up.nodes):
        name = f"n{number + 1}"
        wanted = (up.port or 0) + number if up.port else last.get(name, PORT + number)
        http = ports.fixed(wanted) if up.port else ports.take(wanted)
        if http is None:
            raise CliError(f"port {wanted} is taken", Exit.FAILED, "give another --port, or none to take free ones")
        places.append(Place(name, data / "nodes" / name, http, 0))
    return [Place(place.name, place.folder, place.http, ports.take()) for place in places]


def _shared_settings(environ: Mapping[str, str], app: str, data: Path, nodes: int, endpoint: str) -> dict[str, str]:
    """What all nodes are given. What the user's environment says of anything but their place stands."""
    replicas = min(REPLICAS_MAX, nodes - 1)
    defaults = {
        "DOMICILE_REGION": "local",
        "DOMICILE_BLOBS": f"file:{data / 'blobs'}",
        "DOMICILE_PROJECTS": "first-use",
        "OBJECT_REPLICAS": str(replicas),
        "OBJECT_QUORUM": str(min(QUORUM_MAX, replicas)),
    }
    said = {name: value for name in defaults if (value := _said(environ, name)) is not None}
    return {
        **defaults,
        **said,
        "DOMICILE_APP": app,
        "DOMICILE_PLACEMENT": f"etcd://{endpoint}",
        "DOMICILE_CLUSTER_SECRET_FILE": str(_secret(data / "secret")),
    }


def _said(environ: Mapping[str, str], name: str) -> str | None:
    return environ.get(name, environ.get(f"DOMICILE_{name}"))


def _own_settings(place: Place) -> dict[str, str]:
    return {
        "DOMICILE_DATA": str(place.folder),
        "DOMICILE_LISTEN": f"{HOST}:{place.http}",
        "DOMICILE_PEER_LISTEN": f"{HOST}:{place.peer}",
    }


def _secret(path: Path) -> Path:
    """Made once; only this user may read it."""
    if not path.exists():
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "w") as file:
            file.write(secrets.token_hex(SECRET_BYTES) + "\n")
    return path


def _read(path: Path) -> dict[str, Any]:
    """Of an earlier run; empty when there was none."""
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found


def _port_of(address: str) -> int:
    return int(address.rpartition(":")[2])
