"""TLS between nodes: who is let in, which name is checked, and what the settings must say."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from domicile.node.config import ConfigError
from domicile.node.errors import PeerGone
from domicile.node.wire.messages import Append
from domicile.node.wire.tls import peer_tls

Between = Callable[[Callable[[Any], Awaitable[Any]]], Any]
Certificates = Callable[..., tuple[str, str, str]]
MakeAppend = Callable[..., Append]


def test_nodes_talk_over_tls(between: Between, make_append: MakeAppend, certificates: Certificates) -> None:
    """With certificates of one authority everything goes as without, large messages included."""

    async def story(ends: Any) -> None:
        address, _, _ = await ends.serve(tls=peer_tls(*certificates()))
        peers = ends.peers(tls=peer_tls(*certificates()))
        for number, size in enumerate((0, 4096, 3 << 20)):
            assert (await peers.say(address, make_append(number, bytes(size)))).length == number + size

    between(story)


@pytest.mark.parametrize("case", ["other authority", "other host", "plain dialer", "plain listener"])
def test_without_the_right_certificate_nothing_is_heard(
    between: Between, make_append: MakeAppend, certificates: Certificates, case: str
) -> None:
    """Another authority, a certificate for another host, or no TLS at one end: refused, nothing sent, nothing heard."""
    ours = peer_tls(*certificates())
    theirs = peer_tls(*certificates("foreign" if case == "other authority" else "ours"))
    if case == "other host":
        theirs = peer_tls(*certificates(host="10.9.8.7"))

    async def story(ends: Any) -> None:
        address, handler, _ = await ends.serve(tls=None if case == "plain listener" else theirs)
        peers = ends.peers(tls=None if case == "plain dialer" else ours)
        with pytest.raises(PeerGone) as gone:
            await peers.say(address, make_append(0))
        assert not gone.value.sent
        assert handler.batches == []
        assert ends.log.why("peer.lost")

    between(story)


def test_the_listener_checks_the_dialer_too(
    between: Between, make_append: MakeAppend, certificates: Certificates
) -> None:
    """A dialer of another authority that trusts ours is still refused."""
    ours, foreign = certificates(), certificates("foreign")
    mixed = peer_tls(ours[0], foreign[1], foreign[2])

    async def story(ends: Any) -> None:
        address, handler, _ = await ends.serve(tls=peer_tls(*ours))
        with pytest.raises(PeerGone):
            await ends.peers(tls=mixed).say(address, make_append(0))
        assert handler.batches == []

    between(story)


def test_no_files_is_no_tls_and_some_is_a_mistake(certificates: Certificates) -> None:
    """All three settings or none; a file that is missing, or is no certificate, is told by the setting's name."""
    ca, cert, key = certificates()
    assert peer_tls("", "", "") is None
    with pytest.raises(ConfigError, match="missing: PEER_CERT_FILE, PEER_KEY_FILE"):
        peer_tls(ca, "", "")
    with pytest.raises(ConfigError, match="cannot be used"):
        peer_tls(ca, cert, key + ".absent")
    with pytest.raises(ConfigError, match="cannot be used"):
        peer_tls(key, cert, key)
