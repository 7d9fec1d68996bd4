"""ASGI apps behind the server: answers in pieces, clients that go, apps that fail."""

from __future__ import annotations

import threading
from typing import Any

import pytest

GET = b"GET /x HTTP/1.1\r\nHost: h\r\n\r\n"
LAST = b"GET /x HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
START = {"type": "http.response.start", "status": 200, "headers": [(b"x-a", b"b\r\nSet-Cookie: c")]}


def piece(body: bytes, *, more: bool) -> dict[str, Any]:
    return {"type": "http.response.body", "body": body, "more_body": more}


async def in_pieces(scope: Any, receive: Any, send: Any) -> None:
    await send(START)
    for body in (b"one", b"", b"two"):
        await send(piece(body, more=True))
    await send(piece(b"three", more=False))


def test_an_answer_in_pieces_is_chunked_and_the_connection_goes_on(start: Any) -> None:
    """Each piece is a chunk, an empty one none, and the next request is answered on the same connection."""
    answer = start(asgi=in_pieces).exchange(GET + LAST)

    body = b"3\r\none\r\n3\r\ntwo\r\n5\r\nthree\r\n0\r\n\r\n"
    assert answer.count(b"HTTP/1.1 200 OK\r\n") == 2
    assert answer.count(b"transfer-encoding: chunked\r\n") == 2
    assert answer.count(body) == 2
    assert answer.count(b"connection: close\r\n") == 1


def test_a_line_break_in_a_header_makes_no_header(start: Any) -> None:
    """What an app puts into a value stays in it."""
    answer = start(asgi=in_pieces).exchange(LAST)

    assert b"x-a: b Set-Cookie: c\r\n" in answer


def test_the_answer_to_a_head_has_no_body(start: Any) -> None:
    """Not in pieces either."""
    answer = start(asgi=in_pieces).exchange(LAST.replace(b"GET", b"HEAD"))

    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"one" not in answer


async def fails_at_once(scope: Any, receive: Any, send: Any) -> None:
    raise ValueError("secret")


async def says_nothing(scope: Any, receive: Any, send: Any) -> None:
    return


async def starts_only(scope: Any, receive: Any, send: Any) -> None:
    await send(START)


@pytest.mark.parametrize("asgi", [fails_at_once, says_nothing, starts_only])
def test_an_app_that_gives_no_answer_is_an_internal_error(start: Any, asgi: Any) -> None:
    """500 in the usual shape, logged."""
    running = start(asgi=asgi)
    answer = running.exchange(LAST)

    assert answer.startswith(b"HTTP/1.1 500 ")
    assert b'"code":"internal"' in answer
    assert b"secret" not in answer
    assert len(running.log.events) == 1


def test_half_an_answer_does_not_look_whole(start: Any) -> None:
    """An app that fails between pieces ends the connection without the last chunk."""

    async def fails_midway(scope: Any, receive: Any, send: Any) -> None:
        await send(START)
        await send(piece(b"one", more=True))
        raise ValueError("no more")

    running = start(asgi=fails_midway)
    with running.connect() as sock:
        sock.sendall(GET)
        answer = b""
        try:
            while got := sock.recv(4096):
                answer += got
        except ConnectionError:
            pass

    assert not answer.endswith(b"0\r\n\r\n")
    assert len(running.log.events) == 1


def test_an_app_that_streams_hears_of_the_clients_going(start: Any) -> None:
    """`http.disconnect` comes when the client is gone, and not before."""
    heard, began = threading.Event(), threading.Event()

    async def waits(scope: Any, receive: Any, send: Any) -> None:
        assert (await receive())["type"] == "http.request"
        await send(START)
        await send(piece(b"one", more=True))
        began.set()
        assert (await receive())["type"] == "http.disconnect"
        heard.set()
        await send(piece(b"", more=False))

    running = start(asgi=waits)
    with running.connect() as sock:
        sock.sendall(GET)
        assert began.wait(60)
        assert not heard.is_set()
    assert heard.wait(60)


def test_a_slow_reader_of_a_stream_holds_the_app_not_the_memory(start: Any) -> None:
    """The app is not let on while the client does not read, and is let go when the client is cut."""
    sent: list[int] = []
    ended = threading.Event()

    async def pours(scope: Any, receive: Any, send: Any) -> None:
        await send(START)
        for number in range(200):
            await send(piece(b"x" * (1 << 20), more=True))
            sent.append(number)
            if number == 199:
                break
        await send(piece(b"", more=False))
        ended.set()

    running = start(asgi=pours, write_secs=0.1)
    with running.connect() as sock:
        sock.sendall(GET)
        assert ended.wait(60)
        got = b"".join(iter(lambda: _received(sock), b""))

    assert len(got) < 100 << 20


def _received(sock: Any) -> bytes:
    try:
        received: bytes = sock.recv(1 << 20)
    except ConnectionError:
        return b""
    return received
