"""What a peer is, and a running instance of one."""

import json
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from bench.process import BenchError, Server, Servers, free_port

if TYPE_CHECKING:
    from bench.load import Answers, Client, Load

START_SECONDS = 60
READY_SECONDS = 5
CALL_SECONDS = 60
FILL_KIB = 4000  # of one fill call: four rows, well inside any limit on a call's time


class RefusedError(BenchError):
    """The server answered, with another status than success."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Peer(ABC):
    """One product under test. `prepare` comes first; after it `start` may be called any number of times."""

    name: str
    title: str
    answer_means: str
    has_objects = True  # False: an "object" is a row of one shared database
    restores_from_store = False
    reads = True
    many_nodes = False  # True: objects have a home among several nodes, and all of them can be called

    @abstractmethod
    def prepare(self) -> None:
        """Install what is missing, or raise `BenchError` with the reason."""

    @abstractmethod
    def versions(self) -> dict[str, str]: ...

    @abstractmethod
    def start(self, data: Path) -> "Instance":
        """A new instance with its data in that folder, or where an earlier one left it."""


class HttpPeer(Peer):
    """A peer that is one command and answers JSON over HTTP."""

    @abstractmethod
    def command(self, port: int, data: Path) -> Sequence[str]: ...

    @abstractmethod
    def path(self, name: str, method: str, ballast: bool = False) -> str:
        """The request path of `method` on the object `name`; `ballast` says it is one of the filled ones."""

    def environment(self, data: Path) -> Mapping[str, str]:
        return {}

    def lose_local_files(self, data: Path) -> None:
        """Delete what the node keeps of its objects, leaving only the blob store's copy."""
        raise NotImplementedError

    def start(self, data: Path) -> "Instance":
        data.mkdir(parents=True, exist_ok=True)
        return HttpInstance(self, data)


class Instance(ABC):
    """A peer that runs on free loopback ports with its data in a folder."""

    server: Server | Servers
    data: Path
    idle_cores: ClassVar[float] = 0.0  # what its servers use when nothing is asked of them

    @abstractmethod
    def run(self, client: "Client", load: "Load") -> "Answers": ...

    @abstractmethod
    def increments(self) -> int:
        """How many there have been of the object `one`, by the peer's own count."""

    @abstractmethod
    def restart(self) -> None: ...

    def roles(self, load: "Load") -> Mapping[str, Sequence[int]]:
        """Root processes by what they do under this load. Empty when one process does it all."""
        return {}

    def stop(self) -> None:
        self.server.stop()


class HttpInstance(Instance):
    """One command that is called over HTTP; it can sleep and wake where its data is."""

    nodes = 1

    def __init__(self, peer: HttpPeer, data: Path) -> None:
        self.peer, self.data = peer, data
        self._start()

    def _start(self) -> None:
        self.port = self._free_port()
        command = self.peer.command(self.port, self.data)
        log = self.data.with_name(f"{self.data.name}.log")
        self.server = Server(command, log, self.peer.environment(self.data), cwd=self.data)
        try:
            # The first call answers "ready", and pays for what a process does once, not an object.
            self.server.wait_until(self._answers, START_SECONDS)
        except BaseException:
            self.server.stop()
            raise

    def _free_port(self) -> int:
        return free_port()

    def run(self, client: "Client", load: "Load") -> "Answers":
        return client.http([self.port], self.peer.path(load.name, load.method, load.ballast), load)

    def increments(self) -> int:
        return int(self.call("one", "read"))

    def _answers(self) -> bool:
        try:
            return isinstance(self._ask("warm", "increment", (), False, READY_SECONDS), int)
        except RefusedError as refused:
            if refused.status == HTTPStatus.SERVICE_UNAVAILABLE:
                return False
            raise

    def restart(self, lose_local_files: bool = False) -> None:
        self.stop()
        if lose_local_files:
            self.peer.lose_local_files(self.data)
        self._start()

    def call(self, name: str, method: str, *args: Any, ballast: bool = False, node: int = 0) -> Any:
        """One call from the harness itself, outside any measurement."""
        try:
            return self._ask(name, method, args, ballast, CALL_SECONDS, node)
        except OSError as failed:
            raise BenchError(f"{self.peer.name} did not answer {method}: {failed}") from failed

    def _ask(self, name: str, method: str, args: Sequence[Any], ballast: bool, seconds: float, node: int = 0) -> Any:
        url = f"http://127.0.0.1:{self.port + node}{self.peer.path(name, method, ballast)}"
        request = urllib.request.Request(url, json.dumps(args).encode(), {"Content-Type": "application/json"})
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=seconds) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as refused:
            detail = refused.read()[:300].decode(errors="replace")
            raise RefusedError(
                refused.code, f"{self.peer.name} answered {refused.code} to {method}: {detail}"
            ) from None

    def fill(self, name: str, kib: int) -> None:
        for at in range(0, kib, FILL_KIB):
            self.call(name, "fill", min(FILL_KIB, kib - at), ballast=True)
