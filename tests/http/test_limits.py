"""What the server bounds: bodies, heads, time, pipelines, connections (field case 100)."""

from __future__ import annotations

import json
import resource
import socket
from typing import Any

import pytest

POST = "POST /v1/acme/objects/Probe/x/echo HTTP/1.1\r\nHost: h\r\n"
MB = 1 << 20


def problem(answer: bytes) -> tuple[int, str]:
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["code"]


def statuses(answer: bytes) -> list[int]:
    return [int(part[:3]) for part in answer.split(b"HTTP/1.1 ")[1:]]


def chunked(body: bytes, size: int) -> bytes:
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


def sent_before_reset(sock: socket.socket, piece: bytes, most: int) -> int:
    for sent in range(most):
        try:
            sock.sendall(piece)
        except ConnectionError:
            return sent
    return most


@pytest.mark.parametrize("over", [0, 1])
@pytest.mark.parametrize("framing", ["length", "chunked"])
def test_the_largest_body_is_exact(start: Any, framing: str, over: int) -> None:
    """A body of exactly the bound is taken however it is framed, one byte more is refused."""
    running = start(body_bytes_max=1000)
    body = b'["' + b"x" * (1000 + over - 4) + b'"]'
    head = f"{POST}Connection: close\r\n"
    if framing == "length":
        raw = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    else:
        raw = f"{head}Transfer-Encoding: chunked\r\n\r\n".encode() + chunked(body, 7)
    answer = running.exchange(raw)

    if over:
        assert problem(answer) == (413, "body_too_large")
        assert running.front.calls == []
    else:
        assert statuses(answer) == [200]
        assert running.front.calls[0].body == body


def test_a_long_body_is_refused_by_its_announcement(start: Any) -> None:
    """Nothing of it has to be read first, not even with Expect."""
    running = start(body_bytes_max=1000)

    answer = running.exchange(f"{POST}Content-Length: 2000000000\r\nExpect: 100-continue\r\n\r\n".encode())

    assert problem(answer) == (413, "body_too_large")


def test_an_expectation_is_met(http: Any) -> None:
    """A client that waits for 100 gets it, then its answer."""
    with http.connect() as sock:
        sock.sendall(f"{POST}Content-Length: 3\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n".encode())
        first = sock.recv(1000)
        sock.sendall(b"[5]")
        rest = b"".join(iter(lambda: sock.recv(1000), b""))

    assert first == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert rest.endswith(b"\r\n\r\n[5]")


def test_an_endless_chunked_body_is_cut_off_and_memory_stays_flat(start: Any) -> None:
    """The refusal reaches a client that is still sending, the connection closes, other calls go on."""
    running = start(body_bytes_max=MB)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    piece = b"100000\r\n" + b"x" * MB + b"\r\n"
    with running.connect() as sock:
        sock.sendall(f"{POST}Transfer-Encoding: chunked\r\n\r\n".encode())
        assert sent_before_reset(sock, piece, 512) < 512
    with running.client() as client:
        assert client.post("/v1/acme/objects/Probe/x/echo", json=[1]).status_code == 200
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10


def test_chunks_of_one_byte_with_long_extensions_are_bounded(start: Any) -> None:
    """What surrounds a body is counted too."""
    running = start(body_bytes_max=1000, head_bytes_max=1000)

    answer = running.exchange(f"{POST}Transfer-Encoding: chunked\r\n\r\n".encode() + b"1;" + b"a" * 20_000)

    assert problem(answer) == (413, "body_too_large")


def test_a_lying_length_makes_no_second_call(http: Any) -> None:
    """Bytes beyond Content-Length are no request, and are refused as what they are."""
    http.front.calls.clear()
    answer = http.exchange(f"{POST}Content-Length: 3\r\n\r\n[1]".encode() + b"\x00garbage" * 10)

    assert statuses(answer) == [200, 400]
    assert [call.body for call in http.front.calls] == [b"[1]"]


@pytest.mark.parametrize(
    "raw",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\n\r\n",
        b"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /v1/a/objects/b/c/d HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n12",
        b"POST /v1/a/objects/b/c/d HTTP/1.1\r\nHost: h\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/a/objects/b/c/d HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /healthz HTTP/1.1\r\nHost : h\r\n\r\n",
    ],
)
def test_what_is_no_http_is_answered_with_a_problem(http: Any, raw: bytes) -> None:
    """Broken requests get 400 in the usual shape, and run nothing."""
    http.front.calls.clear()

    assert problem(http.exchange(raw)) == (400, "bad_request")
    assert http.front.calls == []


def test_a_head_without_end_is_refused(start: Any) -> None:
    """Neither one endless header nor endless headers fill the memory."""
    running = start(head_bytes_max=4096)

    one = running.exchange(b"GET / HTTP/1.1\r\nHost: h\r\nA: " + b"a" * 100_000)
    many = running.exchange(b"GET / HTTP/1.1\r\nHost: h\r\n" + b"A: a\r\n" * 100_000)

    assert problem(one) == (431, "bad_request")
    assert problem(many) == (431, "bad_request")


@pytest.mark.parametrize(
    ("sent", "limit"),
    [
        (b"POST /v1/acme/obj", "head_secs"),
        (f"{POST}Content-Length: 10\r\n\r\n[".encode(), "body_secs"),
        (f"{POST}Transfer-Encoding: chunked\r\n\r\n1\r\n[\r\n".encode(), "body_secs"),
    ],
)
def test_a_request_that_does_not_become_whole_is_timed_out(start: Any, sent: bytes, limit: str) -> None:
    """Heads and bodies that trickle end in 408, and nothing ran."""
    running = start(**{limit: 0.1})

    assert problem(running.exchange(sent)) == (408, "bad_request")
    assert running.front.calls == []


def test_trickling_does_not_move_the_deadline(start: Any) -> None:
    """A byte now and then buys no time."""
    running = start(body_secs=0.3)
    with running.connect() as sock:
        sock.settimeout(0.05)
        sock.sendall(f"{POST}Content-Length: 1000\r\n\r\n".encode())
        answer = b""
        for _ in range(100):
            try:
                sock.sendall(b"1")
                answer = sock.recv(4096)
                break
            except TimeoutError:
                continue

    assert statuses(answer) == [408]


@pytest.mark.parametrize("limits", [{"head_secs": 0.1}, {"idle_secs": 0.1}])
def test_a_connection_nobody_uses_is_closed(start: Any, limits: dict[str, float]) -> None:
    """Without a first request, and between requests."""
    running = start(**limits)
    with running.connect() as sock:
        if "idle_secs" in limits:
            sock.sendall(b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n")
            assert statuses(sock.recv(4096)) == [200]
        assert sock.recv(4096) == b""


def test_a_client_that_does_not_read_is_cut(start: Any) -> None:
    """Answers do not pile up for it: it stops being read, then it goes."""
    running = start(write_secs=0.2)
    body = b'["' + b"x" * MB + b'"]'
    request = f"{POST}Content-Length: {len(body)}\r\n\r\n".encode() + body
    with running.connect() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        assert sent_before_reset(sock, request, 200) < 200
    assert len(running.front.calls) < 100


def test_pipelined_requests_are_answered_in_order(http: Any) -> None:
    """Calls and other routes, read in one piece or byte by byte."""
    requests = "".join(f"{POST}Content-Length: {len(str([n]))}\r\n\r\n{[n]}" for n in range(20))
    raw = (requests + "GET /healthz HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").encode()
    whole = http.exchange(raw)
    with http.connect() as sock:
        for at in range(len(raw)):
            sock.sendall(raw[at : at + 1])
        trickled = b"".join(iter(lambda: sock.recv(65536), b""))

    for answer in (whole, trickled):
        bodies = [part.partition(b"\r\n\r\n")[2] for part in answer.split(b"HTTP/1.1 200 OK")[1:]]
        assert bodies == [b"[%d]" % n for n in range(20)] + [b'{"ok":true}']


def test_a_pipeline_is_bounded(http: Any) -> None:
    """Requests beyond the bound are not read; those before are answered, then the refusal."""
    raw = b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n" * 500
    got = statuses(http.exchange(raw))

    assert got[:-1] == [200] * (len(got) - 1)
    assert got[-1] == 400
    assert len(got) < 500


def test_too_many_connections_are_told_so(start: Any) -> None:
    """The one beyond gets 503 with a hint; when one goes there is room again."""
    running = start(connections_max=2)
    kept = [running.connect() for _ in range(2)]
    for sock in kept:
        sock.sendall(b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n")
        assert statuses(sock.recv(4096)) == [200]

    assert problem(running.exchange(b"")) == (503, "overloaded")
    for sock in kept:
        sock.close()
    with running.client() as client:
        assert client.get("/healthz").status_code == 200


def test_http_1_0_and_half_closed_clients_are_answered(http: Any) -> None:
    """An old client, and one that closes its side after asking, get their answer and the end."""
    old = http.exchange(b"GET /healthz HTTP/1.0\r\n\r\n")
    with http.connect() as sock:
        sock.sendall(f"{POST}Content-Length: 3\r\n\r\n[1]".encode())
        sock.shutdown(socket.SHUT_WR)
        half = b"".join(iter(lambda: sock.recv(4096), b""))

    assert (statuses(old), statuses(half)) == ([200], [200])


def test_an_upgrade_is_not_taken(http: Any) -> None:
    """A client that offers HTTP/2 or a websocket is answered over HTTP/1.1."""
    answer = http.exchange(b"GET /healthz HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\nPRI *")

    assert statuses(answer) == [200]


def test_trailers_are_no_headers(http: Any) -> None:
    """What follows a chunked body cannot name an idempotency key."""
    http.front.calls.clear()
    raw = f"{POST}Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n2\r\n[]\r\n0\r\nIdempotency-Key: k\r\n\r\n"

    assert statuses(http.exchange(raw.encode())) == [200]
    assert http.front.calls[0].idempotency_key is None


def test_a_call_goes_on_when_its_client_is_gone(start: Any) -> None:
    """What started runs to its end."""
    running = start()
    with running.connect() as sock:
        sock.sendall(POST.replace("echo", "wait").encode() + b"\r\n")
        assert running.front.started.wait(60)
    assert len(running.server.answering) == 1
    running.front.release.set()

    assert running.stop(10) == 0
    assert running.front.finished == 1
