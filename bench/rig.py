"""What every case measures with: running instances, the client, the clocks of the processes."""

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.cache import cache_dir
from bench.load import Answers, Client, Load
from bench.peers import Peer
from bench.peers.base import HttpInstance, Instance
from bench.process import BenchError, machine_cpu_seconds, tree_cpu_seconds

SETTLE_SECONDS = 5.0
_QUIET_CORES = 0.08


@dataclass(frozen=True)
class Settings:
    """How long and how often. A quick run smokes out breakage; its numbers mean little."""

    rounds: int = 5
    seconds: float = 3.0
    warm: float = 0.5
    quick: bool = False

    def count(self, full: int, quick: int) -> int:
        return quick if self.quick else full


@dataclass(frozen=True)
class Sample:
    """One peer in one round of one case. `value` is what the case compares: a rate, a latency, a size."""

    case: str
    peer: str
    round: int
    value: float
    p50_us: float = 0
    p99_us: float = 0
    max_us: float = 0
    answered: int = 0
    errors: int = 0
    error: str = ""
    server_us: float = 0
    others_cores: float = 0
    roles_us: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Cost:
    """A load's answers, with the server CPU each took and how busy everyone else was meanwhile.

    `roles_us`: the same CPU per call for one process of each role, where servers have roles.
    """

    answers: Answers
    server_us: float
    others_cores: float
    roles_us: dict[str, float]

    def sample(self, case: str, peer: Peer, turn: int, value: float) -> Sample:
        a = self.answers
        seen = (a.p50_us, a.p99_us, a.max_us, a.answered, a.errors, a.error)
        return Sample(case, peer.name, turn, value, *seen, self.server_us, self.others_cores, self.roles_us)


class Rig:
    """Owns every running instance and the folder their data is in."""

    def __init__(self, settings: Settings, client: Client, folder: Path) -> None:
        self.settings = settings
        self._client = client
        self._folder = folder
        self._instances: dict[tuple[str, str], Instance] = {}

    def instance(self, peer: Peer, group: str) -> Instance:
        """The instance of a peer that the cases of a group share, started again if it has died."""
        key = peer.name, group
        if key not in self._instances:
            self._instances[key] = peer.start(self._folder / f"{group}-{peer.name}")
        elif not self._instances[key].server.running:
            self._instances[key].restart()
        return self._instances[key]

    def http_instance(self, peer: Peer, group: str) -> HttpInstance:
        """The same, of a peer with objects that sleep and wake."""
        instance = self.instance(peer, group)
        if not isinstance(instance, HttpInstance):
            raise BenchError(f"{peer.name} has no objects")
        return instance

    def discard(self, peer: Peer, group: str) -> None:
        instance = self._instances.pop((peer.name, group), None)
        if instance:
            instance.stop()
            shutil.rmtree(instance.data, ignore_errors=True)

    def stop(self) -> None:
        with ExitStack() as all_of_them:  # whatever one of them raises, or a second Ctrl-C
            for instance in self._instances.values():
                all_of_them.callback(instance.stop)

    def run(self, target: Instance, load: Load) -> Cost:
        """Drive one load from quiet to quiet, so that work a server does after its answers is counted as its own."""
        self.settle()
        roles = target.roles(load)
        before = {role: _mean_cpu(pids) for role, pids in roles.items()}
        busy, server, began = machine_cpu_seconds(), target.server.cpu_seconds(), time.monotonic()
        answers = target.run(self._client, load)
        elsewhere = machine_cpu_seconds() - busy - (target.server.cpu_seconds() - server) - answers.client_cpu
        others_cores = max(0.0, elsewhere) / (time.monotonic() - began)
        self.settle()
        spent = target.server.cpu_seconds() - server
        calls = max(1, answers.answered + answers.errors)
        roles_us = {role: round(1e6 * (_mean_cpu(pids) - before[role]) / calls, 1) for role, pids in roles.items()}
        return Cost(answers, round(1e6 * spent / calls, 1), round(others_cores, 2), roles_us)

    def drive(self, target: Instance, load: Load) -> Answers:
        """Drive a load whose cost is not asked for."""
        return target.run(self._client, load)

    def settle(self) -> None:
        """Wait, boundedly, until none of our own servers is still at work."""
        end = time.monotonic() + SETTLE_SECONDS
        before = self._all_cpu()
        idle = _QUIET_CORES + sum(instance.idle_cores for instance in self._instances.values())
        while time.monotonic() < end:
            time.sleep(0.25)
            after = self._all_cpu()
            if (after - before) / 0.25 < idle:
                return
            before = after

    def _all_cpu(self) -> float:
        return sum(instance.server.cpu_seconds() for instance in self._instances.values())


def _mean_cpu(roots: Sequence[int]) -> float:
    return sum(tree_cpu_seconds(root) for root in roots) / max(1, len(roots))


def _sweep(parent: Path) -> None:
    """Remove the data of runs that were killed before they could."""
    for left in parent.glob("data-*-*"):
        if not Path(f"/proc/{left.name.split('-')[1]}").exists():
            shutil.rmtree(left, ignore_errors=True)


@contextmanager
def rig(settings: Settings) -> Iterator[Rig]:
    """A rig in a temporary folder beside the installed peers: on a disk, where /tmp may be memory."""
    signal.signal(signal.SIGTERM, lambda *_: _terminate())
    _sweep(cache_dir())
    with tempfile.TemporaryDirectory(
        prefix=f"data-{os.getpid()}-", dir=cache_dir(), ignore_cleanup_errors=True
    ) as folder:
        made = Rig(settings, Client(), Path(folder))
        try:
            yield made
        finally:
            made.stop()


def _terminate() -> None:
    raise SystemExit(128 + signal.SIGTERM)
