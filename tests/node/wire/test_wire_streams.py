"""Append streams over real sockets: order, batches, bounds."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from streams import Between, MakeAppend, lengths

from domicile.node.errors import PeerBusy
from domicile.node.wire.framing import FRAME_MAX
from domicile.node.wire.limits import Limits
from domicile.node.wire.messages import Holds


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
