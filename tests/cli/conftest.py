"""The command as a user runs it, a scripted HTTP server for what a healthy node never answers, and a real node."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import ports
import pytest

from domicile.cli.main import main

ROOT = Path(__file__).resolve().parent.parent.parent
WAIT_SECS = 60.0

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def clean_environ(**more: str) -> dict[str, str]:
    """The environment without anybody's settings."""
    prefixes = ("DOMICILE_", "NODE_", "OBJECT_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(prefixes)}
    return {**kept, "COLUMNS": "200", "NO_COLOR": "1", **more}


APART = ("check", "dev", "node", "up")  # they load an app or replace the process


@pytest.fixture
def domicile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs `domicile …` in an empty folder and gives what it printed and its exit code.

    In this process, which is faster, but for those commands that would change it.
    """

    def run(*arguments: str, cwd: Path = tmp_path, **environ: str) -> subprocess.CompletedProcess[str]:
        if arguments and arguments[0] in APART:
            return run_apart(arguments, cwd, environ)
        with monkeypatch.context() as patch:
            patch.chdir(cwd)
            patch.setattr(os, "environ", clean_environ(**environ))
            patch.setattr(sys, "argv", ["domicile", *arguments])
            patch.setattr(sys, "stdin", io.StringIO())
            return run_here(arguments)

    return run


def run_here(arguments: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    out, err, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as ended:
            code = int(ended.code or 0)
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


def run_apart(arguments: tuple[str, ...], cwd: Path, environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "domicile.cli.main", *arguments],
        cwd=cwd,
        env=clean_environ(**environ),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=WAIT_SECS,
        check=False,
    )


@dataclass
class Scripted:
    """Answers each request with the next of `answers`: (status, headers, body); remembers what was asked."""

    url: str
    answers: list[tuple[int, dict[str, str], bytes]]
    asked: list[tuple[str, str, dict[str, str], bytes]] = field(default_factory=list)

    def problem(self, status: int, retry_after: str | None = None, **members: Any) -> None:
        headers = {"Retry-After": retry_after} if retry_after else {}
        self.answers.append((status, headers, json.dumps({"title": "no", **members}).encode()))

    def result(self, value: Any) -> None:
        self.answers.append((200, {}, json.dumps(value).encode()))


@pytest.fixture
def scripted() -> Iterator[Scripted]:
    """A real HTTP server on a free port, for answers a healthy node does not give on demand."""

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            script.asked.append((self.command, self.path, dict(self.headers), body))
            status, headers, answer = script.answers.pop(0)
            if status == 0:  # hang up without an answer
                self.close_connection = True
                return
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(answer))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer)

        do_GET = do_POST = do_PUT = do_DELETE = _answer

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    script = Scripted(f"http://127.0.0.1:{server.server_address[1]}", [])
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield script
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def free_port() -> int:
    return ports.free_port()


class Dev:
    """A running `domicile dev --json`: its events as they come."""

    def __init__(self, *arguments: str, cwd: Path) -> None:
        self.log = cwd / "dev.log"
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "domicile.cli.main", "dev", *arguments, "--json"],
                cwd=cwd,
                env=clean_environ(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self.pid = self._process.pid
        self.http = ""

    def event(self, name: str) -> dict[str, Any]:
        """The next event of this name; fails with the node's log when the command ends first."""
        assert self._process.stdout
        for line in self._process.stdout:
            event: dict[str, Any] = json.loads(line)
            if event["event"] == name:
                self.http = event.get("http", self.http)
                return event
        raise AssertionError(f"`domicile dev` ended before it said {name!r}: {self.log.read_text()}")

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        if self._process.poll() is None:
            self._process.terminate()
        code = self._process.wait(WAIT_SECS)
        assert self._process.stdout
        self._process.stdout.close()
        return code


@pytest.fixture
def start_dev() -> Iterator[Callable[..., Dev]]:
    """Starts `domicile dev`; all are stopped at the end."""
    started: list[Dev] = []

    def start(*arguments: str, cwd: Path) -> Dev:
        dev = Dev(*arguments, cwd=cwd)
        started.append(dev)
        return dev

    yield start
    for dev in started:
        dev.stop()


@pytest.fixture(scope="module")
def auction(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dev]:
    """The example, served by a real node for the tests of one module."""
    folder = tmp_path_factory.mktemp("auction")
    port = ports.free_port()
    dev = Dev(str(ROOT / "examples/auction.py"), "--port", str(port), "--no-reload", cwd=folder)
    dev.event("serving")
    yield dev
    assert dev.stop() == 0


@pytest.fixture
def until() -> Callable[[Callable[[], bool]], None]:
    """Waits for a condition, for a minute at most."""

    def wait(condition: Callable[[], bool]) -> None:
        end = time.monotonic() + WAIT_SECS
        while not condition():
            assert time.monotonic() < end, "the condition did not come true in time"
            time.sleep(0.02)

    return wait
