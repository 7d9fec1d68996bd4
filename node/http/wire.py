"""The bytes of an HTTP/1.1 answer. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from http import HTTPStatus

from domicile.node.problems import Header

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"
HEADS_REMEMBERED = 4096

_STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}


def whole(status: int, headers: Sequence[Header], body: bytes, date: bytes, *, close: bool, bodiless: bool) -> bytes:
    """Head and body in one piece, so that they leave in one write. `bodiless`: the answer to a HEAD."""
    head = _remembered_head(status, headers) if type(headers) is tuple else _head(status, headers)
    closing = b"connection: close\r\n" if close else b""
    return b"%b%bcontent-length: %d\r\n%b\r\n%b" % (head, date, len(body), closing, b"" if bodiless else body)


def streamed_head(status: int, headers: Sequence[Header], date: bytes, *, close: bool, chunked: bool) -> bytes:
    """The head of an answer whose body comes in pieces."""
    coding = b"transfer-encoding: chunked\r\n" if chunked else b""
    closing = b"connection: close\r\n" if close else b""
    return _head(status, headers) + date + coding + closing + b"\r\n"


def chunk(piece: bytes) -> bytes:
    """One piece of a chunked body; an empty piece is none, for an empty chunk ends the body."""
    return b"%x\r\n%b\r\n" % (len(piece), piece) if piece else b""


def date_line(http_date: str) -> bytes:
    """The Date header."""
    return b"date: %b\r\n" % http_date.encode("ascii")


def _head(status: int, headers: Iterable[Header]) -> bytes:
    # A line break inside a value would begin a header, or an answer, of somebody else's.
    lines = b"".join([b"%b: %b\r\n" % (name, _one_line(value)) for name, value in headers])
    return _STATUS_LINES.get(status, b"HTTP/1.1 %d \r\n" % status) + lines


_remembered_head = lru_cache(maxsize=HEADS_REMEMBERED)(_head)


def _one_line(value: bytes) -> bytes:
    return value if b"\r" not in value and b"\n" not in value else b" ".join(value.split())
