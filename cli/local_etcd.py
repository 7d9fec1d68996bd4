"""One etcd of a local cluster: a single member over a directory, kept running (API, "CLI")."""

from __future__ import annotations

import http.client
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from domicile.cli.child import Child
from domicile.cli.failures import CliError, Exit
from domicile.cli.local_ports import HOST

READY_SECS = 30.0
STOP_SECS = 10.0
LOOK_SECS = 0.05
ANSWER_SECS = 1.0
MISSING = "etcd is not installed: a cluster keeps there who owns what"


class LocalEtcd:
    """`ports`: for clients, and the one a member must have for others. Raises CliError when there is no etcd."""

    def __init__(self, data: Path, ports: tuple[int, int]) -> None:
        program = shutil.which("etcd")
        if program is None:
            raise CliError(MISSING, Exit.FAILED, "sudo apt install etcd-server")
        self.endpoint = f"{HOST}:{ports[0]}"
        self.log = data.with_suffix(".log")
        peer, client = f"http://{HOST}:{ports[1]}", f"http://{self.endpoint}"
        self._command = [
            *(program, "--name", "up", "--data-dir", str(data)),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"up={peer}"),
            # Every beat of a node is a revision: without this the history of them would grow for ever.
            *("--auto-compaction-mode", "periodic", "--auto-compaction-retention", "1h"),
            *("--logger", "zap", "--log-level", "warn"),
        ]
        self._child = self._start()

    @property
    def pid(self) -> int | None:
        """None while it is down."""
        return self._child.pid if self._child.exit_code() is None else None

    def wait_ready(self, stopped: Callable[[], bool]) -> None:
        """Until it orders writes, or `stopped` says so. Raises CliError with where its own words are."""
        end = time.monotonic() + READY_SECS
        while not self.healthy() and not stopped():
            if self._child.exit_code() is not None or time.monotonic() > end:
                raise CliError(f"etcd did not start; its own words are in {self.log}", Exit.FAILED)
            time.sleep(LOOK_SECS)

    def keep(self) -> bool:
        """Start it again if it has died; whether it had."""
        if self._child.exit_code() is None:
            return False
        self._child = self._start()
        return True

    def healthy(self) -> bool:
        host, port = self.endpoint.split(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=ANSWER_SECS)
        try:
            connection.request("GET", "/health")
            return b'"true"' in connection.getresponse().read()
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def stop(self) -> None:
        self._child.ask_to_end()
        if not self._child.wait_end(STOP_SECS):
            self._child.kill()

    def _start(self) -> Child:
        # What the environment says to etcd is not meant for this one.
        environ = {name: value for name, value in os.environ.items() if not name.startswith("ETCD_")}
        return Child(self._command, environ, self.log)
