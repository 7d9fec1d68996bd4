"""Calls and requests to other nodes: values and errors carried whole."""

from __future__ import annotations

from typing import Any

import pytest
from streams import EPOCH, GENERATION, LIFE, MIB, Between, MakeAppend, call

from domicile.errors import (
    BY_CODE,
    BadName,
    DomicileError,
    MethodFailed,
    Moving,
    NotHome,
    NotServing,
    OutcomeUnknown,
)
from domicile.node.errors import BlobMissing, BlobUnavailable, PeerGone
from domicile.node.values import Answer, Call
from domicile.node.wire.messages import Dropped, Fence, FenceAnswer, FetchChunk, FetchLog, Hops
from domicile.placement.records import ObjectKey


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


def test_known_errors_survive_by_name() -> None:
    """The errors routing branches over are in the table by which they are raised again."""
    assert {Moving, NotHome, NotServing, OutcomeUnknown, MethodFailed} <= set(BY_CODE.values())
