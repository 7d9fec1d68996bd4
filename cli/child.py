"""A process of this command's own: it writes to a log file, and never outlives the command, however that ends."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

PR_SET_PDEATHSIG = 1


class Child:
    """Started at once, in a session of its own so that Ctrl-C reaches it through us only."""

    def __init__(self, command: Sequence[str], environ: Mapping[str, str], log: Path) -> None:
        libc, parent = ctypes.CDLL(None), os.getpid()

        def bind() -> None:
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)  # it died before this could be bound to it

        with log.open("ab") as said:
            self._process = subprocess.Popen(
                list(command),
                env=dict(environ),
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,
                preexec_fn=bind,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def ask_to_end(self) -> None:
        """SIGTERM, if it still runs."""
        if self._process.poll() is None:
            self._process.terminate()

    def wait_end(self, secs: float) -> bool:
        """Whether it ended within `secs`."""
        try:
            self._process.wait(secs)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        """SIGKILL, and wait: what it started is bound to it."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
