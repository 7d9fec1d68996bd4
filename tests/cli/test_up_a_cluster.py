"""`domicile up`: a real cluster by one command, what it says of itself, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from domicile import SyncClient

ROOT = Path(__file__).resolve().parent.parent.parent
COUNTER = ROOT / "examples" / "counter.py"
NODE_FIELDS = ["name", "region", "http", "node_id", "copy_id", "supervisor_pid", "pid", "data"]
Run = Callable[..., "subprocess.CompletedProcess[str]"]
Wait = Callable[[Callable[[], bool]], None]


def environ(**more: str) -> dict[str, str]:
    kept = {n: v for n, v in os.environ.items() if not n.startswith(("DOMICILE_", "NODE_", "OBJECT_"))}
    return {**kept, "DOMICILE_PROFILE": "fast", **more}


class Running:
    """`domicile up --json` over a directory; `first` is the document it printed."""

    def __init__(self, data: Path, *arguments: str) -> None:
        self.data = data
        self.said = data.parent / f"{data.name}.said"
        with self.said.open("ab") as said:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "domicile.cli.main", "up", "--data", str(data), "--json", *arguments],
                cwd=data.parent,
                env=environ(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"it ended before it was ready: {self.said.read_text()}"
        self.first: dict[str, Any] = json.loads(line)

    def now(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.data / "cluster.json").read_text())
        return found

    def pids(self) -> list[int]:
        """Everything it started, by what it says."""
        document = self.now()
        found = [*document["etcd"]["pids"]]
        found += [document[part]["pid"] for part in ("control", "temporal") if document[part]]
        for node in document["nodes"]:
            found += [node["supervisor_pid"], node["pid"]]
        return [pid for pid in found if pid is not None]

    def end(self, number: signal.Signals = signal.SIGINT) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(60)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


@contextmanager
def up(data: Path, *arguments: str) -> Iterator[Running]:
    running = Running(data, *arguments)
    try:
        yield running
    finally:
        running.end(signal.SIGKILL)


def increment(url: str) -> int:
    """Through this node: one increment, however often it must be asked."""
    with SyncClient(url, timeout_secs=60) as client:
        return int(client.project("demo").object("Counter", "a").increment())


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_three_nodes_count_as_one(tmp_path: Path, until: Wait, domicile: Run) -> None:
    """Increments through any node count right; the file says who is who, also after a child was killed; Ctrl-C ends
    all of it in order, and a second start goes on where the first stopped."""
    data = tmp_path / "up"
    with up(data, "--app", str(COUNTER)) as cluster:
        document = cluster.first
        assert document == cluster.now()
        assert [list(node) for node in document["nodes"]] == [NODE_FIELDS] * 3
        urls = [node["http"] for node in document["nodes"]]
        assert [increment(url) for url in urls * 2] == [1, 2, 3, 4, 5, 6]

        listed = json.loads(domicile("cluster", "--json", DOMICILE_URL=urls[0]).stdout)
        assert {node["node_id"] for node in listed["nodes"]} == {node["node_id"] for node in document["nodes"]}
        shown = domicile("cluster", DOMICILE_URL=urls[1]).stdout
        assert all(node["node_id"] in shown for node in document["nodes"])

        os.kill(document["nodes"][1]["pid"], signal.SIGKILL)
        until(lambda: _reborn(cluster.now()["nodes"][1], document["nodes"][1]))
        assert increment(urls[1]) == 7
        pids = cluster.pids()
        assert len(pids) == 9
        assert cluster.end() == 0
        assert not any(alive(pid) for pid in pids)
        assert cluster.pids() == []
    with up(data, "--app", str(COUNTER)) as again:
        assert [node["http"] for node in again.first["nodes"]] == urls
        assert increment(urls[2]) == 8
        assert again.end(signal.SIGTERM) == 0


def _reborn(node: dict[str, Any], before: dict[str, Any]) -> bool:
    """Another process under another node id, of the same place and copy."""
    return (
        node["node_id"] not in (None, before["node_id"])
        and node["pid"] not in (None, before["pid"])
        and node["supervisor_pid"] == before["supervisor_pid"]
        and node["copy_id"] == before["copy_id"]
    )


def test_nothing_outlives_it(tmp_path: Path, until: Wait) -> None:
    """Killed itself it takes all along; a lost node stays down until its script starts it; etcd is started again."""
    data = tmp_path / "up"
    with up(data, "--app", str(COUNTER), "--nodes", "2", "--no-control") as cluster:
        before = cluster.first["nodes"][0]
        for pid in (before["supervisor_pid"], before["pid"]):
            os.kill(pid, signal.SIGKILL)
        until(lambda: cluster.now()["nodes"][0]["supervisor_pid"] is None)
        etcd = cluster.first["etcd"]["pids"]
        os.kill(etcd[0], signal.SIGKILL)
        until(lambda: cluster.now()["etcd"]["pids"] not in ([], etcd))
        by_hand = subprocess.Popen([Path(before["data"]) / "start.sh"], stderr=subprocess.DEVNULL, cwd="/")
        try:
            until(lambda: cluster.now()["nodes"][0]["node_id"] not in (None, before["node_id"]))
            assert cluster.now()["nodes"][0]["supervisor_pid"] == by_hand.pid
            assert increment(before["http"]) == 1
        finally:
            by_hand.terminate()
            by_hand.wait(60)
        pids = cluster.pids()
        cluster.end(signal.SIGKILL)
        until(lambda: not any(alive(pid) for pid in pids))


def test_one_directory_has_one_cluster(tmp_path: Path, domicile: Run) -> None:
    """A second command over the same directory is refused, as is a taken port; without an app there are databases."""
    with up(tmp_path / "up", "--nodes", "1", "--no-control") as cluster:
        second = domicile("up", "--nodes", "1", "--data", str(cluster.data))
        assert (second.returncode, "another `domicile up` runs" in second.stderr) == (1, True)
        port = cluster.first["nodes"][0]["http"].rpartition(":")[2]
        taken = domicile("up", "--nodes", "1", "--data", str(tmp_path / "b"), "--port", port)
        assert (taken.returncode, f"port {port} is taken" in taken.stderr) == (1, True)
        rows = domicile("sql", "demo", "d", "SELECT 1 AS one", "--json", DOMICILE_URL=cluster.first["nodes"][0]["http"])
        assert json.loads(rows.stdout) == [{"one": 1}], rows.stderr


@pytest.mark.parametrize(
    ("arguments", "path", "said"),
    [
        (("--app", str(COUNTER)), "/nowhere", "sudo apt install etcd-server"),
        (("--app", "missing.py"), None, "there is no such file"),
        (("--nodes", "0"), None, "--nodes"),
    ],
)
def test_what_is_missing_is_said(
    arguments: tuple[str, ...], path: str | None, said: str, tmp_path: Path, domicile: Run
) -> None:
    """Without etcd it says how to install it; a bad app or count is refused before anything starts."""
    more = {"PATH": path} if path else {}
    refused = domicile("up", "--data", str(tmp_path / "up"), *arguments, **more)
    assert refused.returncode != 0
    assert said in refused.stderr
