"""`domicile up`: a cluster on this machine from real parts: etcd, Temporal, and nodes as in production (API, "CLI").

Under the directory: `etcd/` who owns what, `blobs/` the store, `nodes/nX/` a node's own files, `control/` and
`temporal.db` what operations need, `secret` what nodes prove to each other, `cluster.json` addresses and process ids as
they are now. With `--regions` these three are under each region's name, and `etcd/` has the control keyspace alone, so
that a region may be lost without it. Starting again on it resumes.

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
from domicile.cli.local_node import Place
from domicile.cli.local_operations import LocalOperations
from domicile.cli.local_ports import HOST, Ports
from domicile.cli.local_region import Layout, LocalRegion, said
from domicile.cli.output import Output
from domicile.node.setting import REGION
from domicile.node.supervisor import InUseError, lock_data

PORT = 8080
READY_SECS = 90.0
STOP_SECS = 60.0
LOOK_SECS = 0.25
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
    "DOMICILE_CONTROL",
    "DOMICILE_INGRESS",
    "DOMICILE_INGRESS_URL",
    "DOMICILE_CLUSTER_SECRET_FILE",
)
NO_APP = '''"""No classes of your own yet: databases only. `domicile up --app APP` serves yours."""\n'''


@dataclass(frozen=True)
class Up:
    """What the command line asked for. `app` and `port` are None when not given.

    `nodes` of each region; without `regions` there is one, that of the settings.
    """

    app: str | None
    nodes: int
    data: Path
    port: int | None
    control: bool = True
    regions: tuple[str, ...] = ()


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
        before, ports = _read(self._file), Ports()
        environ = settings.for_node({n: v for n, v in os.environ.items() if n not in GIVEN})
        layouts = _layouts(up, data, before, ports, environ)
        self._operations = LocalOperations(data, before, ports, environ, wanted=up.control)
        shared = {"DOMICILE_APP": app, "DOMICILE_CLUSTER_SECRET_FILE": str(_secret(data / "secret"))}
        shared |= self._operations.settings
        self._environ = environ
        self.regions = [LocalRegion(layout, environ, shared) for layout in layouts]
        for region in self.regions:
            settings.loaded({**environ, **region.settings})
        control = layouts[0].control
        self._control = LocalEtcd(data / "etcd", (_port_of(control), ports.take())) if control else None
        self.nodes = [node for region in self.regions for node in region.nodes]

    def start(self, stop: threading.Event, output: Output) -> None:
        """Returns when every node serves and knows of all the others of its region, or `stop` is set."""
        self._operations.begin()
        if self._control is not None:
            self._control.wait_ready(stop.is_set)
        for region in self.regions:
            region.start(stop.is_set)
        self._operations.start({**self._environ, **self.regions[0].settings}, stop.is_set)
        end = time.monotonic() + READY_SECS
        while not stop.wait(LOOK_SECS):
            late = [name for region in self.regions for name in region.late(len(self.regions))]
            self._write()
            if not late and self._operations.ready():
                break
            for node in self.nodes:
                if not node.retry_in_use() and (code := node.exit_code()) is not None:
                    raise CliError(f"node {node.place.name} ended with exit code {code}: see {node.log}", Exit.FAILED)
            if time.monotonic() > end:
                raise CliError(
                    f"not ready after {READY_SECS:g} s: {', '.join(late or ['control'])}; see the log", Exit.FAILED
                )
        self._write()

    def tell(self, output: Output) -> None:
        """The document with --json, else what to try."""
        if output.as_json:
            output.value(self.document())
            return
        for region in self.regions:
            region.tell(output)
        first = self.nodes[0].place.url
        if self._control is not None:
            output.say(f"control's etcd  {self._control.endpoint}  pid {self._control.pid}  {self._data / 'etcd'}")
        self._operations.tell(output)
        output.say(f"\nApp {self._app}. Addresses and pids, always as they are now: {self._file}")
        output.say("Call an object through any node, kill the one it lives on, and call it again:\n")
        output.say(f"  domicile call demo CLASS NAME METHOD '[]' --url {self.nodes[-1].place.url}")
        output.say(f"  domicile inspect demo CLASS NAME --url {first}")
        output.say(f"  domicile cluster --url {first}\n\nCtrl-C stops everything.")

    def look(self, output: Output) -> None:
        """Once in a while: keep etcd running, see who died and who came, and write that down."""
        if self._control is not None and self._control.keep() and not output.as_json:
            output.say("control's etcd died; it was started again")
        self._operations.look(output)
        for region in self.regions:
            region.look(output)
        self._write()

    def stop(self, output: Output) -> None:
        """Operations, then nodes, all at once, so that they release what they hold; then what they stand on."""
        self._operations.stop()
        for node in self.nodes:
            node.ask_to_end()
        end = time.monotonic() + STOP_SECS
        for node in self.nodes:
            node.end_within(end - time.monotonic())
        for etcd in self._etcds:
            etcd.stop()
        for node in self.nodes:
            node.look()
        self._write()
        output.say("stopped")

    def document(self) -> dict[str, Any]:
        """`cluster.json`."""
        etcds = self._etcds
        return {
            "nodes": [document for region in self.regions for document in region.node_documents()],
            **self._operations.document(),
            "etcd": {"endpoints": [etcd.endpoint for etcd in etcds], "pids": [etcd.pid for etcd in etcds if etcd.pid]},
            "regions": {region.name: region.document() for region in self.regions},
        }

    @property
    def _etcds(self) -> list[LocalEtcd]:
        """Control's first."""
        return [*filter(None, [self._control]), *(region.etcd for region in self.regions)]

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


def _layouts(up: Up, data: Path, before: Mapping[str, Any], ports: Ports, environ: Mapping[str, str]) -> list[Layout]:
    """Every region with its ports: those of last time where they are free."""
    names = _names(up.regions) or (said(environ, "REGION") or "local",)
    wanted, known = said(environ, "BLOBS"), before.get("regions", {})
    control = ""
    if up.regions:
        control = f"{HOST}:{ports.take(_last_port(before.get('etcd')))}"
    places = _places(up, data, before, ports)
    layouts = []
    for at, name in enumerate(names):
        folder = data / name if up.regions else data
        etcd = ports.take(_last_port(known.get(name, {}).get("etcd"))), ports.take()
        blobs = wanted or f"file:{folder / 'blobs'}"
        if wanted and up.regions:
            blobs = f"{wanted.rstrip('/')}/{name}"
        its = tuple(places[at * up.nodes : (at + 1) * up.nodes])
        layouts.append(Layout(name, folder, its, etcd, blobs, control))
    return layouts


def _names(regions: tuple[str, ...]) -> tuple[str, ...]:
    """Raises CliError for what is no region's name, or is there twice."""
    for name in regions:
        try:
            REGION.parse(name)
        except ValueError:
            raise CliError(f"{name!r} is no region's name: {REGION.allowed}", Exit.FAILED) from None
    if len(set(regions)) < len(regions):
        raise CliError("a region is named twice", Exit.FAILED)
    return regions


def _places(up: Up, data: Path, before: Mapping[str, Any], ports: Ports) -> list[Place]:
    """HTTP ports count up from `--port`; without it they are those of last time, or from 8080, or any free ones."""
    last = {node["name"]: _port_of(node["http"]) for node in before.get("nodes", [])}
    places: list[Place] = []
    for region in up.regions or ("",):
        for number in range(up.nodes):
            own = f"n{number + 1}"
            name, folder = (f"{region}-{own}", data / region / "nodes" / own) if region else (own, data / "nodes" / own)
            wanted = (up.port or PORT) + len(places)
            wanted = wanted if up.port else last.get(name, wanted)
            http = ports.fixed(wanted) if up.port else ports.take(wanted)
            if http is None:
                raise CliError(f"port {wanted} is taken", Exit.FAILED, "give another --port, or none to take free ones")
            places.append(Place(name, folder, http, 0))
    return [Place(place.name, place.folder, place.http, ports.take()) for place in places]


def _last_port(etcd: Mapping[str, Any] | None) -> int:
    """Of the first endpoint of an earlier run; 0: there was none."""
    return _port_of(etcd["endpoints"][0]) if etcd and etcd["endpoints"] else 0


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
