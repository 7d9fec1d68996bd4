"""A node as real processes over one data directory: started, killed by pid, started again on the same port."""

from __future__ import annotations

import http.client
import os
import random
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from living import alive
from ports import free_port

from domicile.node.supervisor import command_line

WAIT_SECS = 60.0
APP = Path(__file__).with_name("app.py")
QUICK = {
    "DOMICILE_APP": str(APP),
    "DOMICILE_PROJECTS": "first-use",
    "DOMICILE_LOG_LEVEL": "warning",
    "OBJECT_WAL_ROTATE_KB": "64",
    "OBJECT_MAX_SEGMENTS": "4",
    "OBJECT_IDLE_SECS": "0.3",
    "OBJECT_SWEEP_SECS": "0.5",
    "OBJECT_STORE_INTERVAL_MS": "50",
    "OBJECT_ACK_GATE_MS": "5000",
}
"""Settings with which everything that happens to an object in a week happens in seconds."""


def until(holds: Callable[[], Any], what: str, secs: float = WAIT_SECS) -> Any:
    """What `holds` gives as soon as it is true."""
    end = time.monotonic() + secs
    while not (value := holds()):
        assert time.monotonic() < end, f"not within {secs:g} s: {what}"
        time.sleep(0.01)
    return value


class NodeProcess:
    """One node: `data` is its directory, `log` what its processes say, over all starts.

    `registrar`: what its supervisor is told of etcd, where that is the placement store.
    """

    def __init__(self, where: Path, settings: dict[str, str] | None = None, data: Path | None = None) -> None:
        self.where = where
        self.data = data or where / "data"
        self.log = where / "log"
        self.port = free_port()
        self.settings = {**QUICK, **(settings or {})}
        self.registrar: dict[str, Any] | None = None
        self.process: subprocess.Popen[bytes] | None = None
        self._read = 0
        where.mkdir(parents=True, exist_ok=True)

    # Beginning.

    def start(self, failpoints: str = "", *, supervised: bool = False) -> None:
        """Start it, and do not wait. Failpoints are armed in the first child only, whoever starts the next."""
        assert self.process is None or self.process.poll() is not None
        child = [sys.executable, "-m", "domicile.node.main"]
        environ = {**_clean_environ(), **self.settings}
        environ |= {"DOMICILE_DATA": str(self.data), "DOMICILE_LISTEN": f"127.0.0.1:{self.port}"}
        if supervised:
            armed = self.where / "armed"
            armed.write_text(failpoints)
            read = f'export DOMICILE_FAILPOINTS="$(cat {shlex.quote(str(armed))})"; : > {shlex.quote(str(armed))}; '
            child = command_line(
                str(self.data), ["/bin/sh", "-c", f"{read} exec {shlex.join(child)}"], etcd=self.registrar
            )
        elif failpoints:
            environ["DOMICILE_FAILPOINTS"] = failpoints
        self._read = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(child, cwd=self.where, env=environ, stderr=log, stdout=log)

    def wait_ready(self, *, may_die: bool = False) -> bool:
        """Wait until it serves; False when it died before and may."""
        assert self.process is not None
        process = self.process
        ready = until(lambda: self.is_ready() or (process.poll() is not None and "dead"), "the node is ready")
        assert ready != "dead" or may_die, f"the node died at its start:\n{self.said()[-4000:]}"
        return ready != "dead"

    def is_ready(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    # End.

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def children(self) -> list[int]:
        """The processes its first process started."""
        try:
            return [int(pid) for pid in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()]
        except FileNotFoundError:
            return []

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL to its first process, and wait until nothing of it is left; a supervisor takes its child along."""
        if self.process is None:
            return
        family = self.children()
        if self.process.poll() is None:
            self.signal(signal.SIGKILL)
        self.wait_dead()
        until(lambda: not any(alive(pid) for pid in family), "the child died with its supervisor")

    def stop(self) -> int:
        """SIGTERM; the exit status."""
        self.signal(signal.SIGTERM)
        return self.wait_dead()

    def wait_dead(self, secs: float = WAIT_SECS) -> int:
        """Its first process's exit status, negative for a signal."""
        assert self.process is not None
        return self.process.wait(secs)

    def refuse_writes(self, refuse: bool) -> None:
        """While True no file of the node's process grows: each write fails, as on a disk that is full."""
        pid = self.serving_pid()
        _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (0 if refuse else hard, hard))

    def serving_pid(self) -> int:
        """The process that serves: the supervisor's child, or the only one."""
        return next(iter(self.children()), self.pid)

    # What it leaves behind.

    def said(self) -> str:
        """What it said since its last start."""
        with self.log.open("rb") as log:
            log.seek(self._read)
            return log.read().decode(errors="replace")

    def wipe(self) -> None:
        """Lose the node's own copies: from here on there is the blob store alone."""
        for name in ("objects", "cache"):
            shutil.rmtree(self.data / name, ignore_errors=True)

    def lose_some(self, rng: random.Random) -> None:
        """Lose one file, or all, of about half of the node's own copies."""
        for folder in sorted((self.data / "objects").glob("*/*")):
            if rng.random() < 0.5:
                for path in sorted(folder.iterdir()):
                    if rng.random() < 0.5:
                        path.unlink()


def _clean_environ() -> dict[str, str]:
    """The environment without anybody's settings."""
    prefixes = ("DOMICILE_", "NODE_", "OBJECT_")
    return {name: value for name, value in os.environ.items() if not name.startswith(prefixes)}
