"""What a peer is, and a running instance of one."""

import json
import os
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any

from bench.process import BenchError, Server, free_port

START_SECONDS = 60
READY_SECONDS = 5
CALL_SECONDS = 60
FILL_KIB = 4000  # of one fill call: four rows, well inside any limit on a call's time


class RefusedError(BenchError):
    """The server answered, with another status than success."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def cache_dir() -> Path:
    """Where peers are installed and temporary data lives: `DOMICILE_BENCH_CACHE` or ~/.cache/domicile-bench."""
    path = Path(os.environ.get("DOMICILE_BENCH_CACHE") or "~/.cache/domicile-bench").expanduser().resolve()
    path.mkdir(parents=True, exist_ok=True)
    return path


class Peer(ABC):
    """One product under test. `prepare` comes first; after it `start` may be called any number of times."""

    name: str
    title: str
    answer_means: str
    has_objects = True  # False: an "object" is a row of one shared database
    restores_from_store = False

    @abstractmethod
    def prepare(self) -> None:
        """Install what is missing, or raise `BenchError` with the reason."""

    @abstractmethod
    def versions(self) -> dict[str, str]: ...

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
        return Instance(self, data)


class Instance:
    """A peer that runs on a free loopback port with its data in a folder; it can sleep and wake there."""

    def __init__(self, peer: Peer, data: Path) -> None:
        self.peer, self.data = peer, data
        self._start()

    def _start(self) -> None:
        self.port = free_port()
        command = self.peer.command(self.port, self.data)
        log = self.data.with_name(f"{self.data.name}.log")
        self.server = Server(command, log, self.peer.environment(self.data), cwd=self.data)
        try:
            # The first call answers "ready", and pays for what a process does once, not an object.
            self.server.wait_until(self._answers, START_SECONDS)
        except BaseException:
            self.server.stop()
            raise

    def _answers(self) -> bool:
        try:
            return isinstance(self._ask("warm", "increment", (), False, READY_SECONDS), int)
        except RefusedError as refused:
            if refused.status == HTTPStatus.SERVICE_UNAVAILABLE:
                return False
            raise

    def stop(self) -> None:
        self.server.stop()

    def restart(self, lose_local_files: bool = False) -> None:
        self.stop()
        if lose_local_files:
            self.peer.lose_local_files(self.data)
        self._start()

    def call(self, name: str, method: str, *args: Any, ballast: bool = False) -> Any:
        """One call from the harness itself, outside any measurement."""
        try:
            return self._ask(name, method, args, ballast, CALL_SECONDS)
        except OSError as failed:
            raise BenchError(f"{self.peer.name} did not answer {method}: {failed}") from failed

    def _ask(self, name: str, method: str, args: Sequence[Any], ballast: bool, seconds: float) -> Any:
        url = f"http://127.0.0.1:{self.port}{self.peer.path(name, method, ballast)}"
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
