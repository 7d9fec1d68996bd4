"""Real etcd for tests: one member or several, on free loopback ports, with the faults that tests need.

Every member dies with the process that started it, and is ended by its pid.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ports import free_ports

START_SECS = 60.0


def until(holds: Callable[[], Any], secs: float = START_SECS, why: str = "it did not come true") -> Any:
    """What `holds` gives as soon as it is true."""
    end = time.monotonic() + secs
    while time.monotonic() < end:
        if value := holds():
            return value
        time.sleep(0.02)
    raise AssertionError(why)


class Member:
    """One etcd process that can be killed, stopped, continued and started again over the same data."""

    def __init__(self, name: str, folder: Path, ports: tuple[int, int], flags: Sequence[str], scheme: str) -> None:
        self.name, self.folder, self.flags, self.scheme = name, folder, flags, scheme
        self.endpoint = f"127.0.0.1:{ports[0]}"
        self.peer = self.advertised = f"http://127.0.0.1:{ports[1]}"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def start(self, cluster: str, state: str = "new") -> None:
        # A member's first log would hide behind its second.
        with (self.folder / f"{self.name}.log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    # It dies with this process, however that ends; no fork handlers of gRPC's run, as with preexec_fn.
                    *(
                        "setpriv",
                        "--pdeathsig",
                        "KILL",
                        "etcd",
                        "--name",
                        self.name,
                        "--data-dir",
                        str(self.folder / self.name),
                    ),
                    *("--listen-client-urls", f"{self.scheme}://{self.endpoint}"),
                    *("--advertise-client-urls", f"{self.scheme}://{self.endpoint}"),
                    *("--listen-peer-urls", self.peer, "--initial-advertise-peer-urls", self.advertised),
                    *("--initial-cluster", cluster, "--initial-cluster-state", state),
                    *("--logger", "zap", "--log-level", "warn", *self.flags),
                ],
                # What the environment says to etcd is not meant for this one.
                env={name: value for name, value in os.environ.items() if not name.startswith("ETCD_")},
                stdout=log,
                stderr=log,
            )

    def signal(self, number: int) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)

    def freeze(self) -> None:
        self.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL, and the process is gone."""
        if self.process is not None:
            self.signal(signal.SIGKILL)
            self.process.wait(timeout=START_SECS)
            self.process = None

    def post(self, path: str, body: dict[str, Any] | None = None, secs: float = 2.0) -> dict[str, Any]:
        """The JSON gateway's answer; empty when there is none."""
        request = urllib.request.Request(f"http://{self.endpoint}{path}", json.dumps(body or {}).encode())
        try:
            with urllib.request.urlopen(request, timeout=secs) as answer:
                told: dict[str, Any] = json.load(answer)
                return told
        except (OSError, ValueError):
            return {}

    def ask(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """The same of a member that runs, however busy the machine is: silence is no answer."""
        told = self.post(path, body, START_SECS)
        assert told, f"{self.name} does not answer {path}"
        return told


class Etcd:
    """A cluster of members. `scheme` https takes the certificate's files in `flags`."""

    def __init__(self, folder: Path, count: int, flags: Sequence[str] = (), scheme: str = "http") -> None:
        ports = free_ports(2 * count)
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.scheme = folder, scheme
        self.members = [Member(f"m{n}", folder, (ports[2 * n], ports[2 * n + 1]), flags, scheme) for n in range(count)]

    @property
    def cluster(self) -> str:
        """Where members find each other: `advertised` may lead through a wire, set before the start."""
        return ",".join(f"{member.name}={member.advertised}" for member in self.members)

    @property
    def endpoints(self) -> tuple[str, ...]:
        return tuple(member.endpoint for member in self.members)

    def start(self) -> None:
        for member in self.members:
            member.start(self.cluster)
        if self.scheme == "http":
            until(self.healthy, why="etcd did not start")
        else:
            until(self.listening, why="etcd did not start")

    def restart(self, member: Member) -> None:
        member.start(self.cluster, "existing")

    def heal(self) -> None:
        """Every member runs and can order writes."""
        for member in self.members:
            member.thaw()
            if member.process is None:
                self.restart(member)
        until(self.healthy, why="etcd did not heal")

    def healthy(self) -> bool:
        """Whether every member that runs can order writes."""
        running = [member for member in self.members if member.process is not None]
        ping = {"key": base64.b64encode(b"\0health").decode()}
        return bool(running) and all("header" in member.post("/v3/kv/range", ping) for member in running)

    def listening(self) -> bool:
        for member in self.members:
            host, port = member.endpoint.split(":")
            with socket.socket() as probe:
                if probe.connect_ex((host, int(port))):
                    return False
        return True

    def leader(self) -> Member:
        """The member that says of itself that it leads, once one does."""

        def leads(member: Member) -> bool:
            status = member.post("/v3/maintenance/status") if member.process else {}
            return bool(status) and status.get("leader") == status["header"]["member_id"]

        found: Member = until(lambda: next(filter(leads, self.members), None), why="etcd has no leader")
        return found

    def lead(self, member: Member) -> None:
        """Have this member lead."""

        def leads() -> bool:
            leader = self.leader()
            if leader is not member:
                target = member.post("/v3/maintenance/status")["header"]["member_id"]
                leader.post("/v3/maintenance/transfer-leadership", {"targetID": target})
            return leader is member

        until(leads, why=f"{member.name} does not lead")

    def wipe(self) -> None:
        """Nothing is there any more, and no grant."""
        member = self.members[0]
        for lease in member.ask("/v3/lease/leases").get("leases", []):
            member.post("/v3/lease/revoke", {"ID": lease["ID"]}, START_SECS)  # it may have ended meanwhile
        everything = base64.b64encode(b"\0").decode()
        assert "header" in member.ask("/v3/kv/deleterange", {"key": everything, "range_end": everything})

    def compact(self) -> None:
        """Everything before the present is forgotten, for good."""
        key = base64.b64encode(b"/compacted").decode()
        put = self.members[0].ask("/v3/kv/put", {"key": key, "value": ""})
        self.members[0].ask("/v3/kv/deleterange", {"key": key})
        now = int(put["header"]["revision"]) + 1
        self.members[0].ask("/v3/kv/compaction", {"revision": str(now), "physical": True})

    def stop(self) -> None:
        for member in self.members:
            member.thaw()
            member.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


@contextlib.contextmanager
def running(folder: Path, count: int = 1, flags: Sequence[str] = (), scheme: str = "http") -> Iterator[Etcd]:
    """A cluster that is healthy at the beginning and gone at the end."""
    etcd = Etcd(folder, count, flags, scheme)
    try:
        etcd.start()
        yield etcd
    finally:
        etcd.stop()
