"""Watching etcd without a gap: over lost streams, changes of leader and compaction (PROTOCOLS section 2).

A position is a revision up to which everything was given. Every stream begins right after it, so it does not matter why
the last one ended. Only what was given moves it, and etcd's word that there was nothing to give (a progress notice,
sent for a quiet prefix every few minutes, so that a later resumption does not find it compacted).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any

import grpc  # type: ignore[import-untyped]
from aetcd.rpc import rpc_pb2 as pb  # type: ignore[import-untyped]

from domicile.placement.etcd_link import ATTEMPT_SECS, REQUEST_SECS, Link, Member, Metadata, NotDone
from domicile.placement.etcd_wire import event, span, told
from domicile.placement.store import Event, Resync, StoreUnavailable

PAUSE_SECS = 0.05
PAUSE_MAX_SECS = 1.0


async def revision(link: Link, prefix: str) -> int:
    """The store's present revision, asked for by a read that whoever may watch `prefix` may make.

    Raises StoreUnavailable.
    """
    first, _ = span(prefix)
    nothing = pb.RangeRequest(key=first, count_only=True)
    answer = await link.ask(lambda m, metadata, secs: m.kv.Range(nothing, metadata=metadata, timeout=secs))
    return int(answer.header.revision)


async def follow(link: Link, prefix: str, after: int) -> AsyncGenerator[Event | Resync, None]:
    """Every change after `after`; ends when the link is closed."""
    position, pause = after, PAUSE_SECS
    while not link.closed:
        try:
            # A store put back from a backup is behind; nothing of what comes next would be after the position.
            present = await revision(link, prefix)
            if present < position:
                position = present
                yield Resync(position)
            async with contextlib.aclosing(_stream(link, prefix, position)) as responses:
                async for response in responses:
                    pause = PAUSE_SECS
                    if response.canceled:
                        position = await revision(link, prefix)
                        yield Resync(position)
                        break
                    for found in response.events:
                        yield event(found)
                    # A revision is never split over two responses.
                    position = response.events[-1].kv.mod_revision if response.events else response.header.revision
        except (StoreUnavailable, NotDone):
            if not link.closed:
                await link.sleep(pause)
            pause = min(2 * pause, PAUSE_MAX_SECS)


async def _stream(link: Link, prefix: str, position: int) -> AsyncGenerator[Any, None]:
    """What one stream gives after it was created; a cancellation is a compaction. Raises StoreUnavailable, NotDone."""
    member, metadata = await link.reach(REQUEST_SECS)
    call = member.watch(metadata=metadata)
    try:
        await call.write(_request(prefix, position))
        async with asyncio.timeout(ATTEMPT_SECS):
            response = await call.read()
        while response is not grpc.aio.EOF:
            if response.canceled and not response.compact_revision:
                raise _refused(link, member, metadata, response.cancel_reason)
            if not response.created:
                yield response
            response = await call.read()
        raise _refused(link, member, metadata, "the watch was closed")
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
        why = told(error) if isinstance(error, grpc.aio.AioRpcError) else "the watch has ended"
        raise _refused(link, member, metadata, why) from error
    except TimeoutError as error:
        raise _refused(link, member, metadata, "etcd did not begin to watch in time") from error
    except asyncio.CancelledError:
        if link.ended_it():
            raise StoreUnavailable("the placement store was closed") from None
        raise
    finally:
        call.cancel()


def _refused(link: Link, member: Member, metadata: Metadata, why: str) -> NotDone:
    """Next time ask another member, with another token: a refused watch does not say which of the two it was."""
    link.leave(member)
    link.forget_token(metadata)
    return NotDone(why)


def _request(prefix: str, position: int) -> Any:
    first, end = span(prefix)
    watch = pb.WatchCreateRequest(key=first, range_end=end, start_revision=position + 1, progress_notify=True)
    return pb.WatchRequest(create_request=watch)
