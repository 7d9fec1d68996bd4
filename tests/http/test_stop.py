"""The server's end: every request answered, refused, or never read (field case 101)."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

POST = "POST /v1/acme/objects/Probe/x/{} HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n"


def test_clients_that_send_back_to_back_lose_no_answer(start: Any) -> None:
    """With 40 kept connections at full speed, each call that ran was answered in full, and each client was told."""
    running = start()
    answered: list[int] = []
    ends: list[str] = []
    begun = threading.Barrier(41)

    def client(base: int) -> None:
        body = json.dumps([base])
        request = (POST.format("echo", len(body)) + body).encode()
        with running.connect() as sock:
            first = True
            while True:
                try:
                    sock.sendall(request)
                    answer = sock.recv(65536)
                except ConnectionError:
                    ends.append("reset")
                    return
                if not answer:
                    ends.append("closed")
                    return
                assert answer.endswith(b"[%d]" % base)
                answered.append(base)
                if b"connection: close\r\n" in answer:
                    ends.append("told")
                    return
                if first:
                    first = False
                    begun.wait(60)

    threads = [threading.Thread(target=client, args=(n,)) for n in range(40)]
    for thread in threads:
        thread.start()
    begun.wait(60)
    owing = running.stop(10)
    for thread in threads:
        thread.join(60)

    assert owing == 0
    assert ends == ["told"] * 40
    assert len(answered) == len(running.front.calls)


def test_a_running_call_is_waited_for_and_answered(start: Any) -> None:
    """The stop ends when the call does, not before, and its client reads the answer and the end."""
    running = start(stop_idle_secs=0.0)
    with running.connect() as sock:
        sock.sendall(POST.format("wait", 0).encode())
        assert running.front.started.wait(60)
        stopped: list[int] = []
        stopper = threading.Thread(target=lambda: stopped.append(running.stop(30)))
        stopper.start()
        running.front.release.set()
        answer = b"".join(iter(lambda: sock.recv(4096), b""))
    stopper.join(60)

    assert answer.startswith(b"HTTP/1.1 200 OK")
    assert b"connection: close\r\n" in answer
    assert answer.endswith(b'"waited"')
    assert stopped == [0]


def test_a_call_past_the_limit_is_cut_and_counted(start: Any) -> None:
    """A method that does not end cannot hold the process."""
    running = start(stop_idle_secs=0.0, linger_secs=0.1)
    with running.connect() as sock:
        sock.sendall(POST.format("wait", 0).encode())
        assert running.front.started.wait(60)

        assert running.stop(0.1) == 1


def test_a_request_still_arriving_is_refused_with_a_hint(start: Any) -> None:
    """Half a body at the limit is 503, retryable, not run."""
    running = start(stop_idle_secs=0.0, linger_secs=0.1)
    with running.connect() as sock:
        sock.sendall(POST.format("echo", 100).replace("Host", "Expect: 100-continue\r\nHost").encode())
        assert b" 100 " in sock.recv(4096)
        running.stop(0.1)
        answer = b"".join(iter(lambda: sock.recv(4096), b""))

    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503 ")
    assert b"\r\nretry-after: 1\r\n" in head
    assert json.loads(body)["outcome"] == "not_run"
    assert running.front.calls == []


def test_a_request_that_becomes_whole_in_time_is_served(start: Any) -> None:
    """Being half read at the signal is no reason to be refused."""
    running = start(stop_idle_secs=0.0)
    with running.connect() as sock:
        sock.sendall(POST.format("echo", 3).replace("Host", "Expect: 100-continue\r\nHost").encode())
        assert b" 100 " in sock.recv(4096)
        sock.sendall(b"[")
        stopper = threading.Thread(target=running.stop, args=(10,))
        stopper.start()
        sock.sendall(b"1]")
        answer = b"".join(iter(lambda: sock.recv(4096), b""))
    stopper.join(60)

    assert answer.endswith(b"[1]")


def test_idle_connections_and_new_ones_end(start: Any) -> None:
    """An idle connection is closed in order; nobody can connect any more."""
    running = start(stop_idle_secs=0.0)
    with running.connect() as sock:
        sock.sendall(b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n")
        sock.recv(4096)
        stopper = threading.Thread(target=running.stop, args=(10,))
        stopper.start()
        assert sock.recv(4096) == b""
    stopper.join(60)
    with pytest.raises(ConnectionRefusedError):
        running.connect()
