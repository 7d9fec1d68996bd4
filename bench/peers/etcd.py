"""etcd: three members, 16-byte puts and linearizable reads of one key, by h2load speaking gRPC to the leader."""

import base64
import dataclasses
import json
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from bench import h2load
from bench.peers.base import START_SECONDS, Instance, Peer
from bench.process import BenchError, Server, Servers, free_ports

if TYPE_CHECKING:
    from bench.load import Answers, Client, Load

MEMBERS = 3
KEY, VALUE = b"one", b"v" * 16
ASK_SECONDS = 3
REST_SECONDS, REST_SECONDS_MAX = 0.25, 5.0


class Etcd(Peer):
    """Debian's etcd-server, default settings."""

    name = "etcd"
    title = "etcd, three members, one key of 16 bytes"
    answer_means = "a majority of the three members has synced the entry to its WAL"
    has_objects = False

    def prepare(self) -> None:
        if shutil.which("etcd") is None:
            raise BenchError("etcd is not installed: sudo apt install etcd-server")
        h2load.require()

    def versions(self) -> dict[str, str]:
        said = subprocess.run(["etcd", "--version"], capture_output=True, text=True, check=True).stdout
        return {"etcd": said.splitlines()[0].rpartition(" ")[2], "h2load": h2load.version()}

    def start(self, data: Path) -> Instance:
        data.mkdir(parents=True, exist_ok=True)
        return EtcdInstance(data)


class EtcdInstance(Instance):
    """Member i answers clients at the first port + i."""

    idle_cores: ClassVar[float] = 0.1

    def __init__(self, data: Path) -> None:
        self.data = data
        self._start()

    def _start(self) -> None:
        self._port = free_ports(2 * MEMBERS)
        names = [f"m{i}={_url(self._port + MEMBERS + i)}" for i in range(MEMBERS)]
        self.server: Servers = Servers()
        try:
            for i in range(MEMBERS):
                command = _command(i, self._port + i, self._port + MEMBERS + i, ",".join(names), self.data)
                log = self.data.with_name(f"{self.data.name}-{i}.log")
                self.server.each.append(Server(command, log, {}, cwd=self.data))
            self.server.wait_until(lambda: self._leader() is not None and self.increments() > 0, START_SECONDS)
        except BaseException:
            self.server.stop()
            raise

    def restart(self) -> None:
        """From nothing: the members' addresses are in their data."""
        self.stop()
        for i in range(MEMBERS):
            shutil.rmtree(self.data / f"m{i}", ignore_errors=True)
        self._start()

    def run(self, client: "Client", load: "Load") -> "Answers":
        method = "Put" if load.method == "increment" else "Range"
        message = h2load.field(1, KEY) + (h2load.field(2, VALUE) if method == "Put" else b"")
        url, before = _url(self._port + self._sure_leader()), self.increments()
        answers = h2load.run(url, f"etcdserverpb.KV/{method}", message, load, self.data)
        if method == "Range":
            return answers
        # The status of a gRPC call comes after its answer, where h2load does not look: the puts there were are counted.
        if (ran := self._at_rest() - before) < answers.kept:
            raise BenchError(f"{answers.kept} puts were answered and {ran} were counted")
        return dataclasses.replace(answers, answered=ran)

    def increments(self) -> int:
        """Every put is a revision, and nothing else is done here."""
        asked = _ask(self._port + self._sure_leader(), "kv/range", {"key": base64.b64encode(KEY).decode()})
        return int(asked["header"]["revision"])

    def _at_rest(self) -> int:
        """The increments, once there come no more: h2load cuts what is outstanding at the end of its time, one put a
        connection, and a read does not wait for puts that are proposed and not yet committed."""
        end, counted = time.monotonic() + REST_SECONDS_MAX, self.increments()
        while True:
            time.sleep(REST_SECONDS)
            before, counted = counted, self.increments()
            if counted == before:
                return counted
            if time.monotonic() > end:
                raise BenchError("etcd goes on putting although its client has ended")

    def roles(self, load: "Load") -> Mapping[str, Sequence[int]]:
        leader = self._sure_leader()
        pids = [server.pid for server in self.server.each]
        return {"leader": pids[leader : leader + 1], "follower": pids[:leader] + pids[leader + 1 :]}

    def _sure_leader(self) -> int:
        leader = self._leader()
        if leader is None:
            raise BenchError("etcd has no leader")
        return leader

    def _leader(self) -> int | None:
        for i in range(MEMBERS):
            status = _ask(self._port + i, "maintenance/status", {})
            if status.get("leader") and status["leader"] == status["header"]["member_id"]:
                return i
        return None


def _command(i: int, client: int, peer: int, everyone: str, data: Path) -> Sequence[str]:
    return [
        *("etcd", "--name", f"m{i}", "--data-dir", str(data / f"m{i}")),
        *("--listen-client-urls", _url(client), "--advertise-client-urls", _url(client)),
        *("--listen-peer-urls", _url(peer), "--initial-advertise-peer-urls", _url(peer)),
        *("--initial-cluster", everyone, "--initial-cluster-state", "new"),
        *("--quota-backend-bytes", str(8 << 30), "--logger", "zap", "--log-level", "error"),
    ]


def _url(port: int) -> str:
    return f"http://127.0.0.1:{port}"


def _ask(port: int, what: str, message: dict[str, Any]) -> Any:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(f"{_url(port)}/v3/{what}", json.dumps(message).encode())
    with opener.open(request, timeout=ASK_SECONDS) as answer:
        return json.load(answer)
