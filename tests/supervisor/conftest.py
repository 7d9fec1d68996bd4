"""A supervisor under test, and a node in small for it to keep."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from living import alive

from domicile.node.supervisor import command_line

# A node in small: says that it runs, ends in order on SIGTERM, and leaves a process of its own behind.
CHILD = """
import os, pathlib, signal, subprocess, sys, time
where = pathlib.Path(sys.argv[1])
def end(number, frame):
    (where / "ended").write_text(signal.Signals(number).name)
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
signal.signal(signal.SIGINT, end)
left = subprocess.Popen(["sleep", "1000"])
with open(where / "starts.new", "a") as file:
    file.write(f"{os.getpid()} {os.getpgid(0)} {os.getppid()} {left.pid} {os.environ['DOMICILE_LOCK_FD']}\\n")
(where / "starts").unlink(missing_ok=True)
os.link(where / "starts.new", where / "starts")
while True:
    time.sleep(1000)
"""


def until(holds: Callable[[], Any], secs: float = 60.0) -> Any:
    """What `holds` gives as soon as it is true."""
    end = time.monotonic() + secs
    while time.monotonic() < end:
        if value := holds():
            return value
        time.sleep(0.01)
    raise AssertionError("it did not come true")


class Under:
    """A supervisor under test, its child's notes and its log."""

    def __init__(self, where: Path, code: str, *, once: bool = False, etcd: dict[str, Any] | None = None) -> None:
        self.where = where
        self.data = str(where / "data")
        child = [sys.executable, "-c", code, str(where)]
        self.log = where / f"log-{time.monotonic_ns()}"  # a file: what a child leaves behind would keep a pipe open
        with self.log.open("w") as log:
            self.process = subprocess.Popen(command_line(self.data, child, once=once, etcd=etcd), stderr=log)

    def starts(self) -> list[list[int]]:
        """pid, group, parent, what it left, lock descriptor, of each child so far."""
        try:
            return [[int(n) for n in line.split()] for line in (self.where / "starts").read_text().splitlines()]
        except FileNotFoundError:
            return []

    def start(self, number: int) -> list[int]:
        """The notes of the n-th child, once it runs."""
        return until(lambda: len(s := self.starts()) >= number and s)[number - 1]  # type: ignore[no-any-return]

    def end(self) -> tuple[int, list[dict[str, Any]]]:
        status = self.process.wait(timeout=60)
        return status, [json.loads(line) for line in self.log.read_text().splitlines()]


Run = Callable[..., Under]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    made: list[Under] = []

    def make(code: str = CHILD, *, once: bool = False, stubborn: bool = False, etcd: Any = None) -> Under:
        made.append(Under(tmp_path, code.replace("sys.exit(0)", "pass") if stubborn else code, once=once, etcd=etcd))
        return made[-1]

    yield make
    for under in made:
        if under.process.poll() is None:
            under.process.kill()
        under.process.wait(timeout=60)
        for start in under.starts():
            for pid in (start[0], start[3]):
                if alive(pid):
                    os.kill(pid, signal.SIGKILL)


@pytest.fixture(name="until")
def until_fixture() -> Callable[..., Any]:
    """`until(holds)` gives what `holds` gives as soon as it is true."""
    return until


@pytest.fixture(name="alive")
def alive_fixture() -> Callable[[int], bool]:
    """Whether a process runs; the dead that nobody reaped do not."""
    return alive
