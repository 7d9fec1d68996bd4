"""The supervisor, with real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from domicile.node import supervisor
from domicile.node.supervisor import EXIT_HOPELESS, EXIT_IN_USE, EXIT_REPLACE, InUseError, command_line, lock_data


def test_a_killed_child_is_started_again_and_its_group_goes(run: Any, alive: Any, until: Any) -> None:
    """kill -9 of the child: what it left behind dies too, and another child runs soon."""
    under = run()
    pid, group, parent, left, _ = under.start(1)
    os.kill(pid, signal.SIGKILL)
    again = under.start(2)

    assert (group, parent) == (pid, under.process.pid)
    assert again[0] != pid
    until(lambda: not alive(left))
    under.process.terminate()
    status, log = under.end()
    assert status == 0
    died = next(line for line in log if line["event"] == "supervisor.child_ended")
    assert (died["child"], died["status"]) == (pid, 128 + signal.SIGKILL)


def test_a_killed_supervisor_takes_the_child_and_frees_the_lock(run: Any, alive: Any, until: Any) -> None:
    """kill -9 of the supervisor: the child is gone and the directory can be used."""
    under = run()
    pid = under.start(1)[0]
    under.process.kill()

    until(lambda: not alive(pid))
    os.close(lock_data(under.data))


def test_the_lock_is_the_childs_too(run: Any) -> None:
    """The child holds the same open lock, so that no second node can use the directory while either lives."""
    under = run()
    pid, *_, fd = under.start(1)
    lock = Path(under.data) / supervisor.LOCK_FILE

    assert os.stat(f"/proc/{pid}/fd/{fd}").st_ino == lock.stat().st_ino
    assert supervisor.inherited_lock({"DOMICILE_LOCK_FD": "0"}, under.data) is None
    with pytest.raises(InUseError):
        lock_data(under.data)


def test_a_second_node_on_the_directory_is_refused(run: Any) -> None:
    """With a status of its own, and the name of the process that has it."""
    under = run()
    under.start(1)
    second = run()

    assert second.process.wait(timeout=60) == EXIT_IN_USE
    assert (
        second.log.read_text()
        == f"domicile: the data directory {under.data} is in use by process {under.process.pid}\n"
    )


@pytest.mark.parametrize(("sent", "got"), [("SIGTERM", "SIGTERM"), ("SIGINT", "SIGINT"), ("SIGHUP", "SIGTERM")])
def test_a_signal_to_end_is_passed_on_once(run: Any, sent: str, got: str, alive: Any) -> None:
    """The child ends in order, and the supervisor with its status."""
    under = run()
    pid = under.start(1)[0]
    under.process.send_signal(signal.Signals[sent])
    status, log = under.end()

    assert (status, (under.where / "ended").read_text()) == (0, got)
    assert not alive(pid)
    assert len(under.starts()) == 1
    assert [line["event"] for line in log] == [
        "supervisor.started",
        "supervisor.told_to_end",
        "supervisor.child_ended",
        "supervisor.end",
    ]


def test_the_second_signal_kills(run: Any, alive: Any, until: Any) -> None:
    """A child that does not heed the first is not waited for."""
    under = run(stubborn=True)
    pid = under.start(1)[0]
    under.process.terminate()
    until((under.where / "ended").exists)
    assert alive(pid)
    under.process.terminate()
    status, _ = under.end()

    assert status == 128 + signal.SIGKILL
    assert not alive(pid)


def test_a_stopped_child_is_not_a_dead_one(run: Any, until: Any) -> None:
    """SIGSTOP starts no second child beside the first."""
    under = run()
    pid = under.start(1)[0]
    os.kill(pid, signal.SIGSTOP)
    until(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
    os.kill(pid, signal.SIGCONT)
    under.process.terminate()
    status, _ = under.end()

    assert (status, len(under.starts())) == (0, 1)


@pytest.mark.parametrize(("how", "status"), [("sys.exit(7)", 7), ("os.kill(os.getpid(), 9)", 137), ("sys.exit(0)", 0)])
def test_once_ends_with_the_childs_status(run: Any, how: str, status: int) -> None:
    """Scripts see how the child ended."""
    assert run(f"import os, sys; {how}", once=True).end()[0] == status


def test_a_hopeless_child_is_not_tried_again(run: Any) -> None:
    """A wrong setting, or a command that is not there, ends the supervisor."""
    assert run(f"import sys; sys.exit({EXIT_HOPELESS})").end()[0] == EXIT_HOPELESS


def test_a_command_that_cannot_start_is_named(tmp_path: Path) -> None:
    """And is not tried again."""
    ended = subprocess.run(command_line(str(tmp_path / "d"), ["/no/such"]), capture_output=True, text=True, timeout=60)

    assert ended.returncode == EXIT_HOPELESS
    assert "cannot start /no/such: No such file" in ended.stderr


def test_restarts_back_off_and_a_replacement_does_not_wait(run: Any) -> None:
    """A child that asks to be replaced is, at once; one that fails is tried after 0.1, 0.2, 0.4 s."""
    counting = (
        "import pathlib, sys; p = pathlib.Path(sys.argv[1], 'n'); n = int(p.read_text()) if p.exists() else 0; "
        f"p.write_text(str(n + 1)); sys.exit([3, {EXIT_REPLACE}, 3, 3, 0][n])"
    )
    status, log = run(counting).end()

    assert status == 0
    assert [line["in_secs"] for line in log if line["event"] == "supervisor.restart"] == [0.1, 0.2, 0.4]
    assert [line["status"] for line in log if line["event"] == "supervisor.child_ended"] == [3, EXIT_REPLACE, 3, 3, 0]


def test_it_is_told_to_end_while_it_waits(run: Any, until: Any) -> None:
    """No child is started after the signal, however far the backoff is."""
    under = run("import sys; sys.exit(3)")
    until(lambda: '"in_secs": 0.8' in under.log.read_text())
    began = time.monotonic()
    under.process.terminate()

    assert under.process.wait(60) == 3
    assert time.monotonic() - began < 0.75


def test_it_is_tiny_and_imports_nothing_of_the_node(run: Any) -> None:
    """One thread, and no package beyond the standard library in its memory."""
    under = run()
    under.start(1)
    process = Path(f"/proc/{under.process.pid}")

    assert "Threads:\t1\n" in (process / "status").read_text()
    assert "site-packages" not in (process / "maps").read_text()
    imported = subprocess.run(
        [sys.executable, "-I", "-S", "-X", "importtime", supervisor.__file__, "--help"],
        capture_output=True,
        text=True,
        timeout=60,
    ).stderr
    assert not {"asyncio", "threading", "domicile", "structlog"} & {
        line.split("|")[-1].strip() for line in imported.splitlines()
    }
