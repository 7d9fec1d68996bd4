"""A Temporal of this machine, over one file: the dev server of the `temporal` program, kept running (API, "CLI").

The program comes with `pip install 'domicile[local]'`. Where it is not there, a local cluster runs without operations.
"""

from __future__ import annotations

import os
import shutil
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from domicile.cli.child import Child
from domicile.cli.failures import CliError, Exit
from domicile.cli.local_ports import HOST, Ports

READY_SECS = 60.0
STOP_SECS = 10.0
LOOK_SECS = 0.05
MISSING = "no `temporal` program: nothing moves, drains or sweeps by schedule; pip install 'domicile[local]'"


@dataclass(frozen=True)
class TemporalPorts:
    """Of its frontend, and of what else it listens on."""

    grpc: int
    ui: int
    http: int
    metrics: int

    @classmethod
    def take(cls, ports: Ports, grpc: int = 0, ui: int = 0) -> TemporalPorts:
        """Those of last time where nobody else has them."""
        return cls(ports.take(grpc), ports.take(ui), ports.take(), ports.take())


def program() -> str | None:
    """The wheel puts it beside Python; any other on the path will do."""
    beside = Path(sys.executable).with_name("temporal")
    return str(beside) if beside.exists() else shutil.which("temporal")


class LocalTemporal:
    """`file` keeps what it knows. Raises CliError when there is no program for it."""

    def __init__(self, file: Path, ports: TemporalPorts) -> None:
        found = program()
        if found is None:
            raise CliError(MISSING, Exit.FAILED)
        self.address, self.ui = f"{HOST}:{ports.grpc}", f"http://{HOST}:{ports.ui}"
        self.log = file.with_suffix(".log")
        self._command = [
            *(found, "server", "start-dev", "--ip", HOST, "--ui-ip", HOST, "--db-filename", str(file)),
            *("--port", str(ports.grpc), "--ui-port", str(ports.ui), "--http-port", str(ports.http)),
            *("--metrics-port", str(ports.metrics), "--log-level", "warn"),
        ]
        self._child = self._start()

    @property
    def pid(self) -> int | None:
        """None while it is down."""
        return self._child.pid if self._child.exit_code() is None else None

    def wait_ready(self, stopped: Callable[[], bool]) -> None:
        """Until it listens, or `stopped` says so. Raises CliError with where its own words are."""
        end = time.monotonic() + READY_SECS
        while not self._listens() and not stopped():
            if self._child.exit_code() is not None or time.monotonic() > end:
                raise CliError(f"Temporal did not start; its own words are in {self.log}", Exit.FAILED)
            time.sleep(LOOK_SECS)

    def keep(self) -> bool:
        """Start it again if it has died; whether it had."""
        if self._child.exit_code() is None:
            return False
        self._child = self._start()
        return True

    def stop(self) -> None:
        self._child.ask_to_end()
        if not self._child.wait_end(STOP_SECS):
            self._child.kill()

    def _listens(self) -> bool:
        host, port = self.address.split(":")
        with socket.socket() as probe:
            return probe.connect_ex((host, int(port))) == 0

    def _start(self) -> Child:
        # What the environment says to Temporal's program is not meant for this one.
        environ = {name: value for name, value in os.environ.items() if not name.startswith("TEMPORAL_")}
        return Child(self._command, environ, self.log)
