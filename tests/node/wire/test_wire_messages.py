"""Messages on the wire: golden bytes of each, fields added later, and what cannot be read."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from domicile.node.wire.codec import FIRST
from domicile.node.wire.framing import BadPeer
from domicile.node.wire.messages import (
    Append,
    Ask,
    AskWatermark,
    Dropped,
    Elsewhere,
    Fence,
    FenceAnswer,
    FencedBy,
    FetchChunk,
    Fetched,
    FetchLog,
    Fold,
    ForwardedCall,
    Holds,
    Hops,
    NewBase,
    NotThere,
    Part,
    Problem,
    Relabel,
    Returned,
    Unable,
    Watermark,
)
from domicile.placement.records import Epoch, Generation, Position

LIFE, E = Epoch(0, 3), Epoch(2, 300)
G, H = Generation(Epoch(1, 9), 4), Generation(Epoch(2, 300), 0)
OBJ, C = b"\xab" * 4, b"\xcd" * 2
INCIDENT = (E, Position(LIFE, G, 70000))

QUESTIONS: dict[str, Any] = {
    "Append": Append(OBJ, LIFE, E, G, 4120, C, b"frames", (INCIDENT,)),
    "Relabel": Relabel(OBJ, LIFE, E, G, 4120, C, H),
    "Fold": Fold(OBJ, LIFE, E, G, 4120, C, H, (b"h1", b"h2"), 8192, (1,)),
    "NewBase": NewBase(OBJ, LIFE, E, G, 32, C, (b"h1",), 4096),
    "AskWatermark": AskWatermark(OBJ),
    "Fence": Fence(OBJ, LIFE, E),
    "FetchLog": FetchLog(OBJ, LIFE, G, 0, 4120),
    "FetchChunk": FetchChunk(OBJ, LIFE, G, 3, b"h3"),
    "Dropped": Dropped(OBJ, LIFE),
    "ForwardedCall": ForwardedCall(("p", "C", "n"), "m", b"[1]", 2.5, Hops(1, 0), "k", LIFE, (("p", "C", "up"),), "t"),
    "Ask": Ask("describe", b"x"),
    "Part": Part(memoryview(b"piece"), True),
}
REPLIES: dict[str, Any] = {
    "Holds": Holds(LIFE, G, 8240),
    "FencedBy": FencedBy(E),
    "Elsewhere": Elsewhere(Position(LIFE, G, 32), True),
    "Unable": Unable("disk full"),
    "Watermark": Watermark(G, 4120, C, E),
    "FenceAnswer": FenceAnswer("copy", None, Position(LIFE, G, 32), C, False, (b"h1",), 4096, 32),
    "Fetched": Fetched(b"data"),
    "Returned": Returned(b"2", E, "replica", "n2"),
    "Problem": Problem(b"{}"),
    "NotThere": NotThere("chunk"),
    "Part": Part(memoryview(b"piece"), False),
}
GOLDEN: dict[str, str] = {
    "Append": (
        "9192059901c404abababab9200039202cd012c9292010904cd1018c402cdcdc4066672616d657391929202cd012c93920003"
        "9292010904ce00011170"
    ),
    "Relabel": "9192059902c404abababab9200039202cd012c9292010904cd1018c402cdcd929202cd012c0090",
    "Fold": (
        "9192059c03c404abababab9200039202cd012c9292010904cd1018c402cdcd929202cd012c0092c4026831c4026832cd2000910190"
    ),
    "NewBase": "9192059a04c404abababab9200039202cd012c929201090420c402cdcd91c4026831cd100090",
    "AskWatermark": "9192059205c404abababab",
    "Fence": "9192059406c404abababab9200039202cd012c",
    "FetchLog": "9192059607c404abababab920003929201090400cd1018",
    "FetchChunk": "9192059608c404abababab920003929201090403c4026833",
    "Dropped": "9192059309c404abababab920003",
    "ForwardedCall": "9192059a0a93a170a143a16ea16dc4035b315dcb4004000000000000920100a16b9200039193a170a143a27570a174",
    "Ask": "919205930ba86465736372696265c40178",
    "Part": "919205930fc4057069656365c3",
    "reply Holds": "91920594019200039292010904cd2030",
    "reply FencedBy": "91920592029202cd012c",
    "reply Elsewhere": "919205930393920003929201090420c3",
    "reply Unable": "9192059204a96469736b2066756c6c",
    "reply Watermark": "91920595059292010904cd1018c402cdcd9202cd012c",
    "reply FenceAnswer": "9192059906a4636f7079c093920003929201090420c402cdcdc291c4026831cd100020",
    "reply Fetched": "9192059207c40464617461",
    "reply Returned": "9192059508c401329202cd012ca77265706c696361a26e32",
    "reply Problem": "9192059209c4027b7d",
    "reply NotThere": "919205920aa56368756e6b",
    "reply Part": "919205930fc4057069656365c2",
}


@pytest.mark.parametrize("name", [*QUESTIONS, *(f"reply {name}" for name in REPLIES)])
def test_messages_have_these_bytes(name: str) -> None:
    """Each message is written as in the first version, and read back as it was."""
    table, read = (REPLIES, FIRST.replies) if name.startswith("reply ") else (QUESTIONS, FIRST.questions)
    message = table[name.removeprefix("reply ")]
    body = FIRST.encode([(5, message)])
    assert body.hex() == GOLDEN[name]
    assert read(body) == [(5, message)]


@pytest.mark.parametrize("name", QUESTIONS)
def test_readers_skip_fields_of_later_versions(name: str) -> None:
    """A field added to the end of a message does not keep this version from reading it."""
    fields = msgspec.msgpack.decode(FIRST.encode_one(QUESTIONS[name]))
    longer = msgspec.msgpack.encode([(1, [*fields, {"new": 1}])])
    assert FIRST.questions(longer) == [(1, QUESTIONS[name])]


def test_fields_with_defaults_may_be_missing() -> None:
    """A message from before a field was added is read with the field's default."""
    fields = msgspec.msgpack.decode(FIRST.encode_one(QUESTIONS["Append"]))
    assert FIRST.question(msgspec.msgpack.encode(fields[:-1])) == Append(OBJ, LIFE, E, G, 4120, C, b"frames")


@pytest.mark.parametrize(
    "body",
    [b"\xc1", b"\x91\x92\x01\x91\x63", b"\x01", b"\xff" * 40, b"\x91" * 5000, FIRST.encode([("x", Ask("m", b""))])],  # type: ignore[list-item]
    ids=["reserved", "unknown tag", "no list", "numbers", "deep", "no number"],
)
def test_what_cannot_be_read_is_the_peers_fault(body: bytes) -> None:
    """Bytes that are no message raise BadPeer and nothing else."""
    with pytest.raises(BadPeer):
        FIRST.questions(body)
    with pytest.raises(BadPeer):
        FIRST.question(body)
