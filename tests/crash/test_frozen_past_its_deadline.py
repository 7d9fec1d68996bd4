"""Stopped past its admission deadline, or unable to renew, a node shows nothing it reads (PROTOCOLS section 3)."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event

from crashkit.bucket import in_directory, restored
from crashkit.clients import Client, Line, LostError
from crashkit.oracle import check_cold, check_heard, check_live
from crashkit.process import NodeProcess, until
from crashkit.tmpfs import mounted, needs_root
from simworld.history import History

ADMISSION_SECS = 2.0  # of PROFILE=fast
FROZEN_SECS = 3.5


@contextmanager
def started(where: Path, **settings: str) -> Iterator[tuple[NodeProcess, History, Client]]:
    settings = {"DOMICILE_PROFILE": "fast", "OBJECT_IDLE_SECS": "60", **settings}
    node, history = NodeProcess(where, settings), History()
    node.start()
    node.wait_ready()
    client = Client("c", node.port, history)
    try:
        yield node, history, client
    finally:
        client.line.close()
        node.kill()


@needs_root
def test_what_it_read_does_not_leave_before_it_renewed(tmp_path: Path) -> None:
    """Frozen for longer than it may serve and unable to renew, it refuses reads until a renewal commits."""
    small = tmp_path / "small"
    with (
        mounted(small, 4) as disk,
        started(tmp_path / "node", DOMICILE_PLACEMENT=f"sqlite:{small}/placement.db") as (node, history, client),
    ):
        for _ in range(3):
            client.append("x")
        assert client.read("x").outcome == "answered"
        disk.fill()  # the row cannot be rewritten: no renewal commits
        node.signal(signal.SIGSTOP)
        told: list[str] = []
        askers = [threading.Thread(target=_ask, args=(node.port, told)) for _ in range(8)]
        for asker in askers:
            asker.start()
        Event().wait(FROZEN_SECS)
        node.signal(signal.SIGCONT)
        for asker in askers:
            asker.join(30)
        assert told == ["not_serving"] * len(askers)
        assert not node.is_ready()
        disk.free()
        assert client.read("x").outcome == "answered"
        client.append("x")
        assert node.stop() == 0
        check_cold(history, restored(in_directory(node.data / "blobs")))
        check_live(history)
        check_heard(history)


def _ask(port: int, told: list[str]) -> None:
    line = Line(port)
    try:
        answer = line.call("x", "read")
        told.append("read" if answer.status == 200 else answer.json()["code"])
    except LostError as error:
        told.append(str(error))
    finally:
        line.close()


def test_frozen_and_continued_it_goes_on(tmp_path: Path) -> None:
    """A freeze alone loses nothing and ends with the next renewal; an alarm that fell due meanwhile comes, once."""
    with started(tmp_path) as (node, history, client):
        client.arm("x", 1.0)
        node.signal(signal.SIGSTOP)
        Event().wait(FROZEN_SECS)
        node.signal(signal.SIGCONT)
        client.append("x")
        until(lambda: client.line.call("x", "fired").body == b'["c-1"]', "the alarm comes, once")
        assert node.stop() == 0
        check_cold(history, restored(in_directory(node.data / "blobs")))
        check_live(history)
        check_heard(history)
