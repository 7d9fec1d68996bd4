"""The opening of a connection: golden bytes, versions, and everybody who may not speak."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from domicile.node.config import ConfigError
from domicile.node.wire.framing import BadPeer
from domicile.node.wire.hello import Dialing, Hello, Identity, Listening, Speaker, Welcome, denial
from domicile.node.wire.tls import secret_from

A = Identity("home", "a", "copy-a", "10.0.0.1:9", b"0123456789abcdef")
B = Identity("home", "b", "copy-b", "10.0.0.2:9", b"0123456789abcdef")


def fixed(count: int) -> bytes:
    return b"\x07" * count


def opening(a: Identity = A, b: Identity = B, ours: tuple[int, ...] = (1,), theirs: tuple[int, ...] = (1,)) -> Speaker:
    """Both sides of an opening; who dialled."""
    dialing, listening = Dialing(a, "append", ours, fixed), Listening(b, theirs, fixed)
    speaker, proof = dialing.proof(listening.welcome(dialing.hello))
    assert speaker == Speaker(b.node_id, b.copy_id, "", speaker.version, "append")
    dialled = listening.admit(proof)
    assert dialled.version == speaker.version
    return dialled


def test_the_opening_has_these_bytes() -> None:
    """Hello, welcome, proof and denial are written as in the first version."""
    dialing, listening = Dialing(A, "call", (1,), fixed), Listening(B, (1,), fixed)
    welcome = listening.welcome(dialing.hello)
    nonce = "c420" + "07" * 32
    assert dialing.hello.hex() == ("98019101a4686f6d65a161a6636f70792d61aa31302e302e302e313a39a463616c6c" + nonce)
    assert welcome.hex() == "970201a4686f6d65a162a6636f70792d62" + nonce + "c420" + WELCOME_PROOF
    assert dialing.proof(welcome)[1].hex() == "9203c420" + DIALER_PROOF
    assert denial("no").hex() == "9204a26e6f"


WELCOME_PROOF = "01b9c2ce576bec60e8d69bd3343ad188f2dd21bdfdf5d31a525cf9a6f1fbb21c"
DIALER_PROOF = "32095e33d4f2e58418d7b0da1366cc21b005178e22564d0f0c045196a56636f6"


def test_who_dialled_is_known_with_its_address() -> None:
    """The listener learns node, copy and the address at which the dialer listens."""
    assert opening() == Speaker("a", "copy-a", "10.0.0.1:9", 1, "append")


@pytest.mark.parametrize(
    ("ours", "theirs", "taken"), [((1, 2), (1,), 1), ((1,), (1, 2), 1), ((1, 2), (1, 2), 2), ((1, 2, 3), (2, 4), 2)]
)
def test_the_greatest_common_version_is_taken(ours: tuple[int, ...], theirs: tuple[int, ...], taken: int) -> None:
    """A newer node talks to an older one in the older's version, whoever dials."""
    assert opening(ours=ours, theirs=theirs).version == taken


def test_no_common_version_is_refused_with_both_lists() -> None:
    """The refusal says what each has."""
    with pytest.raises(BadPeer, match=r"no version in common: it has \(2,\), we have \(1,\)"):
        opening(ours=(2,))


def test_another_cluster_is_refused_by_name() -> None:
    """The refusal names both clusters."""
    with pytest.raises(BadPeer, match="it belongs to cluster 'away', we to 'home'"):
        opening(a=replace(A, cluster="away"))


def test_a_listener_without_the_secret_is_found_out() -> None:
    """The dialer does not go on with somebody who cannot prove the secret."""
    with pytest.raises(BadPeer, match="does not know our cluster's secret"):
        opening(b=replace(B, secret=b"another secret!!"))


def test_a_dialer_without_the_secret_is_found_out() -> None:
    """Any proof but the one that is due is refused: a wrong one, and the listener's own sent back."""
    dialing, listening = Dialing(A, "append", (1,), fixed), Listening(B, (1,), fixed)
    welcome = msgspec.msgpack.decode(listening.welcome(dialing.hello), type=Welcome)
    for proof in (b"", bytes(32), welcome.proof):
        with pytest.raises(BadPeer, match="does not know our cluster's secret"):
            listening.admit(msgspec.msgpack.encode([3, proof]))


@pytest.mark.parametrize("change", [{"versions": (1,)}, {"peer": "6.6.6.6:6"}, {"copy_id": "copy-x"}, {"lane": "bulk"}])
def test_nobody_between_can_change_the_hello(change: dict[str, object]) -> None:
    """A hello changed on its way, to an older version for one, makes the listener's proof wrong for the dialer."""
    dialing, listening = Dialing(A, "append", (1, 2), fixed), Listening(B, (1, 2), fixed)
    hello = msgspec.structs.replace(msgspec.msgpack.decode(dialing.hello, type=Hello), **change)
    with pytest.raises(BadPeer, match="secret"):
        dialing.proof(listening.welcome(msgspec.msgpack.encode(hello)))


def test_nobody_between_can_change_the_welcome() -> None:
    """A version taken out of the welcome makes its proof wrong."""
    dialing, listening = Dialing(A, "append", (1, 2), fixed), Listening(B, (1, 2), fixed)
    welcome = msgspec.msgpack.decode(listening.welcome(dialing.hello), type=Welcome)
    with pytest.raises(BadPeer, match="secret"):
        dialing.proof(msgspec.msgpack.encode(msgspec.structs.replace(welcome, version=1)))


def test_a_proof_serves_one_opening() -> None:
    """What was recorded of an opening proves nothing in the next: both nonces are new."""
    nonces = iter(bytes([i]) * 32 for i in range(9))
    dialing, listening = Dialing(A, "append", (1,), lambda _: next(nonces)), Listening(B, (1,), lambda _: next(nonces))
    _, proof = dialing.proof(listening.welcome(dialing.hello))
    again = Listening(B, (1,), lambda _: next(nonces))
    again.welcome(dialing.hello)
    with pytest.raises(BadPeer, match="secret"):
        again.admit(proof)
    assert listening.admit(proof).node_id == "a"


def test_a_denial_is_told() -> None:
    """Why the other denied us reaches our log, from either side."""
    with pytest.raises(BadPeer, match="it denied us: no room"):
        Dialing(A, "call", (1,), fixed).proof(denial("no room"))
    with pytest.raises(BadPeer, match="it denied us: no trust"):
        Listening(B, (1,), fixed).admit(denial("no trust"))


@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x91" * 3000, b"\x98\x01\x90" + b"\xa1x" * 4, b"\x92\x01\x01"])
def test_an_unreadable_hello_is_refused(body: bytes) -> None:
    """Bytes that are no hello raise BadPeer and nothing else, at both sides."""
    with pytest.raises(BadPeer):
        Listening(B, (1,), fixed).welcome(body)
    with pytest.raises(BadPeer):
        Dialing(A, "call", (1,), fixed).proof(body)


def test_later_versions_may_add_fields_to_the_hello() -> None:
    """A hello with fields this version does not know is read, and proved over all its bytes."""
    dialing, listening = Dialing(A, "append", (1, 9), fixed), Listening(B, (1,), fixed)
    dialing.hello = msgspec.msgpack.encode([*msgspec.msgpack.decode(dialing.hello), "new"])
    _, proof = dialing.proof(listening.welcome(dialing.hello))
    assert listening.admit(proof).version == 1


def test_secrets_are_long_enough_and_hidden() -> None:
    """White space around the secret in its file does not count; a short one is refused; none is ever shown."""
    assert secret_from(b" 0123456789abcdef\n") == b"0123456789abcdef"
    with pytest.raises(ConfigError, match="at least 16"):
        secret_from(b"0123456789abcde\n\n\n")
    assert "0123456789abcdef" not in repr(A)
