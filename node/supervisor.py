"""The parent of a node's process: tiny, so that it does not die, and first to know when the child did (PROTOCOLS
section 3).

It locks the data directory, starts the child under it, and waits. The lock is inherited: while either lives, no second
node can use the directory. A child that died takes its process group with it, and is started again; a supervisor that
dies takes the child with it. Signals to end are passed on once; the second kills. Where the placement store is etcd, it
makes the child's grant and deregisters a dead child before it starts the next (`etcd_gateway`).

This file imports the standard library only and runs as a script (`command_line`), so that nothing of the node is in
this process. Exit statuses:

    0      the child ended in order            75   the data directory is in use
    n      what the child ended with           78   the child cannot start as configured; not tried again
    128+n  the child was killed by signal n
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import importlib.util
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from domicile.node.etcd_gateway import Registrar

EXIT_IN_USE = 75
EXIT_REPLACE = 86  # the child asks to be replaced at once: a method's thread can no longer be stopped
EXIT_HOPELESS = 78  # the child says that starting it again would not help: a setting is wrong
LOCK_FILE = "lock"
LOCK_FD_VARIABLE = "DOMICILE_LOCK_FD"
BACKOFF_FIRST_SECS = 0.1
BACKOFF_MAX_SECS = 5.0
RAN_WELL_SECS = 30.0

_ENDINGS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_WATCHED = (*_ENDINGS, signal.SIGCHLD)
_PR_SET_PDEATHSIG = 1

Log = Callable[[str, Mapping[str, object]], None]
BeforeChild = Callable[[], Mapping[str, str]]
OnDeath = Callable[[int, int], None]


class InUseError(Exception):
    """Another process holds the data directory."""


@dataclass(frozen=True)
class Death:
    """How a child ended; `status` as a shell tells it."""

    pid: int
    status: int
    ran_secs: float


def command_line(
    data: str, child: Sequence[str], *, once: bool = False, quiet: bool = False, etcd: Mapping[str, Any] | None = None
) -> list[str]:
    """What to exec to become the supervisor of the command `child` over the data directory `data`.

    `quiet` tells only of a child that is started again. `etcd` is what `registrar` takes.
    """
    flags = [*(["--once"] if once else []), *(["--quiet"] if quiet else [])]
    flags += ["--etcd", json.dumps(etcd)] if etcd is not None else []
    # Isolated: neither this directory nor the environment may put another module in the place of the library's.
    return [sys.executable, "-I", "-S", __file__, "--data", data, *flags, "--", *child]


def lock_data(data: str) -> int:
    """Lock the directory for this process and those it starts. Gives the descriptor. Raises InUseError, OSError."""
    os.makedirs(data, exist_ok=True)
    fd = os.open(os.path.join(data, LOCK_FILE), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(fd, 32, 0).decode("ascii", "replace").strip()
        os.close(fd)
        raise InUseError(f"the data directory {data} is in use by process {holder or '(unknown)'}") from None
    os.ftruncate(fd, 0)
    os.pwrite(fd, b"%d\n" % os.getpid(), 0)
    return fd


def inherited_lock(environ: Mapping[str, str], data: str) -> int | None:
    """The descriptor of the lock a supervisor holds for this process on `data`, or None when there is none."""
    number = environ.get(LOCK_FD_VARIABLE, "")
    if not number.isdigit():
        return None
    try:
        held, wanted = os.fstat(int(number)), os.stat(os.path.join(data, LOCK_FILE))
    except OSError:
        return None
    return int(number) if (held.st_dev, held.st_ino) == (wanted.st_dev, wanted.st_ino) else None


class Supervisor:
    """Keeps one child running.

    `before_child()` is called before each is started and adds to its environment; `on_death(pid, status)` when it is
    reaped, before the next starts.
    """

    def __init__(
        self,
        child: Sequence[str],
        lock_fd: int,
        log: Log,
        now: Callable[[], float],
        *,
        before_child: BeforeChild | None = None,
        on_death: OnDeath | None = None,
    ) -> None:
        self._child = list(child)
        self._lock_fd = lock_fd
        self._log = log
        self._now = now
        self._before_child = before_child
        self._on_death = on_death
        self._asked = 0  # how often the supervisor was told to end
        self._pid = 0

    def run(self, *, once: bool = False) -> int:
        """Start the child, again and again, until it is to end; gives the exit status."""
        signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
        backoff = BACKOFF_FIRST_SECS
        while True:
            death = self._run_child()
            if once or self._asked or death.status in (0, EXIT_HOPELESS):
                self._log("supervisor.end", {"status": death.status})
                return death.status
            if death.ran_secs >= RAN_WELL_SECS:
                backoff = BACKOFF_FIRST_SECS
            if death.status != EXIT_REPLACE:
                self._log("supervisor.restart", {"in_secs": backoff})
                if self._told_to_end_within(backoff):
                    return death.status
                backoff = min(2 * backoff, BACKOFF_MAX_SECS)

    def _run_child(self) -> Death:
        environ = {**os.environ, **(self._before_child() if self._before_child else {})}
        began = self._now()
        self._pid = self._spawn(environ)
        self._log("supervisor.started", {"child": self._pid})
        # Not yet reaped, its pid and group belong to nobody else: what is killed is what it left behind.
        while not (info := os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)):
            self._heed(signal.sigwaitinfo(_WATCHED).si_signo)
        self._kill_group()
        os.waitpid(self._pid, 0)
        status = info.si_status if info.si_code == os.CLD_EXITED else 128 + info.si_status
        death = Death(self._pid, status, self._now() - began)
        self._log(
            "supervisor.child_ended", {"child": death.pid, "status": status, "ran_secs": round(death.ran_secs, 3)}
        )
        if self._on_death is not None:
            self._on_death(death.pid, status)
        return death

    def _spawn(self, environ: Mapping[str, str]) -> int:
        parent = os.getpid()
        pid = os.fork()
        if pid:
            _ignoring(ProcessLookupError, PermissionError, do=lambda: os.setpgid(pid, pid))  # whoever is first
            return pid
        try:
            os.setpgid(0, 0)
            ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)  # it died before it could be bound to
            os.set_inheritable(self._lock_fd, True)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _WATCHED)
            os.execvpe(self._child[0], self._child, {**environ, LOCK_FD_VARIABLE: str(self._lock_fd)})  # noqa: S606 - no shell is meant
        except OSError as error:
            os.write(2, f"cannot start {self._child[0]}: {error.strerror}\n".encode())
        finally:
            os._exit(EXIT_HOPELESS)

    def _heed(self, number: int) -> None:
        if number == signal.SIGCHLD:
            return
        self._asked += 1
        self._log("supervisor.told_to_end", {"signal": signal.Signals(number).name, "times": self._asked})
        if self._asked == 1:
            os.kill(self._pid, signal.SIGINT if number == signal.SIGINT else signal.SIGTERM)
        else:
            self._kill_group()

    def _kill_group(self) -> None:
        _ignoring(ProcessLookupError, PermissionError, do=lambda: os.killpg(self._pid, signal.SIGKILL))

    def _told_to_end_within(self, secs: float) -> bool:
        until = self._now() + secs
        while (left := until - self._now()) > 0:
            told = signal.sigtimedwait(_WATCHED, left)
            if told is not None and told.si_signo != signal.SIGCHLD:
                return True
        return False


def registrar(etcd: Mapping[str, Any], data: str, log: Log) -> Registrar:
    """What deals with etcd for the children. `etcd`: `access` (`etcd_gateway.Access`), `root`, `ttl_secs`.

    Raises OSError, ssl.SSLError for files that cannot be used.
    """
    # This process sees no package (`command_line`): the module is the file beside this one.
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "etcd_gateway.py")
    spec = importlib.util.spec_from_file_location("etcd_gateway", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look themselves up there
    spec.loader.exec_module(module)
    gateway = module.Gateway(module.Access(**etcd["access"]), module.Timer(time.monotonic, time.sleep))
    made: Registrar = module.Registrar(gateway, etcd["root"], etcd["ttl_secs"], data, log)
    return made


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


def _ignoring(*errors: type[OSError], do: Callable[[], None]) -> None:
    try:
        do()
    except errors:
        return


def _log_line(event: str, fields: Mapping[str, object]) -> None:
    line = {"timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "level": "info", "event": event, **fields}
    print(json.dumps(line), file=sys.stderr, flush=True)


def _log_restarts(event: str, fields: Mapping[str, object]) -> None:
    if event == "supervisor.restart":
        print(f"domicile: the node ended; starting it again in {fields['in_secs']} s", file=sys.stderr, flush=True)


def main(arguments: Sequence[str]) -> int:
    """`supervisor.py --data DIR [--once] [--quiet] -- COMMAND…`; gives the exit status."""
    parser = argparse.ArgumentParser(prog="domicile-supervisor")
    parser.add_argument("--data", required=True, help="the node's data directory")
    parser.add_argument("--once", action="store_true", help="do not start the child again")
    parser.add_argument("--quiet", action="store_true", help="tell only of restarts, in words")
    parser.add_argument("--etcd", type=json.loads, help="where children are registered, as JSON")
    parser.add_argument("child", nargs="+", help="the child's command")
    options = parser.parse_args(arguments)
    log = _log_restarts if options.quiet else _log_line
    try:
        fd = lock_data(options.data)
        etcd = registrar(options.etcd, options.data, log) if options.etcd else None
    except (InUseError, OSError) as error:
        print(f"domicile: {error}", file=sys.stderr)
        return EXIT_IN_USE if isinstance(error, InUseError) else 1
    if etcd is None:
        return Supervisor(options.child, fd, log, time.monotonic).run(once=options.once)
    return Supervisor(
        options.child,
        fd,
        log,
        time.monotonic,
        before_child=lambda: etcd.before_child(_wall_ms()),
        on_death=lambda pid, status: etcd.after_child(status, _wall_ms()),
    ).run(once=options.once)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
