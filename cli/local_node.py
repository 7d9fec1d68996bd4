"""One node of a local cluster: a supervisor and its child over a directory, as in production (API, "CLI")."""

from __future__ import annotations

import http.client
import json
import shlex
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from domicile.cli.child import Child
from domicile.cli.local_ports import HOST
from domicile.node.supervisor import EXIT_IN_USE, LOCK_FILE

COMMAND = (sys.executable, "-m", "domicile.cli.main", "node")
ANSWER_SECS = 0.5
IN_USE_TRIES = 50  # a node that died with its `up` may hold its directory for a moment longer
IN_USE_SECS = 0.1
SCRIPT = "start.sh"
HIDDEN = ("SECRET", "PASSWORD", "TOKEN")


@dataclass(frozen=True)
class Place:
    """Where a node is: its name, its directory, and its ports for HTTP and for other nodes."""

    name: str
    folder: Path
    http: int
    peer: int

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.http}"


@dataclass(frozen=True)
class Seen:
    """What was last seen of a node; None is what is not there, or not known yet."""

    supervisor_pid: int | None = None
    pid: int | None = None
    node_id: str | None = None
    copy_id: str | None = None


class LocalNode:
    """Not started yet. `settings` are this node's own; `environ` is the rest of its environment."""

    def __init__(self, place: Place, environ: Mapping[str, str], settings: Mapping[str, str]) -> None:
        self.place = place
        self.log = place.folder / "log"
        self.seen = Seen()
        self.peers = 0  # how many nodes it says serve, itself among them
        self.regions = 0  # how many regions it knows, its own among them
        self._environ = {**environ, **settings}
        self._child: Child | None = None
        place.folder.mkdir(parents=True, exist_ok=True)
        self._write_script()

    def start(self) -> None:
        self._child = Child(COMMAND, self._environ, self.log)

    def retry_in_use(self) -> bool:
        """Start it again if it found its directory locked; whether it had."""
        if self._child is None or self._child.exit_code() != EXIT_IN_USE:
            return False
        time.sleep(IN_USE_SECS)
        self.start()
        return True

    def exit_code(self) -> int | None:
        """Of the supervisor that was started here; None while it runs."""
        return self._child.exit_code() if self._child is not None else None

    def look(self) -> Seen:
        """See its processes and ask it who it is. One that does not answer is whom it last said to be."""
        supervisor = self._supervisor()
        pid = next(iter(_children(supervisor)), None) if supervisor is not None else None
        node_id, copy_id, self.peers = self._who() if pid is not None else (None, None, 0)
        if node_id is None and pid is not None and pid == self.seen.pid:
            node_id, copy_id = self.seen.node_id, self.seen.copy_id
        self.seen = Seen(supervisor, pid, node_id, copy_id)
        return self.seen

    def ask_to_end(self) -> None:
        if self._child is not None:
            self._child.ask_to_end()

    def end_within(self, secs: float) -> None:
        """Wait, and kill it if that does not help."""
        if self._child is not None and not self._child.wait_end(max(secs, 0.0)):
            self._child.kill()

    def _supervisor(self) -> int | None:
        """Ours, or one that somebody else started over this directory: it says in the lock who it is."""
        if self._child is not None and self._child.exit_code() is None:
            return self._child.pid
        try:
            pid = int((self.place.folder / LOCK_FILE).read_text())
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except (OSError, ValueError):
            return None
        return pid if str(self.place.folder).encode() in command.split(b"\0") else None

    def _who(self) -> tuple[str | None, str | None, int]:
        """Node id, copy id, and how many nodes it knows to serve."""
        connection = http.client.HTTPConnection(HOST, self.place.http, timeout=ANSWER_SECS)
        try:
            connection.request("GET", "/v1/cluster")
            answer = connection.getresponse()
            node_id, document = answer.headers.get("Domicile-Node"), json.loads(answer.read())
            nodes, self.regions = document.get("nodes", []), len(document.get("regions", []))
        except (OSError, http.client.HTTPException, ValueError):
            return None, None, 0
        finally:
            connection.close()
        mine: dict[str, Any] = next((node for node in nodes if node["node_id"] == node_id), {})
        if not mine:
            return None, None, 0  # it does not see itself yet
        return node_id, mine["copy_id"] or None, sum(node["state"] == "serving" for node in nodes)

    def _write_script(self) -> None:
        """So that a node that was killed can be started again by hand, without knowing its settings."""
        own = {
            name: value
            for name, value in self._environ.items()
            if name.startswith(("DOMICILE_", "NODE_", "OBJECT_")) and not any(word in name for word in HIDDEN)
        } | {name: self._environ[name] for name in ("DOMICILE_CLUSTER_SECRET_FILE",)}
        exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in sorted(own.items()))
        script = self.place.folder / SCRIPT
        text = f"#!/bin/sh\n# Starts this node of the cluster again.\ncd {shlex.quote(str(Path.cwd()))} || exit 1\n"
        script.write_text(f"{text}{exports}exec {shlex.join(COMMAND)}\n")
        script.chmod(0o700)


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
