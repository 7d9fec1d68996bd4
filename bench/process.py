"""Server processes: started in their own session, watched, measured, and ended by their own pid."""

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

_libc = ctypes.CDLL(None)
_TICKS = os.sysconf("SC_CLK_TCK")
_PR_SET_PDEATHSIG = 1
STOP_SECONDS = 30


class BenchError(Exception):
    """Something needed for a measurement is not there; the message says what."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def free_ports(count: int) -> int:
    """The first of `count` free ports in a row."""
    for _ in range(200):
        first = free_port()
        with contextlib.ExitStack() as probes, contextlib.suppress(OSError, OverflowError):
            for port in range(first, first + count):
                probes.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first
    raise BenchError(f"there are no {count} free ports in a row")


def die_with_parent(signum: int) -> Callable[[], None]:
    """For `preexec_fn`: the kernel sends the child `signum` when this process ends, however it ends."""
    parent = os.getpid()

    def arrange() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, signum)
        if os.getppid() != parent:
            os._exit(1)

    return arrange


def _environment() -> dict[str, str]:
    """This process's environment without settings meant for another node, or for the benchmarks themselves."""
    return {name: value for name, value in os.environ.items() if not name.startswith("DOMICILE_")}


class Server:
    """One server and the processes it starts."""

    def __init__(self, command: Sequence[str], log: Path, env: Mapping[str, str], cwd: Path) -> None:
        self._log = log
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**_environment(), **env},
                cwd=cwd,
                start_new_session=True,
                preexec_fn=die_with_parent(signal.SIGTERM),
            )
        self.pid = self._process.pid

    def wait_until(self, ready: Callable[[], bool], seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if not self.running:
                raise BenchError(f"the server ended with code {self._process.returncode}: {self.log_tail()}")
            try:
                if ready():
                    return
            except OSError:
                pass
            time.sleep(0.03)
        raise BenchError(f"the server was not ready within {seconds:.0f} s: {self.log_tail()}")

    def log_tail(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return " | ".join(line.strip() for line in lines[-6:])[-700:] or "(it logged nothing)"

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def ask_to_stop(self) -> None:
        if self.running:
            self._process.terminate()

    def stop(self) -> None:
        """SIGTERM and wait; a server that stays, or leaves a child behind, has its own process group killed."""
        if self.running:
            self._process.terminate()
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                print(f"    process {self.pid} did not stop within {STOP_SECONDS} s and is killed", flush=True)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()

    def tree(self) -> list[int]:
        return _tree(self.pid)

    def cpu_seconds(self) -> float:
        """User and system time of the tree; the time of children already reaped is in their parent's."""
        return tree_cpu_seconds(self.pid)

    def rss_bytes(self) -> int:
        return sum(_rss(pid) for pid in self.tree())


class Servers:
    """Several servers that are one product: what can be asked of one can be asked of all together."""

    def __init__(self, all_of_them: Sequence[Server] = ()) -> None:
        self.each = list(all_of_them)

    @property
    def running(self) -> bool:
        return all(server.running for server in self.each)

    def wait_until(self, ready: Callable[[], bool], seconds: float) -> None:
        """Raises BenchError when one ends before, or time is up."""
        end = time.monotonic() + seconds
        done = False
        while not done:
            done = self._ready(ready)
            for server in self.each:
                server.wait_until(lambda: True, 1)
            if not done and time.monotonic() > end:
                raise BenchError(f"not ready within {seconds:.0f} s: {self.each[0].log_tail()}")
            time.sleep(0.1)

    @staticmethod
    def _ready(ready: Callable[[], bool]) -> bool:
        try:
            return ready()
        except (OSError, ValueError):
            return False

    def stop(self) -> None:
        for server in self.each:
            server.ask_to_stop()
        for server in self.each:
            server.stop()

    def tree(self) -> list[int]:
        return [pid for server in self.each for pid in server.tree()]

    def cpu_seconds(self) -> float:
        return sum(server.cpu_seconds() for server in self.each)

    def rss_bytes(self) -> int:
        return sum(server.rss_bytes() for server in self.each)


def tree_cpu_seconds(root: int) -> float:
    return sum(_stat_cpu(pid) for pid in _tree(root))


def _stat(pid: int | str) -> list[str]:
    """The fields of /proc/PID/stat after the command's name: [0] is the state, [1] the parent."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return []


def _tree(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (fields := _stat(entry)):
            children.setdefault(int(fields[1]), []).append(int(entry))
    found, todo = [], [root]
    while todo:
        pid = todo.pop()
        found.append(pid)
        todo += children.get(pid, [])
    return found


def _stat_cpu(pid: int) -> float:
    fields = _stat(pid)
    return sum(int(ticks) for ticks in fields[11:15]) / _TICKS if fields else 0.0


def _rss(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def machine_cpu_seconds() -> float:
    """Time all cores have spent busy, time stolen by other virtual machines included."""
    with open("/proc/stat") as lines:
        user, nice, system, _idle, _wait, irq, softirq, steal = (int(x) for x in lines.readline().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / _TICKS
