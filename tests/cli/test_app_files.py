"""`check` names what is wrong with an app, and `Watch` sees when its files change."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from domicile.cli.watching import Watch, folder_of

Run = Callable[..., "subprocess.CompletedProcess[str]"]
GOOD = """
from domicile import Object, Region

class Room(Object):
    migrations = "migrations"
    placement = Region("eu-west")

    def say(self, text: str) -> int:
        return 1
"""


@pytest.fixture
def app(tmp_path: Path) -> Path:
    (tmp_path / "migrations").mkdir()
    (tmp_path / "migrations/0001_said.sql").write_text("CREATE TABLE said (text TEXT);")
    file = tmp_path / "room.py"
    file.write_text(GOOD)
    return file


def test_a_good_app_is_listed(domicile: Run, app: Path) -> None:
    """Classes, methods, migrations and pins of an app, as a node would serve them."""
    checked = domicile("check", "room.py", "--json")
    assert checked.returncode == 0, checked.stderr
    room = {row["class"]: row for row in json.loads(checked.stdout)}["Room"]
    assert room == {"class": "Room", "methods": "say", "migrations": 1, "region": "eu-west"}


def test_a_bad_class_is_named_with_its_line(domicile: Run, app: Path) -> None:
    """File, line and class of every problem, and exit code 1."""
    app.write_text(GOOD.replace("def say(self", "@property\n    def say(self"))
    checked = domicile("check", "room.py")
    assert checked.returncode == 1
    assert "room.py:" in checked.stderr
    assert "Room" in checked.stderr


def test_a_syntax_error_is_named_with_its_line(domicile: Run, app: Path) -> None:
    """An app that Python cannot read is told like any other problem, without a trace."""
    app.write_text("class Room(\n")
    checked = domicile("check", "room.py", "--json")
    assert checked.returncode == 1
    assert json.loads(checked.stderr)["problems"][0]["line"] == 1


@pytest.mark.parametrize(
    ("sql", "told"),
    [("CREATE TABEL x (a)", "syntax error"), ("COMMIT", "transactions"), ("PRAGMA journal_mode=off", "PRAGMA")],
)
def test_a_bad_migration_is_named(domicile: Run, app: Path, sql: str, told: str) -> None:
    """A migration that could not run in an object is found before it is served."""
    (app.parent / "migrations/0002_bad.sql").write_text(sql)
    checked = domicile("check", "room.py")
    assert checked.returncode == 1
    assert "migrations/0002_bad.sql" in checked.stderr
    assert told in checked.stderr


def test_a_pin_to_an_unknown_region_is_named(domicile: Run, app: Path) -> None:
    """A mistyped region is found when the known ones are given, by file, line and class."""
    assert domicile("check", "room.py", "--regions", "eu-west, us-east").returncode == 0
    checked = domicile("check", "room.py", "--regions", "eu-wst,us-east")
    assert checked.returncode == 1
    assert "room.py:4: Room: pinned to region 'eu-west'; known are eu-wst, us-east" in checked.stderr


def test_watch_sees_new_changed_and_removed_files(app: Path) -> None:
    """Each change is told once; files that are no part of an app are not looked at."""
    watch = Watch(app.parent)
    assert watch.changed() == []
    (app.parent / "more.py").write_text("x = 1\n")
    (app.parent / "notes.txt").write_text("not part of it\n")
    (app.parent / ".domicile").mkdir()
    (app.parent / ".domicile/cache.py").write_text("x = 1\n")
    stat = os.stat(app)
    os.utime(app, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    (app.parent / "migrations/0001_said.sql").unlink()
    assert watch.changed() == ["migrations/0001_said.sql", "more.py", "room.py"]
    assert watch.changed() == []


def test_the_folder_watched_is_the_apps(app: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file's folder, a package's own, or the working directory for a dotted name."""
    monkeypatch.chdir(app.parent.parent)
    assert folder_of(str(app)) == app.parent
    assert folder_of(str(app.parent)) == app.parent
    assert folder_of("shop.main") == app.parent.parent
