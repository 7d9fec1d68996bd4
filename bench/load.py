"""The load client: compiled once per version of its source, run once per measurement."""

import hashlib
import json
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.cache import cache_dir
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


# Which nodes are called, where there are several.
OWNER = "the owner"  # the first: there all objects are born that are not said to be elsewhere
OTHER = "another node"  # the second
EVERYWHERE = "all nodes"
HOMES = "each object's home"  # objects in turn over the nodes, each born where it is called


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
    at: str = OWNER


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

    def http(self, ports: Sequence[int], path: str, load: Load) -> Answers:
        return self._run({"port": ",".join(map(str, ports)), "path": path}, load)

    def nats(self, port: int, subject: str, message: str, load: Load) -> Answers:
        """Publish and wait for the acknowledgement of the stream."""
        return self._run({"port": port, "path": subject, "body": message}, load, "--nats")

    def _run(self, how: Mapping[str, str | int], load: Load, *more: str) -> Answers:
        flags = {
            **how,
            "conns": load.conns,
            "objects": load.objects,
            "first": load.first,
            "seconds": load.seconds,
            "warm": load.warm,
            "count": load.count,
        }
        command = [str(self._binary), *(part for flag, value in flags.items() for part in (f"--{flag}", str(value)))]
        command += more
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
