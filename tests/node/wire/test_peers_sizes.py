"""Calls and answers of all sizes between nodes, and the bounds of what is on its way."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from streams import MIB, Between, call

from domicile.errors import (
    BodyTooLarge,
    DomicileError,
    Overloaded,
)
from domicile.node.values import Answer, Call
from domicile.node.wire.messages import Hops


@pytest.mark.parametrize("size", [3_900_000, 4_000_000, 4_200_000, 20_000_000])
def test_large_arguments_and_results_travel(between: Between, size: int) -> None:
    """Field case 95: no size between the usual bounds of message systems is special."""

    async def story(ends: Any) -> None:
        address, _, _ = await ends.serve()
        body = b"7" * size
        answer = await ends.peers().call(address, call(9e9, body), Hops(), 10)
        assert answer.body == body

    between(story)


def test_what_is_too_large_is_refused_once_and_for_all(between: Between, quick: Any) -> None:
    """Field case 95: too large a body was not run, too large a result is not retryable, and the connection goes on."""

    async def story(ends: Any) -> None:
        limits = quick(message_max=MIB)
        address, handler, _ = await ends.serve(limits=limits)
        peers = ends.peers(limits=limits)
        with pytest.raises(BodyTooLarge) as refused:
            await peers.call(address, call(9e9, bytes(MIB)), Hops(), 5)
        assert refused.value.outcome == "not_run"
        assert handler.calls == []

        async def much(_: Call) -> bytes:
            return bytes(MIB)

        handler.on_call = much
        with pytest.raises(DomicileError, match="at most") as lost:
            await peers.call(address, call(9e9), Hops(), 5)
        assert (lost.value.outcome, lost.value.retryable) == ("unknown", False)
        handler.on_call = None
        assert (await peers.call(address, call(9e9), Hops(), 5)).body == b"[1]"
        assert not ends.log.why("peer.lost")

    between(story)


def test_small_calls_pass_large_results(between: Between) -> None:
    """While a result of 40 MiB is under way on the same connection, a call put later comes back before it."""

    async def story(ends: Any) -> None:
        address, handler, _ = await ends.serve()
        peers = ends.peers()

        async def answer(arrived: Call) -> bytes:
            return bytes(40 * MIB) if arrived.body == b"large" else b"small"

        handler.on_call = answer
        large = asyncio.ensure_future(peers.call(address, call(9e9, b"large"), Hops(), 15))
        await ends.until(lambda: handler.calls)
        await peers.call(address, call(9e9), Hops(), 5)
        assert not large.done()
        assert len((await large).body) == 40 * MIB

    between(story)


def test_requests_beyond_the_bound_are_refused(between: Between, quick: Any) -> None:
    """A node with too many requests of one peer running refuses more, retryably, and runs what it has."""

    async def story(ends: Any) -> None:
        address, handler, _ = await ends.serve(limits=quick(running_max=10))
        peers = ends.peers()
        gate = asyncio.Event()

        async def wait(_: Call) -> bytes:
            await gate.wait()
            return b"done"

        handler.on_call = wait
        calls = [asyncio.ensure_future(peers.call(address, call(9e9), Hops(), 5)) for _ in range(30)]
        await ends.until(lambda: sum(each.done() for each in calls) == 20)
        gate.set()
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(answer) for answer in answers] == [Answer] * 10 + [Overloaded] * 20

    between(story)


def test_bytes_beyond_the_bound_are_refused(between: Between, quick: Any) -> None:
    """Large requests of one peer are kept up to a bound; what is over is refused, not gathered, and not run."""

    async def story(ends: Any) -> None:
        address, handler, _ = await ends.serve(limits=quick(held_max=4 * MIB))
        peers = ends.peers()
        gate = asyncio.Event()

        async def wait(_: Call) -> bytes:
            await gate.wait()
            return b"done"

        handler.on_call = wait
        calls = [asyncio.ensure_future(peers.call(address, call(9e9, bytes(MIB)), Hops(), 8)) for _ in range(12)]
        await ends.until(lambda: any(each.done() for each in calls))
        gate.set()
        answers = await asyncio.gather(*calls, return_exceptions=True)
        ran = sum(isinstance(answer, Answer) for answer in answers)
        assert 1 <= ran == len(handler.calls) < 12
        assert all(isinstance(answer, Answer | Overloaded) for answer in answers)
        handler.on_call = None
        assert (await peers.call(address, call(9e9), Hops(), 5)).body == b"[1]"

    between(story)
