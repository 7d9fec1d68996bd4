"""Requests and their replies, at both ends: calls, fences, chunks and what is asked by name.

An error of `domicile.errors` travels as its problem document. Calls and what is asked by name raise it again as the
same class, with detail, extra, outcome and Retry-After; for a fence or a fetch it is as good as no answer: PeerGone.
BlobMissing is raised again as itself. What is in neither tree is a bug of the answering node, logged there under an id.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from domicile.errors import DomicileError, NotServing
from domicile.node.errors import BlobMissing, BlobUnavailable, PeerGone
from domicile.node.problems import Problems, parse
from domicile.node.values import Answer, Call
from domicile.node.wire.messages import (
    Dropped,
    Fence,
    FenceAnswer,
    FetchChunk,
    Fetched,
    FetchLog,
    ForwardedCall,
    Hops,
    NotThere,
    Problem,
    Reply,
    Request,
    Returned,
    weight,
)
from domicile.placement.records import ObjectKey


class Service(Protocol):
    """What a node does for another. Raises errors of `domicile.errors`; fetches also BlobMissing."""

    async def fence(self, fence: Fence) -> FenceAnswer: ...

    async def fetch_log(self, fetch: FetchLog) -> bytes: ...

    async def fetch_chunk(self, fetch: FetchChunk) -> bytes: ...

    async def dropped(self, dropped: Dropped) -> None: ...

    async def call(self, call: Call, hops: Hops) -> Answer:
        """`call.deadline` is on this node's clock."""
        ...

    async def ask(self, method: str, body: bytes) -> bytes: ...


async def perform(service: Service, request: Request, now: float) -> Reply:
    """The reply to a request that arrived at `now`, on `Clock.monotonic`. Raises what the service raises."""
    if isinstance(request, ForwardedCall):
        answer = await service.call(received(request, now), request.hops)
        return Returned(answer.body, answer.epoch, answer.served_by, answer.node)
    if isinstance(request, Fence):
        return await service.fence(request)
    if isinstance(request, FetchLog):
        return Fetched(await service.fetch_log(request))
    if isinstance(request, FetchChunk):
        return Fetched(await service.fetch_chunk(request))
    if isinstance(request, Dropped):
        await service.dropped(request)
        return Fetched(b"")
    return Fetched(await service.ask(request.method, request.body))


def forwarded(call: Call, hops: Hops, now: float) -> ForwardedCall:
    """The call as it travels."""
    return ForwardedCall(
        key=_parts(call.key),
        method=call.method,
        body=call.body,
        left_secs=call.deadline - now,
        hops=hops,
        idempotency_key=call.idempotency_key,
        if_match=call.if_match,
        chain=tuple(map(_parts, call.chain)),
        trace=call.trace,
    )


def received(request: ForwardedCall, now: float) -> Call:
    """The call as it arrived. Raises BadName."""
    return Call(
        key=ObjectKey.checked(*request.key),
        method=request.method,
        body=request.body,
        deadline=now + request.left_secs,
        idempotency_key=request.idempotency_key,
        if_match=request.if_match,
        chain=tuple(ObjectKey(*parts) for parts in request.chain),
        trace=request.trace,
    )


def failed(error: BaseException, problems: Problems) -> Reply:
    """The reply that carries an error."""
    if isinstance(error, BlobMissing):
        return NotThere(str(error))
    if isinstance(error, BlobUnavailable):
        error = NotServing(str(error))
    return Problem(msgspec.json.encode(problems.document(error), enc_hook=str))


def bounded(reply: Reply, message_max: int, problems: Problems) -> Reply:
    """The reply, or the problem that it is too large to travel. Not retryable: it would be as large again."""
    size = weight(reply)
    if size <= message_max:
        return reply
    return failed(DomicileError(f"the answer has {size} bytes; between nodes at most {message_max} travel"), problems)


def outcome(reply: Reply) -> Reply:
    """The reply, unless it carries an error: that is raised (an error of `domicile.errors`, BlobMissing)."""
    if isinstance(reply, Problem):
        raise parse(reply.document)
    if isinstance(reply, NotThere):
        raise BlobMissing(reply.detail)
    return reply


def usable(reply: Reply) -> Reply:
    """The reply, unless it carries an error. Raises BlobMissing, and PeerGone for all other errors."""
    if isinstance(reply, Problem):
        raise PeerGone(f"it answered: {parse(reply.document).detail}", sent=True)
    return outcome(reply)


def strange(reply: Reply) -> PeerGone:
    """For a reply of a kind that does not answer the request."""
    return PeerGone(f"it answered with {type(reply).__name__}", sent=True)


def _parts(key: ObjectKey) -> tuple[str, str, str]:
    return key.scope, key.cls, key.name
