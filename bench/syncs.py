"""What an answer really cost the disk: sync calls per increment, as strace sees the server make them."""

import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from bench.cases import SHARED
from bench.load import Load
from bench.peers import Peer
from bench.process import BenchError, die_with_parent
from bench.rig import Rig

_CALLS = "fsync,fdatasync,sync_file_range,msync,sync,syncfs,pwritev2"
_LINE = re.compile(r"^\d+\s+(\w+)\((.*)")
_ATTACH_SECONDS = 10


@dataclass(frozen=True)
class Syncs:
    """The sync calls of one peer under one closed loop of increments on one object."""

    peer: str
    conns: int
    calls: int
    by_name: dict[str, int]

    @property
    def per_call(self) -> float:
        return sum(self.by_name.values()) / self.calls


def count_syncs(rig: Rig, peer: Peer, conns: int) -> Syncs:
    target = rig.instance(peer, SHARED)
    rig.settle()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace"
        tracer = _attach(target.server.tree(), trace)
        try:
            answers = rig.drive(target, Load("increment", "one", conns=conns, count=300 if conns == 1 else 2000))
            rig.settle()
        finally:
            tracer.send_signal(signal.SIGINT)
            tracer.wait(_ATTACH_SECONDS)
        if answers.errors:
            raise BenchError(f"{answers.errors} errors under strace: {answers.error}")
        return Syncs(peer.name, conns, answers.answered, _syncs_in(trace.read_text(errors="replace")))


def _attach(pids: list[int], trace: Path) -> "subprocess.Popen[bytes]":
    if shutil.which("strace") is None:
        raise BenchError("strace is not installed")
    command = ["strace", "-f", "-qq", "-o", str(trace), "-e", f"trace={_CALLS}"]
    tracer = subprocess.Popen(
        [*command, *(part for pid in pids for part in ("-p", str(pid)))],
        stderr=subprocess.PIPE,
        preexec_fn=die_with_parent(signal.SIGINT),
    )
    end = time.monotonic() + _ATTACH_SECONDS
    while time.monotonic() < end and tracer.poll() is None:
        if all(_traced(pid) for pid in pids):
            return tracer
        time.sleep(0.05)
    tracer.terminate()
    _, said = tracer.communicate()
    raise BenchError(f"strace could not attach: {said.decode(errors='replace').strip()[-200:]}")


def _traced(pid: int) -> bool:
    """All threads of a process have a tracer."""
    statuses = [(task / "status").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
    return not any(re.search(r"^TracerPid:\s+0$", status, re.M) for status in statuses)


def _syncs_in(trace: str) -> dict[str, int]:
    """Sync calls by name; a pwritev2 counts when its flags make it one."""
    found: Counter[str] = Counter()
    for line in trace.splitlines():
        match = _LINE.match(line)
        if match is None:
            continue
        name, rest = match.groups()
        if name != "pwritev2":
            found[name] += 1
        elif "SYNC" in rest:
            found["pwritev2 with RWF_DSYNC"] += 1
    return dict(found)
