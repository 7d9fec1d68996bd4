"""Connections of other versions, of strangers, and of members that break the protocol."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import msgspec
import pytest
from streams import EPOCH, GENERATION, SECOND, Between, MakeAppend, lengths

from domicile.node.errors import PeerGone
from domicile.node.wire.codec import FIRST
from domicile.node.wire.framing import FRAME_MAX, HEADER, PREAMBLE, frame
from domicile.node.wire.hello import Dialing, Hello, Listening, denial
from domicile.node.wire.messages import AskWatermark, Holds, Part


@pytest.mark.parametrize(("ours", "theirs", "taken"), [((1, 2), (1,), 1), ((1,), (1, 2), 1), ((1, 2), (1, 2), 2)])
def test_nodes_of_two_versions_talk(
    between: Between, make_append: MakeAppend, ours: tuple[int, ...], theirs: tuple[int, ...], taken: int
) -> None:
    """A node with a second version talks to one without in the first, both ways, and to its like in the second."""
    codecs = {1: FIRST, 2: SECOND}

    async def story(ends: Any) -> None:
        address, handler, _ = await ends.serve(versions={n: codecs[n] for n in theirs})
        peers = ends.peers(versions={n: codecs[n] for n in ours})
        assert lengths(await asyncio.gather(*(peers.say(address, make_append(n)) for n in range(3)))) == [100, 101, 102]
        assert {speaker.version for batch in handler.batches for speaker, _ in batch} == {taken}

    between(story)


@pytest.mark.parametrize(
    ("dialer", "why"),
    [
        ({"cluster": "away"}, "it belongs to cluster 'away', we to 'home'"),
        ({"secret": b"another secret!!"}, "it denied us: it does not know our cluster's secret"),
        ({"versions": {2: SECOND}}, "no version in common"),
    ],
    ids=["cluster", "secret", "version"],
)
def test_strangers_are_refused_and_told_why(
    between: Between, make_append: MakeAppend, dialer: dict[str, Any], why: str
) -> None:
    """Another cluster, secret or version: nothing is heard, nothing counts as sent, and both logs say why."""

    async def story(ends: Any) -> None:
        address, handler, _ = await ends.serve()
        peers = ends.peers(**dialer)
        with pytest.raises(PeerGone) as gone:
            await peers.say(address, make_append(0))
        assert not gone.value.sent
        await ends.until(lambda: ends.log.why("peer.refused"))
        assert why in ends.log.why("peer.refused")[0]
        assert ends.log.why("peer.lost")
        assert handler.batches == []

    between(story)


def test_a_denial_that_crosses_the_proof_is_read_as_one(between: Between, make_append: MakeAppend) -> None:
    """A listener that loses its patience after its welcome says so, and that is what the dialer's log says."""

    async def story(ends: Any) -> None:
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            listening = Listening(ends.wiring("b").identity(), (1,), bytes)
            head = await reader.readexactly(len(PREAMBLE) + HEADER.size)
            body = await reader.readexactly(HEADER.unpack(head[-HEADER.size :])[0])
            writer.write(PREAMBLE + frame(listening.welcome(memoryview(body))) + frame(denial("no proof within 3 s")))
            await reader.read()
            writer.close()

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(PeerGone, match="it denied us: no proof within 3 s"):
            await ends.peers().say(address, make_append(0))
        server.close()

    between(story)


def hello(**changes: Any) -> bytes:
    first = Hello((1,), "home", "x", "copy-x", "", "append", bytes(32))
    return frame(msgspec.msgpack.encode(msgspec.structs.replace(first, **changes)))


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "does not speak our protocol"),
        (PREAMBLE + frame(b"\xc1\xc1"), "hello cannot be read"),
        (PREAMBLE + b"\x7f\xff\xff\xff" + bytes(4), "over the bound"),
        (PREAMBLE + b"\0\0\0\x04\0\0\0\0abcd", "checksum"),
        (PREAMBLE + hello(nonce=b"short"), "nonce"),
        (PREAMBLE + hello() + frame(b"\x92\x03\xc4\x01\x00"), "secret"),
        (PREAMBLE + hello() + hello(), "cannot be read"),
        (PREAMBLE, "no proof within"),
        (PREAMBLE + hello(), "no proof within"),
    ],
    ids=["http", "garbage", "oversize", "checksum", "nonce", "proof", "twice", "silence", "no proof"],
)
def test_garbage_closes_its_own_connection_only(
    between: Between, make_append: MakeAppend, sent: bytes, why: str
) -> None:
    """Whatever a stranger sends, its connection ends with a clear log line and the others do not notice."""

    async def story(ends: Any) -> None:
        address, _, _ = await ends.serve()
        peers = ends.peers()
        await peers.say(address, make_append(0))
        host, port = address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(sent)
        await reader.read()
        await ends.until(lambda: ends.log.why("peer.refused"))
        assert why in ends.log.why("peer.refused")[0]
        writer.close()
        assert lengths([await peers.say(address, make_append(1))]) == [101]
        assert not ends.log.why("peer.lost")

    between(story)


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (frame(b"\xc1"), "cannot be read"),
        (frame(b"\x91\x92\x01\x92\x63\x01"), "cannot be read"),
        (frame(FIRST.encode([(1, Holds(EPOCH, GENERATION, 1))])), "cannot be read"),
        (frame(FIRST.encode([(1, AskWatermark(b"o")), (1, AskWatermark(b"o"))])), "twice"),
        ((FRAME_MAX + 1).to_bytes(4, "big") + bytes(4), "over the bound"),
        (
            b"".join(frame(FIRST.encode([(1, Part(memoryview(bytes(1000)), last=False))])) for _ in range(9)),
            "over 5000",
        ),
    ],
    ids=["garbage", "unknown message", "a reply", "number twice", "oversize", "endless message"],
)
def test_a_member_that_breaks_the_protocol_is_cut_off(
    between: Between, make_append: MakeAppend, quick: Any, sent: bytes, why: str
) -> None:
    """One that has proved itself and then talks nonsense loses its connection, with the reason in the log."""

    async def story(ends: Any) -> None:
        address, handler, _ = await ends.serve(limits=quick(message_max=5000))
        handler.hold = True
        host, port = address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        dialing = Dialing(ends.wiring("x").identity(), "append", (1,), bytes)
        writer.write(PREAMBLE + frame(dialing.hello))
        head = await reader.readexactly(len(PREAMBLE) + HEADER.size)
        welcome = await reader.readexactly(HEADER.unpack(head[-HEADER.size :])[0])
        writer.write(frame(dialing.proof(welcome)[1]) + sent)
        with contextlib.suppress(ConnectionResetError):
            await reader.read()
        await ends.until(lambda: ends.log.why("peer.closed"))
        assert why in ends.log.why("peer.closed")[0]
        writer.close()
        handler.release()
        handler.hold = False
        assert lengths([await ends.peers().say(address, make_append(1))]) == [101]

    between(story)


def test_strangers_are_few_at_a_time(between: Between, make_append: MakeAppend, quick: Any) -> None:
    """Connections that prove nothing do not pile up, and do not fill the log; friends get in when they are gone."""

    async def story(ends: Any) -> None:
        address, _, server = await ends.serve(limits=quick(strangers_max=8))
        host, port = address.split(":")
        opened = [await asyncio.open_connection(host, int(port)) for _ in range(40)]
        closed = [await reader.read() for reader, _ in opened[8:]]  # at once, not when their time is up
        assert len(closed) == 32
        assert len(server._connections) <= 8
        for _, writer in opened:
            writer.close()
        await ends.until(lambda: not server._connections)
        assert len(ends.log.why("peer.refused")) < 5
        assert lengths([await ends.peers().say(address, make_append(1))]) == [101]

    between(story)
