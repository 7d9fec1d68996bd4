"""`domicile up` for tests: real processes, one command, and what a person does with them: call, kill, start again."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from etcd_servers import until
from ports import free_run

WAIT_SECS = 60.0
CLI = (sys.executable, "-m", "domicile.cli.main")
NODES_MAX = 8


class UpCluster:
    """The running command over `folder`; `arguments` are its own, `settings` go into the nodes' environment."""

    def __init__(self, folder: Path, app: str, *arguments: str, **settings: str) -> None:
        self.data = folder / "up"
        (folder / "app.py").write_text(app)
        kept = {n: v for n, v in os.environ.items() if not n.startswith(("DOMICILE_", "NODE_", "OBJECT_"))}
        self.env = {**kept, "DOMICILE_PROFILE": "fast", **settings}
        self._again: list[subprocess.Popen[bytes]] = []
        self._said = (folder / "said").open("wb")
        # Two at once would both find the usual ports free.
        own = ("--json", "--data", str(self.data), "--app", str(folder / "app.py"), "--port", str(free_run(NODES_MAX)))
        command = [*CLI, "up", *own, *arguments]
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, (folder / "said").read_text()
        self.first: dict[str, Any] = json.loads(line)

    def now(self) -> dict[str, Any]:
        """`cluster.json`."""
        found: dict[str, Any] = json.loads((self.data / "cluster.json").read_text())
        return found

    def node(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = next(node for node in self.now()["nodes"] if node["name"] == name)
        return found

    def named(self, node_id: str) -> str:
        return str(next(node["name"] for node in self.now()["nodes"] if node["node_id"] == node_id))

    def ask(self, verb: str, name: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        """Status and JSON; 0: nobody answered."""
        sent = None if body is None else json.dumps(body).encode()
        kinds = {"Content-Type": "application/json", **headers}
        request = urllib.request.Request(self.node(name)["http"] + path, sent, kinds, method=verb)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                said = answer.read()
                return answer.status, json.loads(said) if said else None
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())
        except OSError as error:
            return 0, repr(error)

    def get(self, name: str, path: str) -> Any:
        """JSON, or the text where it is none."""
        with urllib.request.urlopen(self.node(name)["http"] + path, timeout=30) as answer:
            body = answer.read()
        return json.loads(body) if body[:1] in b"{[" else body.decode()

    def call(self, name: str, cls: str, obj: str, method: str, *args: Any) -> Any:
        """The answer; sent again while it may be."""

        def answered() -> list[Any]:
            status, found = self.ask("POST", name, f"/v1/acme/objects/{cls}/{obj}/{method}", list(args))
            assert status in (0, 200, 503), found
            return [found] if status == 200 else []

        return until(answered, WAIT_SECS, f"{method} of {cls}/{obj} is answered")[0]

    def described(self, name: str, cls: str, obj: str) -> dict[str, Any]:
        """As a node sees it; wakes nothing. Empty where it is not to be seen now."""
        status, found = self.ask("GET", name, f"/v1/acme/objects/{cls}/{obj}")
        return found if status == 200 else {}

    def command(self, *arguments: str, at: str, secs: float = WAIT_SECS) -> Any:
        """What `domicile … --json` prints."""
        asked = [*CLI, *arguments, "--json", "--url", self.node(at)["http"]]
        done = subprocess.run(asked, env=self.env, capture_output=True, text=True, timeout=secs, check=False)
        assert done.returncode == 0, (done.stdout, done.stderr)
        return json.loads(done.stdout)

    def lose(self, names: Sequence[str]) -> None:
        """As machines that are gone: supervisors and processes."""
        for name in names:
            node = self.node(name)
            for pid in (node["supervisor_pid"], node["pid"]):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        until(lambda: all(self.node(name)["pid"] is None for name in names), WAIT_SECS, "they are seen to be gone")

    def start(self, names: Sequence[str], at: str, count: int) -> None:
        """Again over the data they had; returns when `at` sees `count` nodes."""
        scripts = [f"{self.node(name)['data']}/start.sh" for name in names]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "env": self.env}
        self._again += [subprocess.Popen([script], **quiet) for script in scripts]  # type: ignore[call-overload]
        until(lambda: self.known(at, names) == count and all(map(self._ready, names)), WAIT_SECS, "they are back")

    def known(self, at: str, names: Sequence[str] = ()) -> int:
        """How many nodes of its region a node knows; 0: no answer, or one of these is not among them."""
        status, found = self.ask("GET", at, "/v1/cluster")
        ids = {node["node_id"] for node in found["nodes"]} if status == 200 else set()
        return len(ids) if ids.issuperset(self.node(name)["node_id"] for name in names) else 0

    def _ready(self, name: str) -> bool:
        return bool(self.node(name)["pid"]) and self.ask("GET", name, "/readyz")[0] == 200

    def end(self) -> None:
        for again in self._again:  # while what they stand on is there
            again.terminate()
        for again in self._again:
            again.wait(WAIT_SECS)
        self.process.send_signal(signal.SIGINT)
        self.process.wait(WAIT_SECS)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._said.close()

    @contextlib.contextmanager
    def stopped(self, pid: int) -> Iterator[None]:
        """It stands still meanwhile."""
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)
