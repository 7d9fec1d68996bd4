"""Operations on a whole cluster of real processes: alarms of a killed node, drains, and parts that die (section 10)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from ports import free_port, free_run

Run = Callable[..., "subprocess.CompletedProcess[str]"]
Wait = Callable[[Callable[[], bool]], None]

APP = '''
from domicile import Object

class Bell(Object):
    """Rings once."""

    def arm(self, when: str) -> None:
        self.kv.put("rung", 0)
        self.set_alarm(when)

    def on_alarm(self) -> None:
        self.kv.put("rung", self.kv.get("rung") + 1)

    def rung(self) -> int:
        return self.kv.get("rung")
'''


@contextmanager
def started(arguments: tuple[str, ...], folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A command that goes on until it is interrupted; it then ends in order."""
    kept = {n: v for n, v in os.environ.items() if not n.startswith(("DOMICILE_", "NODE_", "OBJECT_"))}
    process = subprocess.Popen(
        [sys.executable, "-m", "domicile.cli.main", *arguments],
        env={**kept, "DOMICILE_PROFILE": "fast", "OBJECT_SWEEP_SECS": "2"},
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield process
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait(60)
        process.stdout.close()


@pytest.fixture
def port() -> int:
    return free_port()


def get(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(url, timeout=20) as answer:
        found: dict[str, Any] = json.load(answer)
        return found


def post(url: str, body: Any) -> Any:
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode()), timeout=20) as answer:
        return json.load(answer)


def test_operations_of_a_cluster(tmp_path: Path, until: Wait, domicile: Run) -> None:
    """A killed node's alarm rings elsewhere, with nobody calling; Temporal and control are started again when they
    die, and go on; a drained node is empty, and says so."""
    app, data = tmp_path / "bells.py", tmp_path / "up"
    app.write_text(APP)
    arguments = ("up", "--data", str(data), "--json", "--app", str(app), "--port", str(free_run(3)))
    with started(arguments, tmp_path) as process:
        assert process.stdout is not None
        document = json.loads(process.stdout.readline())
        urls = {node["node_id"]: node["http"] for node in document["nodes"]}
        bell = "/v1/demo/objects/Bell/a"
        post(f"{document['nodes'][0]['http']}{bell}/arm", ["1s"])
        home = get(document["nodes"][0]["http"] + bell)["node"]
        lost = next(node for node in document["nodes"] if node["node_id"] == home)
        other, third = (url for node, url in urls.items() if node != home)
        for pid in (lost["supervisor_pid"], lost["pid"]):
            os.kill(pid, signal.SIGKILL)
        until(lambda: _woken(other + bell, home))
        assert post(f"{other}{bell}/rung", []) == 1

        def now() -> dict[str, Any]:
            return json.loads((data / "cluster.json").read_text())

        for part in ("temporal", "control"):
            os.kill(document[part]["pid"], signal.SIGKILL)
        until(lambda: all(now()[part]["pid"] not in (None, document[part]["pid"]) for part in ("temporal", "control")))
        swept = "/v1/control/operations"
        until(lambda: _asked(lambda: post(other + swept, {"workflow": "SweepAlarms", "input": {"region": "local"}})))
        until(lambda: _asked(lambda: get(f"{third}{swept}/sweep-local")).get("status") == "completed")

        leaving = get(third + bell)["node"]
        staying = next(url for node, url in urls.items() if node not in (home, leaving))
        drained = domicile("drain", urls[leaving], "--json", DOMICILE_URL=staying)
        assert drained.returncode == 0, drained.stderr
        assert json.loads(drained.stdout)["state"] == "empty"
        assert post(f"{urls[leaving]}{bell}/rung", []) == 1
        assert get(staying + bell)["node"] not in (home, leaving)


def test_operations_of_one_node_with_embedded_stores(tmp_path: Path, until: Wait, port: int, domicile: Run) -> None:
    """`dev --temporal`: the control plane in the process that has the stores, and the node's own routes to start it.
    What is to go to a region that nobody knows is refused, and nothing was begun."""
    app = tmp_path / "bells.py"
    app.write_text(APP)
    url = f"http://127.0.0.1:{port}"
    arguments = ("dev", str(app), "--data", str(tmp_path / "dev"), "--port", str(port), "--temporal", "--json")
    with started(arguments, tmp_path) as process:
        assert process.stdout is not None
        events = iter(lambda: json.loads(process.stdout.readline())["event"], "serving")  # type: ignore[union-attr]
        assert list(events) == ["temporal"]
        post(f"{url}/v1/demo/objects/Bell/a/arm", ["1h"])
        sweep = {"workflow": "SweepAlarms", "input": {"region": "local"}}
        until(lambda: bool(_asked(lambda: post(f"{url}/v1/control/operations", sweep))))
        until(lambda: _asked(lambda: get(f"{url}/v1/control/operations/sweep-local")).get("status") == "completed")
        drain = post(f"{url}/v1/nodes/{get(url + '/v1/cluster')['nodes'][0]['node_id']}/drain", {})
        until(lambda: get(f"{url}/v1/control/operations/{drain['id']}")["status"] == "failed")
        assert "no other node" in get(f"{url}/v1/control/operations/{drain['id']}")["failure"]
        for command in (("project", "move", "demo"), ("object", "move", "demo", "Bell", "a")):
            refused = domicile(*command, "--to", "nowhere", DOMICILE_URL=url)
            assert refused.returncode != 0
            assert "there is no region 'nowhere'; there are local" in refused.stderr, refused
        assert (
            "there is no operation move-demo"
            in domicile("project", "move", "demo", "--cancel", DOMICILE_URL=url).stderr
        )


def _woken(url: str, lost: str) -> bool:
    """Whether the object is awake on another node and has no alarm any more; looking wakes nothing."""
    found = _asked(lambda: get(url))
    return bool(found) and found["node"] not in (None, lost) and found["alarm_due"] is None


def _asked(ask: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Empty while nobody answers."""
    try:
        return ask()
    except OSError:
        return {}
