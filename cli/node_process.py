"""A node as a child of `domicile dev`: started, waited for until it serves, stopped; never left behind."""

from __future__ import annotations

import ctypes
import http.client
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from urllib.parse import urlsplit

READY_SECS = 60.0
STOP_SECS = 60.0
LOOK_SECS = 0.05
ANSWER_SECS = 1.0
PR_SET_PDEATHSIG = 1


class NodeProcess:
    """One `domicile node` with these settings, in a session of its own so that Ctrl-C reaches it through us only."""

    def __init__(self, url: str, environ: Mapping[str, str], *, once: bool, control: bool = False) -> None:
        self._url = urlsplit(url)
        libc = ctypes.CDLL(None)
        flags = [*(["--once"] if once else []), *(["--control"] if control else [])]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "domicile.cli.main", "node", *flags],
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr.fileno(),
            start_new_session=True,
            # The kernel tells the node to stop when we are gone, however we went.
            preexec_fn=lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM),
        )

    def wait_ready(self, stop: threading.Event) -> bool:
        """True once /readyz says so; False when the node ended, `stop` was set, or a minute went by."""
        end = time.monotonic() + READY_SECS
        while time.monotonic() < end and self.exit_code() is None:
            if self._ready():
                return True
            if stop.wait(LOOK_SECS):
                break
        return False

    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def stop(self) -> None:
        """SIGTERM, so that it flushes and releases; SIGKILL to all of it if that takes over a minute."""
        if self._process.poll() is None:
            self._process.terminate()
        try:
            self._process.wait(STOP_SECS)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _ready(self) -> bool:
        connection = http.client.HTTPConnection(self._url.hostname or "", self._url.port, timeout=ANSWER_SECS)
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == http.client.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()
