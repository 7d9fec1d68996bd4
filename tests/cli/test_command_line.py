"""The command as a whole: help, start-up, usage errors, completion, settings."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., "subprocess.CompletedProcess[str]"]
COMMANDS = (
    *("call", "sql", "ls", "inspect", "delete", "dev", "node", "check", "config", "doctor", "completion"),
    *("project create", "project ls", "drain", "control"),
)


def test_importing_the_command_loads_no_server() -> None:
    """Help and completion stay fast: what the commands need is imported when they run."""
    heavy = {"apsw", "grpc", "temporalio", "uvicorn", "starlette", "aioboto3", "httpx", "msgspec", "rich.console"}
    code = "import domicile.cli.main, sys; print(*sorted(sys.modules))"
    loaded = set(
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    )
    assert "typer" in loaded
    assert not heavy & loaded
    assert not any(name.startswith(("domicile.node", "domicile.placement")) for name in loaded)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(domicile: Run, command: str) -> None:
    """--help of each command says what it does and exits 0."""
    helped = domicile(*command.split(), "--help")
    assert helped.returncode == 0
    assert "Usage: " in helped.stdout
    assert "│" in helped.stdout


@pytest.mark.parametrize("command", [name for name in COMMANDS if name not in ("node", "control", "completion")])
def test_json_is_everywhere(domicile: Run, command: str) -> None:
    """Each command that prints a result can print it as JSON."""
    assert "--json" in domicile(*command.split(), "--help").stdout


def test_the_installed_script_runs() -> None:
    """The console script of the package is this command."""
    script = Path(sys.executable).with_name("domicile")
    assert "Usage: domicile" in subprocess.run([script, "--help"], capture_output=True, text=True, check=True).stdout


def test_a_wrong_command_line_exits_2(domicile: Run) -> None:
    """Scripts can tell a usage error from a failure."""
    assert domicile("cal").returncode == 2
    assert domicile("call", "demo").returncode == 2
    assert domicile("ls", "demo", "--wait", "soon").returncode == 2


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_are_for_this_command(domicile: Run, shell: str) -> None:
    """The printed script completes `domicile`."""
    printed = domicile("completion", shell)
    assert printed.returncode == 0
    assert "_DOMICILE_COMPLETE" in printed.stdout


def test_bash_completes_commands(domicile: Run) -> None:
    """What the bash script calls gives the commands that start as typed."""
    answer = domicile(_DOMICILE_COMPLETE="complete_bash", COMP_WORDS="domicile de", COMP_CWORD="1")
    assert answer.stdout.split() == ["delete", "dev"]


def test_unknown_shell_is_refused(domicile: Run) -> None:
    """An unknown shell is a usage error that names those there are."""
    refused = domicile("completion", "tcsh")
    assert refused.returncode == 2
    assert "bash, zsh, fish" in refused.stderr


def test_config_prints_values_sources_and_meanings(domicile: Run, tmp_path: Path) -> None:
    """A setting from the environment, one from the file and a default each say where they come from."""
    (tmp_path / "domicile.toml").write_text('region = "eu-west"\nobject_db_max_mb = 32\n')
    printed = domicile("config", "--json", DOMICILE_OBJECT_DB_MAX_MB="128", DOMICILE_URL="http://127.0.0.1:1")
    assert printed.returncode == 0, printed.stderr
    rows = {row["name"]: row for row in json.loads(printed.stdout)}
    assert (rows["OBJECT_DB_MAX_MB"]["value"], rows["OBJECT_DB_MAX_MB"]["source"]) == (
        "128",
        "environment DOMICILE_OBJECT_DB_MAX_MB",
    )
    assert (rows["REGION"]["value"], rows["REGION"]["source"]) == ("eu-west", "domicile.toml")
    assert rows["OBJECT_MAILBOX"]["source"] == "default"
    assert all(row["meaning"] for row in rows.values())


def test_config_for_people_shows_text_as_it_is(domicile: Run) -> None:
    """Square brackets in a setting's meaning are printed, not taken for markup."""
    assert "[a-z0-9]" in domicile("config").stdout


def test_wrong_settings_are_all_told_at_once(domicile: Run) -> None:
    """Every mistake is in one answer, with exit code 1 and nothing started."""
    refused = domicile("config", DOMICILE_OBJECT_MAILBOX="many", DOMICILE_REGON="x")
    assert refused.returncode == 1
    assert "OBJECT_MAILBOX" in refused.stderr
    assert "DOMICILE_REGON" in refused.stderr
    assert "REGION" in refused.stderr
    assert not re.search("Traceback", refused.stderr)
