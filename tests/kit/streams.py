"""What tests of the wire between nodes name alike."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from domicile.node.values import Call
from domicile.node.wire.codec import FIRST, Codec
from domicile.node.wire.messages import Append, Holds
from domicile.placement.records import Epoch, Generation, ObjectKey

Between = Callable[[Callable[[Any], Awaitable[Any]]], Any]
MakeAppend = Callable[..., Append]
KEY = ObjectKey("shop", "Cart", "müller/1")
LIFE = Epoch(0, 3)
EPOCH = Epoch(1, 7)
GENERATION = Generation(EPOCH, 0)
MIB = 1 << 20


def lengths(answers: list[Any]) -> list[int]:
    assert all(isinstance(answer, Holds) for answer in answers)
    return [answer.length for answer in answers]


SECOND: Codec = FIRST._replace(
    encode=lambda entries: b"2" + FIRST.encode(entries),
    questions=lambda body: FIRST.questions(memoryview(body)[1:]),
    replies=lambda body: FIRST.replies(memoryview(body)[1:]),
)


def call(deadline: float, body: bytes = b"[1]", **more: Any) -> Call:
    return Call(KEY, "add", body, deadline, **more)
