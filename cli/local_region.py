"""One region of a local cluster: an etcd, a bucket, and nodes that know nothing of the next region's but its ingress.

A cluster of one region has its parts right under the data directory; of several, each under a directory of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from domicile.cli.local_etcd import LocalEtcd
from domicile.cli.local_node import SCRIPT, LocalNode, Place
from domicile.cli.local_ports import HOST
from domicile.cli.output import Output

REPLICAS_MAX, QUORUM_MAX = 3, 2


@dataclass(frozen=True)
class Layout:
    """Where a region's parts are. `control`: the endpoint of the control keyspace's own etcd; empty: in this one's.

    `blobs` is the bucket as the settings name it; `etcd` the ports for clients and for other members.
    """

    name: str
    folder: Path
    places: tuple[Place, ...]
    etcd: tuple[int, int]
    blobs: str
    control: str = ""


class LocalRegion:
    """Not started yet. `shared` is what nodes of all regions are given, `environ` the rest of their environment."""

    def __init__(self, layout: Layout, environ: Mapping[str, str], shared: Mapping[str, str]) -> None:
        self.name = layout.name
        self._layout = layout
        self._down: set[str] = set()
        layout.folder.mkdir(parents=True, exist_ok=True)
        self.etcd = LocalEtcd(layout.folder / "etcd", layout.etcd)
        self.settings = {**_settings(layout, environ), **shared, **_placed(layout)}
        self.nodes = [LocalNode(place, environ, {**self.settings, **_own_settings(place)}) for place in layout.places]

    def start(self, stopped: Callable[[], bool]) -> None:
        """Raises CliError when etcd does not start."""
        self.etcd.wait_ready(stopped)
        for node in self.nodes:
            node.start()

    def late(self, regions: int) -> list[str]:
        """Nodes that do not serve yet, or do not know of all the others, or of so many regions."""
        return [
            node.place.name
            for node in self.nodes
            if not node.look().node_id or node.peers < len(self.nodes) or node.regions < regions
        ]

    def look(self, output: Output) -> None:
        """Keep etcd running, see who died and who came.

        Of several regions one may be lost as a whole: without a node its etcd stays down too, until one is back.
        """
        lost = bool(self._layout.control) and len(self._down) == len(self.nodes)
        if not lost and self.etcd.keep() and not output.as_json:
            output.say("etcd died; it was started again")
        for node in self.nodes:
            name, gone = node.place.name, node.look().supervisor_pid is None
            if gone and name not in self._down:
                self._down.add(name)
                if not output.as_json:
                    output.say(f"{name} is down; {node.place.folder / SCRIPT} starts it again")
            elif not gone:
                self._down.discard(name)

    def tell(self, output: Output) -> None:
        """Where its parts are."""
        for node in self.nodes:
            output.say(f"{node.place.name}  {node.place.url}  pid {node.seen.pid}  {node.place.folder}")
        output.say(f"etcd  {self.etcd.endpoint}  pid {self.etcd.pid}  {self._layout.folder / 'etcd'}")

    def document(self) -> dict[str, Any]:
        """Its entry in `cluster.json`."""
        etcd = {"endpoints": [self.etcd.endpoint], "pids": [self.etcd.pid] if self.etcd.pid else []}
        return {"blobs": self.settings["DOMICILE_BLOBS"], "ingress": self.nodes[0].place.url, "etcd": etcd}

    def node_documents(self) -> list[dict[str, Any]]:
        """Its nodes' entries."""
        return [
            {
                "name": node.place.name,
                "region": self.name,
                "http": node.place.url,
                "node_id": node.seen.node_id,
                "copy_id": node.seen.copy_id,
                "supervisor_pid": node.seen.supervisor_pid,
                "pid": node.seen.pid,
                "data": str(node.place.folder),
            }
            for node in self.nodes
        ]


def said(environ: Mapping[str, str], name: str) -> str | None:
    """A setting of the user's environment, bare or with its prefix."""
    return environ.get(name, environ.get(f"DOMICILE_{name}"))


def _settings(layout: Layout, environ: Mapping[str, str]) -> dict[str, str]:
    """What the user's environment says of these stands."""
    replicas = min(REPLICAS_MAX, len(layout.places) - 1)
    defaults = {
        "DOMICILE_PROJECTS": "first-use",
        "OBJECT_REPLICAS": str(replicas),
        "OBJECT_QUORUM": str(min(QUORUM_MAX, replicas)),
    }
    return {name: said(environ, name) or value for name, value in defaults.items()}


def _placed(layout: Layout) -> dict[str, str]:
    control = {"DOMICILE_CONTROL": f"etcd://{layout.control}"} if layout.control else {}
    return control | {
        "DOMICILE_REGION": layout.name,
        "DOMICILE_BLOBS": layout.blobs,
        "DOMICILE_PLACEMENT": f"etcd://{HOST}:{layout.etcd[0]}",
        "DOMICILE_INGRESS": ",".join(f"{HOST}:{place.peer}" for place in layout.places),
        "DOMICILE_INGRESS_URL": layout.places[0].url,
    }


def _own_settings(place: Place) -> dict[str, str]:
    return {
        "DOMICILE_DATA": str(place.folder),
        "DOMICILE_LISTEN": f"{HOST}:{place.http}",
        "DOMICILE_PEER_LISTEN": f"{HOST}:{place.peer}",
    }
