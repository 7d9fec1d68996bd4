"""Calls to nodes that are gone, stop, or are left: what can have been heard, and nothing waits past its time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from streams import Between, call

from domicile.node.errors import PeerGone
from domicile.node.values import Call
from domicile.node.wire.messages import Hops


def test_a_call_never_outlives_its_time(between: Between) -> None:
    """No reply in time: PeerGone, sent; the call runs on at the other node and its late answer harms nobody."""

    async def story(ends: Any) -> None:
        address, handler, _ = await ends.serve()
        peers = ends.peers()
        gate, finished = asyncio.Event(), []

        async def wait(_: Call) -> bytes:
            await gate.wait()
            finished.append(True)
            return b"late"

        handler.on_call = wait
        with pytest.raises(PeerGone, match=r"no reply within 0\.05 s") as gone:
            await peers.call(address, call(9e9), Hops(), 0.05)
        assert gone.value.sent
        gate.set()
        await ends.until(lambda: finished)
        handler.on_call = None
        assert (await peers.call(address, call(9e9), Hops(), 5)).body == b"[1]"
        assert not ends.log.why("peer.lost")

    between(story)


def test_a_client_that_goes_away_cancels_nothing(between: Between) -> None:
    """The asker is cancelled and its node closes: what started at the other node runs to its end."""

    async def story(ends: Any) -> None:
        address, handler, _ = await ends.serve()
        peers = ends.peers()
        gate, finished = asyncio.Event(), []

        async def wait(_: Call) -> bytes:
            await gate.wait()
            finished.append(True)
            return b"late"

        handler.on_call = wait
        task = asyncio.ensure_future(peers.call(address, call(9e9), Hops(), 5))
        await ends.until(lambda: handler.calls)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await peers.close()
        gate.set()
        await ends.until(lambda: finished)

    between(story)


def test_nobody_there_is_certain_not_to_have_heard(between: Between) -> None:
    """A refused connection is PeerGone, not sent; until the backoff is over the next ones fail at once."""

    async def story(ends: Any) -> None:
        address, _, server = await ends.serve()
        await server.stop()
        peers = ends.peers()
        for _ in range(5):
            with pytest.raises(PeerGone) as gone:
                await peers.call(address, call(9e9), Hops(), 5)
            assert not gone.value.sent
        assert len(ends.log.why("peer.lost")) < 5
        await ends.serve("b2", address)

        async def answered() -> bool:
            try:
                return bool(await peers.call(address, call(9e9), Hops(), 5))
            except PeerGone:
                return False

        while not await answered():
            await asyncio.sleep(0)

    between(story)


def test_a_host_that_drops_everything_costs_the_askers_time_only(between: Between) -> None:
    """Before the other end proved itself nothing counts as sent, even when the time is up first."""

    async def story(ends: Any) -> None:
        address, handler, _ = await ends.serve()
        proxy = await ends.proxy(address)
        proxy.flows.clear()
        peers = ends.peers()
        with pytest.raises(PeerGone, match="no reply within") as gone:
            await peers.call(proxy.address, call(9e9), Hops(), 0.05)
        assert not gone.value.sent
        with pytest.raises(PeerGone, match="no proof within") as later:
            await peers.call(proxy.address, call(9e9), Hops(), 5)
        assert not later.value.sent
        proxy.flows.set()
        await asyncio.sleep(0)
        assert handler.calls == []

    between(story)


def test_a_listener_that_stops_sends_what_is_ready(between: Between) -> None:
    """Of two calls that a stop interrupts one still has an answer: it leaves; the other is gone, sent."""

    async def story(ends: Any) -> None:
        address, handler, server = await ends.serve()
        peers = ends.peers()

        async def wait(arrived: Call) -> bytes:
            try:
                return bytes(await ends.loop.create_future())
            except asyncio.CancelledError:
                if arrived.body == b"ready":
                    return b"ready"
                raise

        handler.on_call = wait
        calls = [peers.call(address, call(9e9, body), Hops(), 5) for body in (b"cut", b"ready")]
        waiting = [asyncio.ensure_future(each) for each in calls]
        await ends.until(lambda: len(handler.calls) == 2)
        await server.stop()
        cut, ready = await asyncio.gather(*waiting, return_exceptions=True)
        assert isinstance(cut, PeerGone)
        assert cut.sent
        assert ready.body == b"ready"

    between(story)


@pytest.mark.parametrize("how", ["forget", "close", "stop"])
def test_the_end_of_a_peer_ends_what_waits_for_it(between: Between, how: str) -> None:
    """A departed peer, a node that stops and a listener that stops fail what waits with PeerGone, sent."""

    async def story(ends: Any) -> None:
        address, handler, server = await ends.serve()
        peers = ends.peers()

        async def wait(_: Call) -> bytes:
            await ends.loop.create_future()
            return b""

        handler.on_call = wait
        waiting = asyncio.ensure_future(peers.call(address, call(9e9), Hops(), 5))
        await ends.until(lambda: handler.calls)
        if how == "forget":
            peers.forget(address)
        else:
            await (peers.close() if how == "close" else server.stop())
        with pytest.raises(PeerGone) as gone:
            await waiting
        assert gone.value.sent
        if how == "close":
            with pytest.raises(PeerGone) as later:
                await peers.call(address, call(9e9), Hops(), 5)
            assert not later.value.sent

    between(story)


@pytest.mark.parametrize("address", ["nowhere", "127.0.0.1:99999", ":1", f"{'x' * 70}.example:1", "[::1]:1"])
def test_an_address_that_leads_nowhere_is_gone(between: Between, address: str) -> None:
    """Whatever a node's row has for an address, the asker gets PeerGone, not sent."""

    async def story(ends: Any) -> None:
        with pytest.raises(PeerGone) as gone:
            await ends.peers().call(address, call(9e9), Hops(), 5)
        assert not gone.value.sent

    between(story)
