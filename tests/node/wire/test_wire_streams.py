"""Append streams over real sockets: order, batches, bounds, versions, strangers, dead flows, restarts."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from domicile.node.errors import PeerBusy, PeerGone
from domicile.node.wire.codec import FIRST, Codec
from domicile.node.wire.framing import FRAME_MAX, HEADER, PREAMBLE, frame
from domicile.node.wire.hello import Dialing, Hello, Listening, denial
from domicile.node.wire.limits import Limits
from domicile.node.wire.messages import Append, AskWatermark, Holds, Part
from domicile.placement.records import Epoch, Generation

Between = Callable[[Callable[[Any], Awaitable[Any]]], Any]
MakeAppend = Callable[..., Append]
EPOCH = Epoch(1, 7)
GENERATION = Generation(EPOCH, 0)


def lengths(answers: list[Any]) -> list[int]:
    assert all(isinstance(answer, Holds) for answer in answers)
    return [answer.length for answer in answers]


def test_ten_thousand_messages_arrive_in_order(between: Between, make_append: MakeAppend, quick: Any) -> None:
    """All that is said to one peer is heard in order, and each gets its own answer, however the turns fall."""

    async def story(ends: Any) -> None:
        address, handler, _ = await ends.serve(limits=Limits())
        peers = ends.peers(limits=Limits())
        futures = []
        for number in range(10_000):
            futures.append(peers.say(address, make_append(number, bytes(number % 300))))
            if number % 700 == 0:
                await asyncio.sleep(0)
        answers = await asyncio.gather(*futures)
        assert lengths(answers) == [number + number % 300 for number in range(10_000)]
        assert [message.offset for message in handler.heard] == list(range(10_000))

    between(story)


def test_what_is_said_in_one_turn_is_heard_as_one_batch(between: Between, make_append: MakeAppend) -> None:
    """Over all streams: what several nodes said at once reaches the copies together, with who said it."""

    async def story(ends: Any) -> None:
        address, handler, _ = await ends.serve()
        first, second = ends.peers("a1"), ends.peers("a2")
        await asyncio.gather(first.say(address, make_append(0)), second.say(address, make_append(0)))
        handler.batches.clear()
        said = [peers.say(address, make_append(n)) for n in range(20) for peers in (first, second)]
        await asyncio.gather(*said)
        (batch,) = handler.batches
        assert {speaker.node_id for speaker, _ in batch} == {"a1", "a2"}
        assert {speaker.peer for speaker, _ in batch} == {"a1:1", "a2:1"}
        assert len(batch) == 40

    between(story)


def test_large_appends_travel_in_order_between_small_ones(between: Between, make_append: MakeAppend) -> None:
    """An append of 5 MiB, more than a frame and than the window, keeps its place."""

    async def story(ends: Any) -> None:
        address, handler, _ = await ends.serve()
        peers = ends.peers()
        frames = [b"a", bytes(range(256)) * (5 << 12), b"b", b"c" * FRAME_MAX, b"d"]
        futures = [peers.say(address, make_append(n, each)) for n, each in enumerate(frames)]
        assert lengths(await asyncio.gather(*futures)) == [n + len(each) for n, each in enumerate(frames)]
        assert [message.frames for message in handler.heard] == frames

    between(story)


def test_the_window_bounds_what_is_in_flight(between: Between, make_append: MakeAppend, quick: Any) -> None:
    """With a window full of unanswered appends the next waits here, and goes when an answer has come."""

    async def story(ends: Any) -> None:
        address, handler, _ = await ends.serve()
        peers = ends.peers(limits=quick(window=10_000))
        handler.hold = True
        futures = [peers.say(address, make_append(n, bytes(2000))) for n in range(12)]
        await ends.until(lambda: len(handler.heard) == 4)
        assert not any(future.done() for future in futures)
        handler.release()
        await ends.until(lambda: len(handler.heard) == 8)
        handler.hold = False
        handler.release()
        await asyncio.gather(*futures)
        assert [message.offset for message in handler.heard] == list(range(12))

    between(story)


def test_a_full_queue_is_busy_at_once(between: Between, make_append: MakeAppend, quick: Any) -> None:
    """What cannot even wait fails with PeerBusy, was not sent, and what waited before is still heard in order."""

    async def story(ends: Any) -> None:
        address, handler, _ = await ends.serve()
        peers = ends.peers(limits=quick(window=5_000, queued=10_000))
        futures = [peers.say(address, make_append(n, bytes(2000))) for n in range(9)]
        answers = await asyncio.gather(*futures, return_exceptions=True)
        busy = [isinstance(answer, PeerBusy) for answer in answers]
        assert busy == [False] * 4 + [True] * 5
        assert [message.offset for message in handler.heard] == list(range(4))

    between(story)


def test_a_peer_that_does_not_read_costs_bounded_memory(between: Between, make_append: MakeAppend, quick: Any) -> None:
    """A listener that stops answering is not sent more than the window; nothing piles up behind the socket."""

    async def story(ends: Any) -> None:
        address, _, _ = await ends.serve()
        proxy = await ends.proxy(address)
        peers = ends.peers(limits=quick(window=1 << 20, queued=2 << 20, dead_secs=5.0))
        await peers.say(proxy.address, make_append(0))
        proxy.flows.clear()
        futures = [peers.say(proxy.address, make_append(n, bytes(100_000))) for n in range(40)]
        refused = [f for f in futures if f.done() and isinstance(f.exception(), PeerBusy)]
        assert len(refused) >= 18
        proxy.flows.set()
        answers = await asyncio.gather(*futures, return_exceptions=True)
        assert sum(isinstance(answer, Holds) for answer in answers) == 40 - len(refused)

    between(story)


def test_a_restart_loses_nothing_silently(between: Between, make_append: MakeAppend) -> None:
    """With messages in flight the listener is replaced: each future ends once, answered or gone; the next is heard."""

    async def story(ends: Any) -> None:
        address, handler, server = await ends.serve()
        peers = ends.peers()
        await peers.say(address, make_append(0))
        handler.hold = True
        futures = [peers.say(address, make_append(n)) for n in range(1, 50)]
        await ends.until(lambda: len(handler.held) == 49)
        held, handler.held = handler.held[:20], handler.held[20:]
        for heard, message in held:
            heard(Holds(message.incarnation, message.generation, message.offset))
        await asyncio.gather(*futures[:20])
        unsent = peers.say(address, make_append(50))  # not yet handed to the connection
        await server.stop()
        answers = await asyncio.gather(*futures, unsent, return_exceptions=True)
        assert lengths(answers[:20]) == list(range(1, 21))
        assert all(isinstance(answer, PeerGone) for answer in answers[20:])
        assert all(answer.sent for answer in answers[20:49])
        _, second, _ = await ends.serve("b2", address)
        assert lengths([await peers.say(address, make_append(51))]) == [151]
        assert [message.offset for message in second.heard] == [51]
        handler.release()  # answers of the old one go nowhere

    between(story)


def test_a_reset_connection_fails_what_is_in_flight(between: Between, make_append: MakeAppend) -> None:
    """A cut flow fails its messages as sent, at once, and the stream is dialled anew for the next."""

    async def story(ends: Any) -> None:
        address, handler, _ = await ends.serve()
        proxy = await ends.proxy(address)
        peers = ends.peers()
        handler.hold = True
        future = peers.say(proxy.address, make_append(1))
        await ends.until(lambda: handler.held)
        proxy.cut()
        with pytest.raises(PeerGone) as gone:
            await future
        assert gone.value.sent
        handler.hold = False
        assert lengths([await peers.say(proxy.address, make_append(2))]) == [102]

    between(story)


def test_a_half_closed_connection_is_over(between: Between, make_append: MakeAppend) -> None:
    """A peer that says it will say no more cannot answer: its messages fail instead of waiting."""

    async def story(ends: Any) -> None:
        address, handler, _ = await ends.serve()
        proxy = await ends.proxy(address)
        peers = ends.peers()
        handler.hold = True
        future = peers.say(proxy.address, make_append(1))
        await ends.until(lambda: handler.held)
        proxy.half_close()
        with pytest.raises(PeerGone):
            await future

    between(story)


def test_a_dead_flow_is_noticed_by_both_ends(between: Between, make_append: MakeAppend) -> None:
    """Field cases 45 and 98: bytes stop without a reset; the message fails, the next one gets a new connection."""

    async def story(ends: Any) -> None:
        address, _, _ = await ends.serve()
        proxy = await ends.proxy(address)
        peers = ends.peers()
        await peers.say(proxy.address, make_append(0))
        proxy.flows.clear()
        began = ends.loop.time()
        with pytest.raises(PeerGone, match="nothing heard") as gone:
            await peers.say(proxy.address, make_append(1))
        assert gone.value.sent
        assert ends.loop.time() - began < 5
        await ends.until(lambda: any("nothing heard" in why for why in ends.log.why("peer.closed")))
        proxy.flows.set()
        assert lengths([await peers.say(proxy.address, make_append(2))]) == [102]

    between(story)


def test_an_idle_stream_stays(between: Between, make_append: MakeAppend, quick: Any) -> None:
    """Silence of several times the limit keeps the connection: empty frames are life enough (field case 98)."""

    async def story(ends: Any) -> None:
        address, _, _ = await ends.serve()
        proxy = await ends.proxy(address)
        peers = ends.peers()
        await peers.say(proxy.address, make_append(0))
        until = ends.loop.time() + 1.2
        await ends.until(lambda: ends.loop.time() > until)
        await peers.say(proxy.address, make_append(1))
        assert proxy.accepted == 1
        assert not ends.log.why("peer.lost")

    between(story)


def test_a_loop_that_stood_still_blames_nobody(between: Between, make_append: MakeAppend) -> None:
    """A process that was blocked for longer than the limit keeps its connections: it was the deaf one."""

    async def story(ends: Any) -> None:
        address, _, _ = await ends.serve()
        peers = ends.peers()
        await peers.say(address, make_append(0))
        until = time.monotonic() + 0.9
        while time.monotonic() < until:
            pass
        assert lengths([await peers.say(address, make_append(1))]) == [101]
        until = ends.loop.time() + 0.2
        await ends.until(lambda: ends.loop.time() > until)
        assert not ends.log.why("peer.lost")
        assert not ends.log.why("peer.closed")

    between(story)


def test_a_peer_that_never_answers_is_given_up(between: Between, make_append: MakeAppend, quick: Any) -> None:
    """A node that lives but whose disk does not answers nothing: its stream ends, so nobody waits for ever."""

    async def story(ends: Any) -> None:
        address, handler, _ = await ends.serve()
        peers = ends.peers(limits=quick(answer_secs=0.3))
        handler.hold = True
        with pytest.raises(PeerGone, match="no answer for") as gone:
            await peers.say(address, make_append(0))
        assert gone.value.sent
        handler.release()

    between(story)


SECOND: Codec = FIRST._replace(
    encode=lambda entries: b"2" + FIRST.encode(entries),
    questions=lambda body: FIRST.questions(memoryview(body)[1:]),
    replies=lambda body: FIRST.replies(memoryview(body)[1:]),
)


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


def test_small_messages_do_not_wait_for_more(between: Between, make_append: MakeAppend) -> None:
    """Both ends have TCP_NODELAY."""

    async def story(ends: Any) -> None:
        address, _, server = await ends.serve()
        peers = ends.peers()
        await peers.say(address, make_append(0))
        (accepted,) = server._connections
        dialed = peers._links[address, "append"].connection()
        for connection in (accepted, dialed):
            sock = connection._transport.get_extra_info("socket")
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)

    between(story)


def test_a_listener_out_of_breath_reads_later(between: Between, make_append: MakeAppend, quick: Any) -> None:
    """A dialer with a larger window than the listener's: TCP holds it back, keepalives notwithstanding; all arrives."""

    async def story(ends: Any) -> None:
        address, handler, _ = await ends.serve(limits=quick(window=100_000))
        peers = ends.peers(limits=Limits(ping_secs=0.05, dead_secs=3.0, redial_secs=(0.02, 0.1)))
        handler.hold = True
        futures = [peers.say(address, make_append(n, bytes(50_000))) for n in range(60)]
        await ends.until(lambda: len(handler.heard) >= 4)
        until = ends.loop.time() + 0.8  # twice what the listener would take for a dead flow
        await ends.until(lambda: ends.loop.time() > until)
        assert len(handler.heard) < 60
        handler.hold = False
        handler.release()
        assert lengths(await asyncio.gather(*futures)) == [50_000 + n for n in range(60)]
        assert not ends.log.why("peer.closed")

    between(story)
