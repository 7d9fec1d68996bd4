"""What one would write by hand: Starlette, uvicorn, apsw, one file."""

import importlib.util
import subprocess
import sys
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.cache import cache_dir
from bench.peers.base import HttpPeer
from bench.process import BenchError

_PACKAGES = ("starlette", "uvicorn", "uvloop", "httptools", "apsw")
_VERSIONS = "import sys, importlib.metadata as m; print(*(p + '=' + m.version(p) for p in sys.argv[1:]))"


class Baseline(HttpPeer):
    """One process, one SQLite file in WAL mode with synchronous=FULL, committed on the event loop."""

    name = "baseline"
    title = "Starlette + uvicorn + apsw, by hand"
    answer_means = "one fdatasync of the one WAL per increment; one copy on one disk"
    has_objects = False

    def __init__(self) -> None:
        self._python = sys.executable

    def prepare(self) -> None:
        """Domicile's own interpreter, so that both use the same library versions; else an environment of its own."""
        if all(importlib.util.find_spec(package) for package in _PACKAGES):
            return
        home = cache_dir() / "baseline-venv"
        self._python = str(home / "bin" / "python")
        if not (home / "installed").exists():
            print(f"installing {', '.join(_PACKAGES)} into {home}", flush=True)
            venv.create(home, with_pip=True)
            pip = subprocess.run(
                [self._python, "-m", "pip", "install", "-q", *_PACKAGES], capture_output=True, text=True
            )
            if pip.returncode:
                raise BenchError(f"pip could not install it: {pip.stderr.strip()[-300:]}")
            (home / "installed").touch()

    def versions(self) -> dict[str, str]:
        ran = subprocess.run([self._python, "-c", _VERSIONS, *_PACKAGES], capture_output=True, text=True, check=True)
        return dict(pair.split("=") for pair in ran.stdout.split())

    def environment(self, data: Path) -> Mapping[str, str]:
        return {"BASELINE_FILE": str(data / "counters.db")}

    def command(self, port: int, data: Path) -> Sequence[str]:
        servers = Path(__file__).resolve().parent.parent / "servers"
        return [
            *(self._python, "-m", "uvicorn", "baseline:app", "--app-dir", str(servers)),
            *("--host", "127.0.0.1", "--port", str(port), "--loop", "uvloop", "--http", "httptools"),
            *("--no-access-log", "--log-level", "warning"),
        ]

    def path(self, name: str, method: str, ballast: bool = False) -> str:
        return f"/{name}/{method}"
