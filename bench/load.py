"""The load client: compiled once per version of its source, run once per measurement."""

import hashlib
import json
import shutil
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

from bench.peers.base import Instance, cache_dir
from bench.process import BenchError, die_with_parent

_SOURCE = Path(__file__).resolve().parent / "client" / "load.c"
_RUN_SECONDS = 180  # above the client's own bound


@dataclass(frozen=True)
class Answers:
    """What the client saw. Errors are in none of the other numbers."""

    rate: float
    p50_us: float
    p99_us: float
    max_us: float
    kept: int
    answered: int
    seconds: float
    wall: float
    client_cpu: float
    errors: int
    error: str
    last: str


@dataclass(frozen=True)
class Load:
    """One closed loop: `method` on `objects` objects in turn, named from `name` with `{}` for the number."""

    method: str
    name: str = "one"
    objects: int = 1
    first: int = 0
    conns: int = 1
    seconds: float = 0
    warm: float = 0
    count: int = 0
    ballast: bool = False


class Client:
    """The compiled client."""

    def __init__(self) -> None:
        digest = hashlib.sha256(_SOURCE.read_bytes()).hexdigest()[:12]
        self._binary = cache_dir() / f"load-{digest}"
        if not self._binary.exists():
            self._compile()

    def _compile(self) -> None:
        if shutil.which("gcc") is None:
            raise BenchError("gcc is needed for the load client, and is not here")
        fresh = self._binary.with_suffix(".new")
        built = subprocess.run(["gcc", "-O2", "-o", fresh, _SOURCE], capture_output=True, text=True)
        if built.returncode:
            raise BenchError(f"gcc could not build the load client: {built.stderr[-500:]}")
        fresh.replace(self._binary)

    def run(self, target: Instance, load: Load) -> Answers:
        flags = {
            "port": target.port,
            "path": target.peer.path(load.name, load.method, load.ballast),
            "conns": load.conns,
            "objects": load.objects,
            "first": load.first,
            "seconds": load.seconds,
            "warm": load.warm,
            "count": load.count,
        }
        command = [str(self._binary), *(part for flag, value in flags.items() for part in (f"--{flag}", str(value)))]
        ran = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_RUN_SECONDS,
            preexec_fn=die_with_parent(signal.SIGKILL),
        )
        if ran.returncode:
            raise BenchError(f"the load client failed: {ran.stderr.strip()[-300:]}")
        return Answers(**json.loads(ran.stdout))
