"""What a local cluster needs for its operations: a Temporal over a file, and the control process (API, "CLI").

Where there is no `temporal` program the cluster runs without them, and says so. A Temporal that the user's environment
names is used instead of an own one.
"""

from __future__ import annotations

import http.client
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from domicile.cli.child import Child
from domicile.cli.local_ports import HOST, Ports
from domicile.cli.local_temporal import MISSING, LocalTemporal, TemporalPorts, program
from domicile.cli.output import Output

CONTROL = (sys.executable, "-m", "domicile.cli.main", "control")
SETTING = "DOMICILE_TEMPORAL"
ANSWER_SECS = 0.5
STOP_SECS = 15.0


class LocalOperations:
    """`before`: the document of an earlier run, whose ports are kept; `wanted` False: nothing is started."""

    def __init__(
        self, data: Path, before: Mapping[str, Any], ports: Ports, environ: Mapping[str, str], *, wanted: bool = True
    ) -> None:
        self._data = data
        self._address = environ.get(SETTING, "")
        self._own: TemporalPorts | None = None
        self._temporal: LocalTemporal | None = None
        self._control: Child | None = None
        self._environ: dict[str, str] = {}
        self.missing = wanted and not self._address and program() is None
        self.there = wanted and not self.missing
        if self.there:
            known = before.get("temporal") or {}
            self._port = ports.take(_port(before.get("control"), "http"))
            if not self._address:
                self._own = TemporalPorts.take(ports, _port(known, "address"), _port(known, "ui"))
                self._address = f"{HOST}:{self._own.grpc}"

    @property
    def settings(self) -> dict[str, str]:
        """What nodes are given, so that they know where operations are started."""
        return {SETTING: self._address} if self.there else {}

    def begin(self) -> None:
        """Temporal, if it is to be an own one: it comes up beside what else there is to start."""
        if self._own is not None:
            self._temporal = LocalTemporal(self._data / "temporal.db", self._own)

    def start(self, environ: Mapping[str, str], stopped: Callable[[], bool]) -> None:
        """Once what it stands on is ready; `environ` is a node's. Raises CliError when Temporal does not start."""
        if not self.there:
            return
        if self._temporal is not None:
            self._temporal.wait_ready(stopped)
        folder = self._data / "control"
        folder.mkdir(exist_ok=True)
        own = {"DOMICILE_LISTEN": f"{HOST}:{self._port}", "DOMICILE_DATA": str(folder)}
        self._environ = {**environ, **own}
        self._start_control()

    def ready(self) -> bool:
        """Whether the control process works, as it says itself."""
        if not self.there:
            return True
        connection = http.client.HTTPConnection(HOST, self._port, timeout=ANSWER_SECS)
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == http.client.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def look(self, output: Output) -> None:
        """Keep both running."""
        died = ["Temporal"] if self._temporal is not None and self._temporal.keep() else []
        if self._control is not None and self._control.exit_code() is not None:
            self._start_control()
            died.append("control")
        if died and not output.as_json:
            output.say(f"{' and '.join(died)} died; started again")

    def tell(self, output: Output) -> None:
        """Where they are, or why they are not."""
        if self.missing:
            output.say(f"operations  {MISSING}")
        if self._temporal is not None:
            output.say(f"temporal  {self._temporal.address}  pid {self._temporal.pid}  see it at {self._temporal.ui}")
        if self._control is not None:
            output.say(f"control  {self._url}  pid {self._control.pid}  {self._data / 'control'}")

    def stop(self) -> None:
        """Control first."""
        if self._control is not None:
            self._control.ask_to_end()
            if not self._control.wait_end(STOP_SECS):
                self._control.kill()
        if self._temporal is not None:
            self._temporal.stop()

    def document(self) -> dict[str, Any]:
        """The entries `control` and `temporal` of `cluster.json`; None for what is not there."""
        control, temporal = self._control, self._temporal
        runs = control is not None and control.exit_code() is None
        mine = {"ui": temporal.ui, "pid": temporal.pid} if temporal is not None else {"ui": None, "pid": None}
        return {
            "control": {"http": self._url, "pid": control.pid if control and runs else None} if control else None,
            "temporal": {"address": self._address, **mine} if self.there else None,
        }

    @property
    def _url(self) -> str:
        return f"http://{HOST}:{self._port}"

    def _start_control(self) -> None:
        self._control = Child(CONTROL, self._environ, self._data / "control" / "log")


def _port(known: Mapping[str, Any] | None, name: str) -> int:
    """Of an address in an earlier document; 0 when there is none."""
    return int(str((known or {}).get(name) or ":0").rpartition(":")[2])
