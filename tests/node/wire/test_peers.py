"""Calls and requests to other nodes: values and errors carried whole, deadlines, what can have been sent, sizes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from domicile.errors import (
    BY_CODE,
    BadName,
    BodyTooLarge,
    DomicileError,
    MethodFailed,
    Moving,
    NotHome,
    NotServing,
    OutcomeUnknown,
    Overloaded,
)
from domicile.node.errors import BlobMissing, BlobUnavailable, PeerGone
from domicile.node.values import Answer, Call
from domicile.node.wire.messages import Append, Dropped, Fence, FenceAnswer, FetchChunk, FetchLog, Hops
from domicile.placement.records import Epoch, Generation, ObjectKey

Between = Callable[[Callable[[Any], Awaitable[Any]]], Any]
MakeAppend = Callable[..., Append]
KEY = ObjectKey("shop", "Cart", "müller/1")
LIFE = Epoch(0, 3)
EPOCH = Epoch(1, 7)
GENERATION = Generation(EPOCH, 0)
MIB = 1 << 20


def call(deadline: float, body: bytes = b"[1]", **more: Any) -> Call:
    return Call(KEY, "add", body, deadline, **more)


def test_a_forwarded_call_arrives_as_it_was(between: Between) -> None:
    """Key, method, arguments, hops, chain, key, condition and trace travel; the deadline by what is left of it."""

    async def story(ends: Any) -> None:
        address, handler, _ = await ends.serve()
        now = ends.wiring("x").clock.monotonic()
        upstream = (ObjectKey("shop", "Order", "1"), ObjectKey("s.jobs", "Cron", "nightly"))
        sent = call(now + 5, idempotency_key="k", if_match=LIFE, chain=upstream, trace="00-ab")
        answer = await ends.peers().call(address, sent, Hops(0, 1), 5)
        assert answer == Answer(b"[1]", EPOCH, "replica", "c")
        ((arrived, hops),) = handler.calls
        assert hops == Hops(0, 1)
        assert now + 4 < arrived.deadline <= now + 5.1
        arrived.deadline = sent.deadline
        assert arrived == sent

    between(story)


def raised(error: BaseException) -> tuple[Any, ...]:
    assert isinstance(error, DomicileError)
    return type(error), error.detail, error.extra, error.outcome, error.retryable, error.retry_after


def unlike_its_class() -> NotServing:
    error = NotServing("it ran, and may not leave")
    error.outcome, error.retry_after = "ran", 0.25
    return error


@pytest.mark.parametrize(
    "error",
    [*(each("because", hint="x", depth=[1, {"a": None}]) for each in BY_CODE.values()), unlike_its_class()],
    ids=lambda error: f"{error.code} {error.outcome}",
)
def test_errors_are_raised_again_as_they_were(between: Between, error: DomicileError) -> None:
    """Every error of the tree keeps class, detail, extra, outcome and Retry-After across a hop."""

    async def story(ends: Any) -> None:
        address, handler, _ = await ends.serve()

        async def fail(_: Call) -> bytes:
            raise error

        handler.on_call = fail
        with pytest.raises(DomicileError) as caught:
            await ends.peers().call(address, call(9e9), Hops(), 5)
        assert raised(caught.value) == raised(error)

    between(story)


def test_a_refused_fence_or_fetch_is_no_answer(between: Between) -> None:
    """What only wants an answer or none gets PeerGone with the reason of the refusal; asked by name it is raised."""

    async def story(ends: Any) -> None:
        address, handler, _ = await ends.serve()
        peers = ends.peers()

        async def refuse(*_: Any) -> Any:
            raise NotServing("this node keeps no copies")

        async def unavailable(*_: Any) -> Any:
            raise BlobUnavailable("the store is away")

        handler.fence = handler.ask = handler.dropped = refuse
        handler.fetch_log = handler.fetch_chunk = unavailable
        with pytest.raises(PeerGone, match="keeps no copies"):
            await peers.fence(address, Fence(b"o" * 32, LIFE, EPOCH), 5)
        with pytest.raises(PeerGone, match="keeps no copies"):
            await peers.drop(address, Dropped(b"o" * 32, LIFE))
        with pytest.raises(PeerGone, match="the store is away"):
            await peers.fetch_log(address, FetchLog(b"o" * 32, LIFE, GENERATION, 0, 1))
        with pytest.raises(PeerGone, match="the store is away"):
            await peers.fetch_chunk(address, FetchChunk(b"o" * 32, LIFE, GENERATION, 3, b"h" * 32))
        with pytest.raises(NotServing, match="keeps no copies"):
            await peers.ask(address, "describe", b"", 5)
        assert "http.internal_error" not in [event for event, _ in ends.log.told]

    between(story)


def test_a_bug_of_the_other_node_is_internal_and_logged_there(between: Between) -> None:
    """What is in no tree of errors is told as `internal`, without details, under an id that the other node logged."""

    async def story(ends: Any) -> None:
        address, handler, _ = await ends.serve()

        async def fail(_: Call) -> bytes:
            raise ZeroDivisionError("secret detail")

        handler.on_call = fail
        with pytest.raises(DomicileError) as caught:
            await ends.peers().call(address, call(9e9), Hops(), 5)
        assert (caught.value.code, caught.value.outcome) == ("internal", "unknown")
        assert "secret" not in str(caught.value)
        assert caught.value.extra["error_id"] in [fields.get("error_id") for _, fields in ends.log.told]

    between(story)


def test_a_bad_name_is_refused_by_the_receiver(between: Between) -> None:
    """A key that no ingress would have let in does not get in by a hop."""

    async def story(ends: Any) -> None:
        address, handler, _ = await ends.serve()
        bad = Call(ObjectKey("shop", "Cart", "a\0b"), "add", b"", 9e9)
        with pytest.raises(BadName):
            await ends.peers().call(address, bad, Hops(), 5)
        assert handler.calls == []

    between(story)


def test_fences_logs_chunks_and_questions_are_answered(between: Between) -> None:
    """Each request reaches its own method and comes back with its own answer; a missing chunk is BlobMissing."""

    async def story(ends: Any) -> None:
        address, _, _ = await ends.serve()
        peers = ends.peers()
        assert await peers.fence(address, Fence(b"o" * 32, LIFE, EPOCH), 5) == FenceAnswer("copy", EPOCH, None)
        log = await peers.fetch_log(address, FetchLog(b"o" * 32, LIFE, GENERATION, 7, 5 * MIB))
        assert log == bytes(i % 251 for i in range(7, 5 * MIB))
        with pytest.raises(BlobMissing, match="no chunk 3"):
            await peers.fetch_chunk(address, FetchChunk(b"o" * 32, LIFE, GENERATION, 3, b"h" * 32))
        assert await peers.ask(address, "describe", b"x", 5) == b"describe:x"
        assert await peers.drop(address, Dropped(b"o" * 32, LIFE)) is None

    between(story)


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


def test_an_append_is_for_one_copy(between: Between, make_append: MakeAppend) -> None:
    """A node that came back under the same address with another copy is not told what was meant for the old one."""

    async def story(ends: Any) -> None:
        address, _, server = await ends.serve("b")
        peers = ends.peers()
        assert (await peers.say(address, make_append(0), "copy-b")).length == 100
        await server.stop()
        _, second, _ = await ends.serve("wiped", address)
        await ends.until(lambda: ends.log.why("peer.lost"))
        for _ in range(2):  # before and after it is known who is there
            with pytest.raises(PeerGone, match="copy copy-b is gone") as gone:
                await peers.say(address, make_append(1), "copy-b")
            assert not gone.value.sent
        assert second.heard == []
        assert (await peers.say(address, make_append(2), "copy-wiped")).length == 102

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


def test_known_errors_survive_by_name() -> None:
    """The errors routing branches over are in the table by which they are raised again."""
    assert {Moving, NotHome, NotServing, OutcomeUnknown, MethodFailed} <= set(BY_CODE.values())
