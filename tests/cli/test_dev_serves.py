"""`domicile dev` and the commands that ask a node, against the real thing."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., "subprocess.CompletedProcess[str]"]
Wait = Callable[[Callable[[], bool]], None]
ROOM = """
from domicile import Object

class Room(Object):
    def init(self):
        self.sql.exec("CREATE TABLE said (text TEXT)")

    def say(self, text: str) -> int:
        self.sql.exec("INSERT INTO said VALUES (?)", text)
        return self.sql.one("SELECT count(*) AS n FROM said")["n"]
"""


@pytest.fixture
def ask(domicile: Run, auction: Any) -> Run:
    """Runs a command against the node that serves the example."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return domicile(*arguments, "--json", DOMICILE_URL=auction.http)

    return run


def test_a_bid_is_answered(ask: Run) -> None:
    """The example's bid, from the command line, with the project created by its first use."""
    assert json.loads(ask("call", "demo", "Auction", "lot-1", "bid", '["ada", 25]').stdout) == {"ok": True, "high": 25}
    lower = ask("call", "demo", "Auction", "lot-1", "bid", '{"user": "grace", "amount": 20}')
    assert json.loads(lower.stdout) == {"ok": False, "high": 25}


def test_the_same_key_runs_once(ask: Run) -> None:
    """A repeated command with the same key gets the first answer; another call under it is refused."""
    bid = ("call", "demo", "Auction", "lot-2", "bid", '["ada", 25]', "--key", "k-1")
    assert ask(*bid).stdout == ask(*bid).stdout == '{"ok": true, "high": 25}\n'
    refused = ask("call", "demo", "Auction", "lot-2", "bid", '["ada", 30]', "--key", "k-1")
    assert refused.returncode == 1
    assert json.loads(refused.stderr)["code"] == "key_reused"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("call", "demo", "Auction", "lot-1", "bidd", "[]"), "no_such_method"),
        (("call", "demo", "Auktion", "lot-1", "bid", "[]"), "no_such_class"),
        (("call", "demo", "Auction", "lot-1", "bid", '["ada", "much"]'), "bad_arguments"),
        (("call", "De mo", "Auction", "lot-1", "bid", "[]"), "bad_name"),
        (("inspect", "demo", "Auction", "never-called"), "no_such_object"),
        (("sql", "demo", "d", "SELECT * FROM nothing"), "sql_error"),
    ],
)
def test_refusals_are_failures_with_their_code(ask: Run, arguments: tuple[str, ...], code: str) -> None:
    """What the node refuses for good ends with exit code 1 and the node's own problem document."""
    refused = ask(*arguments)
    assert refused.returncode == 1, refused.stderr
    assert json.loads(refused.stderr)["code"] == code


@pytest.mark.parametrize("name", ["a/b", "a%2Fb", "..", "a b", "é", "?x=1#y", "🏠"])
def test_any_name_is_its_own_object(ask: Run, name: str) -> None:
    """Names with slashes, percent signs, dots, spaces and emoji reach one object each, through call, ls and inspect."""
    assert ask("call", "names", "Auction", name, "bid", '["ada", 1]').returncode == 0
    listed = json.loads(ask("ls", "names", "--class", "Auction", "--prefix", name).stdout)
    assert name in [row["name"] for row in listed]
    assert json.loads(ask("inspect", "names", "Auction", name).stdout)["resident"] is True


def test_sql_reads_and_writes(ask: Run) -> None:
    """`sql` writes only with --write, and gives rows as a list."""
    assert ask("sql", "demo", "notes", "CREATE TABLE t (a, b)", "--write").returncode == 0
    assert ask("sql", "demo", "notes", "INSERT INTO t VALUES (?, ?)", "--params", '[1, "x"]', "--write").returncode == 0
    rows = ask("sql", "demo", "notes", "SELECT * FROM t WHERE a = :a", "--params", '{"a": 1}')
    assert json.loads(rows.stdout) == [{"a": 1, "b": "x"}]
    assert ask("sql", "demo", "notes", "DELETE FROM t").returncode == 1


def test_a_deleted_object_is_gone(ask: Run) -> None:
    """`delete` answers with the tombstone's epoch, and `inspect` no longer finds the object."""
    assert ask("call", "demo", "Auction", "lot-9", "bid", '["ada", 1]').returncode == 0
    deleted = ask("delete", "demo", "Auction", "lot-9", "--yes")
    assert deleted.returncode == 0
    assert "epoch" in json.loads(deleted.stdout)
    assert ask("inspect", "demo", "Auction", "lot-9").returncode == 1


def test_projects_are_created_and_listed(ask: Run) -> None:
    """A created project is listed with its policy; creating it again changes nothing."""
    assert ask("project", "create", "shop", "--on-incident", "wait").returncode == 0
    assert ask("project", "create", "shop").returncode == 0
    projects = {row["id"]: row for row in json.loads(ask("project", "ls").stdout)}
    assert projects["shop"]["on_incident"] == "wait"


def test_dev_ends_when_told_and_keeps_what_was_said(start_dev: Any, domicile: Run, tmp_path: Path) -> None:
    """SIGTERM ends it with exit code 0, leaves no process and keeps the data for the next start."""
    (tmp_path / "room.py").write_text(ROOM)
    for said in (1, 2):
        dev = start_dev("room.py", "--no-reload", cwd=tmp_path)
        url = dev.event("serving")["http"]
        counted = domicile("call", "demo", "Room", "hall", "say", '["hi"]', "--json", "--url", url)
        assert counted.stdout == f"{said}\n", counted.stderr
        assert dev.stop() == 0
        assert not processes_of(tmp_path)


def test_a_killed_dev_leaves_no_node(start_dev: Any, until: Wait, tmp_path: Path, free_port: int) -> None:
    """SIGKILL of the command takes supervisor and node with it."""
    (tmp_path / "room.py").write_text(ROOM)
    dev = start_dev("room.py", "--port", str(free_port), cwd=tmp_path)
    dev.event("serving")
    assert processes_of(tmp_path)
    os.kill(dev.pid, signal.SIGKILL)
    until(lambda: not processes_of(tmp_path))


def test_a_changed_app_is_served(start_dev: Any, domicile: Run, tmp_path: Path, free_port: int) -> None:
    """A good change is served, a broken one is told and the last good app goes on."""
    app = tmp_path / "room.py"
    app.write_text(ROOM)
    dev = start_dev("room.py", "--port", str(free_port), cwd=tmp_path)
    url = dev.event("serving")["http"]
    app.write_text(ROOM + "    def broken(:\n")
    assert "room.py" in dev.event("bad_app")["why"]
    assert domicile("call", "demo", "Room", "hall", "say", '["hi"]', "--url", url).stdout == "1\n"
    app.write_text(ROOM + "\n    def hear(self) -> str:\n        return 'hello'\n")
    dev.event("reloading")
    dev.event("serving")
    assert domicile("call", "demo", "Room", "hall", "hear", "--json", "--url", url).stdout == '"hello"\n'


def test_a_bad_app_is_not_started(domicile: Run, tmp_path: Path) -> None:
    """An app with a mistake ends the command at once, with the file and the line."""
    (tmp_path / "room.py").write_text("class Room(\n")
    refused = domicile("dev", "room.py")
    assert refused.returncode == 1
    assert "room.py:1" in refused.stderr


def test_a_taken_port_is_told(domicile: Run, auction: Any, tmp_path: Path) -> None:
    """A port asked for by number and taken is refused with what to do."""
    (tmp_path / "room.py").write_text(ROOM)
    refused = domicile("dev", "room.py", "--port", auction.http.rpartition(":")[2])
    assert refused.returncode == 1
    assert "--port" in refused.stderr


def test_a_data_directory_has_one_node(start_dev: Any, domicile: Run, tmp_path: Path, free_port: int) -> None:
    """A second node over the same data directory is refused, and the first goes on."""
    (tmp_path / "room.py").write_text(ROOM)
    dev = start_dev("room.py", "--port", str(free_port), cwd=tmp_path)
    url = dev.event("serving")["http"]
    second = domicile("dev", "room.py", "--no-reload")
    assert second.returncode == 1
    assert "in use" in second.stderr
    connection = http.client.HTTPConnection(url.removeprefix("http://"))
    connection.request("GET", "/readyz")
    assert connection.getresponse().status == 200
    connection.close()


def processes_of(folder: Path) -> list[int]:
    """Living processes that work in `folder`."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and Path(os.readlink(entry / "cwd")) == folder:
                found.append(int(entry.name))
        except OSError:
            continue  # it ended meanwhile, or has: a zombie has no directory
    return found
