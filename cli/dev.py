"""`domicile dev`: one node with embedded stores, started again when the app's files change.

With `--temporal` a Temporal of its own runs beside it, and the control plane inside the node's process.

A changed app is checked in a process of its own first: a broken file never stops the node that serves the last good
one.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

from domicile.cli import settings
from domicile.cli.failures import CliError, Exit
from domicile.cli.local_ports import Ports
from domicile.cli.local_temporal import LocalTemporal, TemporalPorts
from domicile.cli.node_process import NodeProcess
from domicile.cli.output import Output
from domicile.cli.watching import Watch, folder_of

HOST = "127.0.0.1"
PORT = 8080
LOOK_SECS = 0.5


@dataclass(frozen=True)
class Dev:
    """What the command line asked for. `port` is None when any will do."""

    app: str
    port: int | None
    data: Path
    reload: bool
    once: bool
    temporal: bool = False


def run(dev: Dev, output: Output) -> None:
    """Returns when it was told to stop. Raises CliError when the app or the settings are bad, or the node ends."""
    if why := _app_problems(dev.app):
        raise CliError(f"the app cannot be served:\n{why}", Exit.FAILED)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    port = _port(dev.port, output)
    url = f"http://{HOST}:{port}"
    temporal = _temporal(dev, stop, output)
    environ = _environ(dev, port) | ({"DOMICILE_TEMPORAL": temporal.address} if temporal else {})
    settings.loaded(environ)
    watch = Watch(folder_of(dev.app))

    def started() -> NodeProcess:
        return NodeProcess(url, environ, once=dev.once, control=dev.temporal)

    node = started()
    try:
        _say_ready(node, url, dev, stop, output)
        while not stop.wait(LOOK_SECS):
            if (code := node.exit_code()) is not None:
                raise CliError(f"the node ended with exit code {code}; its own words are above", Exit.FAILED)
            if dev.reload and (changed := watch.changed()) and _may_reload(dev.app, changed, output):
                node.stop()
                node = started()
                _say_ready(node, url, dev, stop, output)
            if temporal is not None:
                temporal.keep()
    finally:
        node.stop()
        if temporal is not None:
            temporal.stop()
    output.event("stopped", "stopped")


def _temporal(dev: Dev, stop: threading.Event, output: Output) -> LocalTemporal | None:
    """Raises CliError when there is no program for it."""
    if not dev.temporal:
        return None
    dev.data.mkdir(parents=True, exist_ok=True)
    temporal = LocalTemporal(dev.data.resolve() / "temporal.db", TemporalPorts.take(Ports()))
    temporal.wait_ready(stop.is_set)
    output.event(f"Temporal at {temporal.address}, see it at {temporal.ui}", "temporal", address=temporal.address)
    return temporal


def _say_ready(node: NodeProcess, url: str, dev: Dev, stop: threading.Event, output: Output) -> None:
    if node.wait_ready(stop):
        data = str(dev.data.resolve())
        output.event(f"serving at {url} (app {dev.app}, data {dev.data})", "serving", http=url, app=dev.app, data=data)
    elif not stop.is_set():
        code = node.exit_code()
        what = "did not get ready within a minute" if code is None else f"ended with exit code {code}"
        raise CliError(f"the node {what}; its own words are above", Exit.FAILED)


def _may_reload(app: str, changed: list[str], output: Output) -> bool:
    names = ", ".join(changed[:3]) + (f" and {len(changed) - 3} more" if len(changed) > 3 else "")
    if why := _app_problems(app):
        output.event(f"{names} changed; still serving the last good app:\n{why}", "bad_app", changed=changed, why=why)
        return False
    output.event(f"{names} changed; starting again", "reloading", changed=changed)
    return True


def _app_problems(app: str) -> str:
    """What `domicile check` says against the app; empty when all is well."""
    checked = subprocess.run(
        [sys.executable, "-m", "domicile.cli.main", "check", app], capture_output=True, text=True, check=False
    )
    return checked.stderr.strip() if checked.returncode else ""


def _environ(dev: Dev, port: int) -> dict[str, str]:
    """Settings of a node on this machine. What the user's environment says of anything else stands."""
    return {
        "DOMICILE_LOG": "console",
        "DOMICILE_LOG_LEVEL": "warning",
        "DOMICILE_PROJECTS": "first-use",
        **settings.for_node(os.environ),
        "DOMICILE_LISTEN": f"{HOST}:{port}",
        "DOMICILE_DATA": str(dev.data.resolve()),
        "DOMICILE_APP": dev.app,
    }


def _port(wanted: int | None, output: Output) -> int:
    """The port to listen on. Raises CliError when the one that was asked for is taken."""
    port = _free(wanted or PORT)
    if port is not None:
        return port
    if wanted is not None:
        raise CliError(f"port {wanted} is taken", Exit.FAILED, "give another --port, or none to take any free one")
    port = _free(0)
    assert port is not None
    output.event(f"port {PORT} is taken; using {port}", "port", port=port)
    return port


def _free(port: int) -> int | None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return None
        number: int = probe.getsockname()[1]
        return number
