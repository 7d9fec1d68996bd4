"""Append streams over real sockets that end, fall silent, or come back: nothing is lost without a word."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from streams import Between, MakeAppend, lengths

from domicile.node.errors import PeerGone
from domicile.node.wire.messages import Holds


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
