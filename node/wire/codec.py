"""Versions of what frames say: entries (number, message) in msgpack (PROTOCOLS section 7).

A version is a codec. The dialer offers those it has, the listener takes the greatest both have. A field may be added to
the end of a message within a version: readers fill what is missing with its default and skip what they do not know.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec

from domicile.node.wire.framing import BadPeer, Body
from domicile.node.wire.messages import Part, Question, Reply

Entry = tuple[int, Any]
T = TypeVar("T")


class Codec(NamedTuple):
    """How one version reads and writes. Decoders raise BadPeer."""

    encode: Callable[[Sequence[Entry]], bytes]
    questions: Callable[[Body], list[tuple[int, Question | Part]]]
    replies: Callable[[Body], list[tuple[int, Reply | Part]]]
    encode_one: Callable[[Any], bytes]
    question: Callable[[Body], Question]
    reply: Callable[[Body], Reply]


def _reader(kind: Any) -> Callable[[Body], Any]:
    decode = msgspec.msgpack.Decoder(kind).decode

    def read(body: Body) -> Any:
        try:
            return decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise BadPeer(f"a message cannot be read: {error}") from None

    return read


_encode = msgspec.msgpack.Encoder().encode

FIRST = Codec(
    encode=_encode,
    questions=_reader(list[tuple[int, Question | Part]]),
    replies=_reader(list[tuple[int, Reply | Part]]),
    encode_one=_encode,
    question=_reader(Question),
    reply=_reader(Reply),
)

Versions = Mapping[int, Codec]
VERSIONS: Versions = {1: FIRST}
