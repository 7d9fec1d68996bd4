"""What request headers say about a call, checked and bounded (API, "HTTP"), and the headers of an answer."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from domicile.errors import BadRequest
from domicile.node.problems import UnsupportedEncoding
from domicile.node.values import ServedBy
from domicile.placement.records import Epoch, Incarnation

Header = tuple[bytes, bytes]
JSON = (b"content-type", b"application/json")
KEY_BYTES_MAX = 255
HEADS_REMEMBERED = 4096

_KEY = re.compile(rb"[\x20-\x7e]{1,%d}" % KEY_BYTES_MAX)
_MILLIS = re.compile(rb"[0-9]{1,12}")
_INCARNATION = re.compile(rb'"?([0-9]{1,19})\.([0-9]{1,19})"?')
_TRACE = re.compile(rb"(?!ff)[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-.{0,256})?")
_U64_MAX = (1 << 64) - 1
_WANTED = frozenset({b"idempotency-key", b"domicile-timeout-ms", b"if-match", b"traceparent", b"content-encoding"})


@dataclass(slots=True)
class Options:
    """What the headers ask for. `timeout_secs` is at most the bound it was read under."""

    timeout_secs: float
    idempotency_key: str | None = None
    if_match: Incarnation | None = None
    trace: str | None = None


def read_options(headers: Iterable[Header], deadline_secs: float) -> Options:
    """The options of a request. Raises BadRequest for a value that cannot be meant, UnsupportedEncoding."""
    options = Options(deadline_secs)
    wanted = [header for header in headers if header[0] in _WANTED]
    if wanted:
        _read_wanted(wanted, options)
    return options


def _read_wanted(wanted: list[Header], options: Options) -> None:
    if len({name for name, _ in wanted}) != len(wanted):
        raise BadRequest("a request header that may come once came twice")
    for name, value in wanted:
        if name == b"idempotency-key":
            options.idempotency_key = _matched(_KEY, name, value, f"1 to {KEY_BYTES_MAX} printable ASCII characters")
        elif name == b"domicile-timeout-ms":
            millis = int(_matched(_MILLIS, name, value, "a whole number of milliseconds"))
            if not millis:
                raise BadRequest("Domicile-Timeout-Ms must be at least 1")
            options.timeout_secs = min(options.timeout_secs, millis / 1000)
        elif name == b"if-match":
            options.if_match = incarnation(_matched(_INCARNATION, name, value, "an incarnation: term.version"))
        elif name == b"traceparent":
            # A trace that cannot be read is no reason to refuse a call (W3C Trace Context says to ignore it).
            options.trace = value.decode("ascii") if value.isascii() and _TRACE.fullmatch(value) else None
        elif value.strip().lower() not in (b"", b"identity"):
            raise UnsupportedEncoding("send the body without Content-Encoding")


def check_key(key: str) -> None:
    """Raises BadRequest unless `key` could come in the Idempotency-Key header."""
    if not key.isascii() or not _KEY.fullmatch(key.encode()):
        raise BadRequest(f"an idempotency key is 1 to {KEY_BYTES_MAX} printable ASCII characters")


def incarnation(text: str) -> Incarnation:
    """An incarnation from `term.version`, quoted or not. Raises BadRequest when a half does not fit in 64 bits."""
    parsed = Epoch.parse(text.strip('"'))
    if max(parsed) > _U64_MAX:
        raise BadRequest("If-Match takes an incarnation: term.version, each below 2^64")
    return parsed


def _matched(pattern: re.Pattern[bytes], name: bytes, value: bytes, allowed: str) -> str:
    if not pattern.fullmatch(value):
        raise BadRequest(f"{name.decode().title()} takes {allowed}")
    return value.decode("ascii")


@lru_cache(maxsize=HEADS_REMEMBERED)
def answer_head(node_id: str, epoch: Epoch, served_by: ServedBy) -> tuple[Header, ...]:
    """The headers of a call's answer but for its length; remembered, since an epoch lasts a residency."""
    return (
        JSON,
        (b"domicile-node", node_id.encode("latin-1", "replace")),
        (b"domicile-epoch", str(epoch).encode()),
        (b"domicile-served-by", served_by.encode()),
    )
