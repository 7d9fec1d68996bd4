"""What the supervisor does at etcd for its children: a grant for each, and the end of the dead."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from etcd_servers import Etcd
from ports import free_port

from domicile.node import etcd_gateway
from domicile.node.etcd_gateway import Access, Gateway, GatewayError, Registrar, Timer, note_node

ROOT = "/c/r/"
AT_ONCE_SECS = 10.0  # a grant that is left to end by itself takes three times as long
REAL_TIME = Timer(time.monotonic, time.sleep)

# A node in small: notes who it is and waits to be killed; `starts` says under which grant each began.
CHILD = """
import os, pathlib, sys, time
from domicile.node.etcd_gateway import note_node
where = pathlib.Path(sys.argv[1])
known = (where / "starts").read_text() if (where / "starts").exists() else ""
number = known.count("\\n") + 1
note_node(str(where / "data"), f"n-{number}", "copy-1")
(where / "starts.new").write_text(f"{known}{os.getpid()} {os.getpgid(0)} {os.getppid()} 0 "
    f"{os.environ.get('DOMICILE_GRANT') or 0}\\n")
os.replace(where / "starts.new", where / "starts")
while True:
    time.sleep(1000)
"""


def put(etcd: Etcd, key: str, grant: str = "0") -> None:
    put = {"key": b64encode(key.encode()).decode(), "value": b64encode(b"{}").decode(), "lease": grant}
    assert "header" in etcd.members[0].ask("/v3/kv/put", put)


def rows(etcd: Etcd) -> dict[str, bytes]:
    everything = b64encode(b"\0").decode()
    found = etcd.members[0].ask("/v3/kv/range", {"key": everything, "range_end": everything}).get("kvs", [])
    return {b64decode(kv["key"]).decode(): b64decode(kv["value"]) for kv in found}


def lives(etcd: Etcd, grant: object) -> bool:
    return etcd.members[0].ask("/v3/lease/timetolive", {"ID": str(grant)}).get("TTL") != "-1"


@pytest.fixture
def at_etcd(etcd: Etcd) -> dict[str, Any]:
    return {"access": {"endpoints": list(etcd.endpoints)}, "root": ROOT, "ttl_secs": 30}


def test_a_killed_child_is_deregistered_at_once_and_its_grant_revoked(
    run: Any, until: Any, etcd: Etcd, at_etcd: dict[str, Any]
) -> None:
    """Its row gives way to a departure record in one write, long before any deadline; the next has its own grant."""
    under = run(CHILD, etcd=at_etcd)
    pid, *_, grant = under.start(1)
    put(etcd, f"{ROOT}nodes/n-1", str(grant))
    put(etcd, f"{ROOT}under-the-grant", str(grant))
    put(etcd, f"{ROOT}nodes/other")
    killed = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    until(lambda: f"{ROOT}nodes/n-1" not in rows(etcd))
    assert time.monotonic() - killed < AT_ONCE_SECS
    again = under.start(2)[4]

    left = rows(etcd)
    assert set(left) == {f"{ROOT}nodes/other", f"{ROOT}departures/n-1"}
    departure = json.loads(left[f"{ROOT}departures/n-1"])
    assert (departure["why"], departure["copy_id"]) == ("ended with 137", "copy-1")
    assert abs(departure["at_ms"] - time.time() * 1000) < 60_000
    assert not lives(etcd, grant)
    assert lives(etcd, again)
    assert again != grant


def test_a_child_that_left_in_order_is_not_said_to_have_died(run: Any, etcd: Etcd, at_etcd: dict[str, Any]) -> None:
    """It took its row away itself: its own departure record stands. Its grant goes all the same."""
    put(etcd, f"{ROOT}departures/n-1")
    under = run(CHILD.replace("while True:", "while False:"), once=True, etcd=at_etcd)
    assert under.end()[0] == 0
    assert rows(etcd) == {f"{ROOT}departures/n-1": b"{}"}
    assert not lives(etcd, under.start(1)[4])


def test_a_child_that_died_with_its_supervisor_is_deregistered_by_the_next(
    run: Any, until: Any, alive: Any, etcd: Etcd, at_etcd: dict[str, Any]
) -> None:
    """The lock on the directory proves that both are dead."""
    under = run(CHILD, etcd=at_etcd)
    pid = under.start(1)[0]
    put(etcd, f"{ROOT}nodes/n-1")
    under.process.kill()
    until(lambda: not alive(pid))
    run(CHILD, etcd=at_etcd).start(2)
    left = rows(etcd)
    assert set(left) == {f"{ROOT}departures/n-1"}
    assert json.loads(left[f"{ROOT}departures/n-1"])["why"] == "died unseen"


def test_a_note_from_elsewhere_is_nobodys_death(tmp_path: Path, etcd: Etcd, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copied data directory, or one from before the machine started anew, proves nothing; and torn notes neither."""
    put(etcd, f"{ROOT}nodes/n-1")
    gateway = Gateway(Access(etcd.endpoints), REAL_TIME)
    registrar = Registrar(gateway, ROOT, 30, str(tmp_path), lambda event, fields: None)
    for boot in ("another", ""):
        monkeypatch.setattr(etcd_gateway, "boot_id", lambda boot=boot: boot)
        note_node(str(tmp_path), "n-1", "")
        monkeypatch.undo()
        registrar.before_child(0)
        assert set(rows(etcd)) == {f"{ROOT}nodes/n-1"}
        assert not (tmp_path / etcd_gateway.NOTE_FILE).exists()
    for torn in ("", "{", "[]", '{"node_id": 3}'):
        (tmp_path / etcd_gateway.NOTE_FILE).write_text(torn)
        registrar.after_child(1, 0)
    assert set(rows(etcd)) == {f"{ROOT}nodes/n-1"}


class FakeTime:
    """Passes only when somebody waits."""

    now = 0.0

    def sleep(self, secs: float) -> None:
        self.now += secs


def test_without_etcd_a_child_starts_without_a_grant(tmp_path: Path) -> None:
    """The supervisor tries for a few seconds, says that it failed, and goes on: the child makes its own."""
    said: list[str] = []
    fake = FakeTime()
    port = free_port()
    gateway = Gateway(Access([f"127.0.0.1:{port}"]), Timer(lambda: fake.now, fake.sleep))
    registrar = Registrar(gateway, ROOT, 30, str(tmp_path), lambda event, fields: said.append(event))
    note_node(str(tmp_path), "n-1", "")
    registrar.after_child(1, 0)
    assert registrar.before_child(0) == {}
    assert said == ["supervisor.deregister-failed", "supervisor.grant-failed"]
    assert fake.now == pytest.approx(2 * etcd_gateway.TRY_SECS, abs=0.5)


def test_a_frozen_member_is_passed_over(three_etcds: Etcd) -> None:
    """Another member answers in its place, within the time of one attempt."""
    frozen = three_etcds.members[0]
    frozen.freeze()
    try:
        began = time.monotonic()
        gateway = Gateway(Access(three_etcds.endpoints), REAL_TIME)
        grant = gateway.grant(30)
        gateway.revoke(grant)
        gateway.revoke(grant)
        assert time.monotonic() - began < 2 * etcd_gateway.ATTEMPT_SECS
    finally:
        frozen.thaw()


def test_a_refusal_is_not_asked_again(etcd: Etcd) -> None:
    """What etcd says no to, it says no to at once."""
    began = time.monotonic()
    with pytest.raises(GatewayError, match="large"):
        Gateway(Access(etcd.endpoints), REAL_TIME).depart("/a", "/b", bytes(3_000_000))
    assert time.monotonic() - began < etcd_gateway.TRY_SECS


@pytest.fixture
def node(tmp_path: Path, etcd: Etcd) -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    """`domicile node`, on etcd, as in production."""
    port = free_port()
    (tmp_path / "app.py").write_text("import domicile\n\n\nclass Thing(domicile.Object):\n    pass\n")
    environ = {
        "PATH": os.environ["PATH"],
        "DOMICILE_APP": str(tmp_path / "app.py"),
        "DOMICILE_DATA": str(tmp_path / "data"),
        "DOMICILE_LISTEN": f"127.0.0.1:{port}",
        "DOMICILE_PLACEMENT": f"etcd://{etcd.endpoints[0]}",
        "DOMICILE_BLOBS": f"file://{tmp_path}/bucket",
    }
    started: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        with (tmp_path / "log").open("ab") as log:
            command = [sys.executable, "-m", "domicile.cli.main", "node"]
            started.append(subprocess.Popen(command, env=environ, cwd=tmp_path, stderr=log, stdout=log))
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait(timeout=60)


def test_a_real_node_killed_is_gone_at_once_and_back_as_another(
    node: Callable[[], subprocess.Popen[bytes]], etcd: Etcd, until: Any, tmp_path: Path
) -> None:
    """kill -9 of the child: its row is replaced, a new node id registers; SIGTERM: nothing of it is left."""
    under = "/domicile/local/nodes/"

    def registered() -> list[str]:
        return [key for key in rows(etcd) if key.startswith(under)]

    supervisor = node()
    (first,) = until(registered)
    started = next(line for line in (tmp_path / "log").read_text().splitlines() if "supervisor.started" in line)
    os.kill(json.loads(started)["child"], signal.SIGKILL)
    killed = time.monotonic()
    until(lambda: first not in registered())
    assert time.monotonic() - killed < AT_ONCE_SECS
    (second,) = until(registered)
    assert second != first
    supervisor.terminate()
    assert supervisor.wait(timeout=60) == 0
    left = {key: json.loads(value) for key, value in rows(etcd).items() if "/departures/" in key}
    assert [row["why"] for row in left.values()].count("ended with 137") == 1
    assert [row["why"] for row in left.values()].count("stopped") == 1
    assert registered() == []
    assert etcd.members[0].ask("/v3/lease/leases").get("leases", []) == []
