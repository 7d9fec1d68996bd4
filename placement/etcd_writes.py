"""One loop's writes: those that wait for others' answers go together, as one transaction of transactions.

At first every write goes by itself. While some are under way, what comes is gathered, and goes as one transaction whose
operations are the writes, each with conditions and an else-branch of its own; a request costs both ends more than all
that a write does. etcd decides all conditions by what stands before the first of them is done, and gives all the same
revision: so only writes go together of which **none changes what another is conditioned on or changes**. Then each
outcome is one that it could have had by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc  # type: ignore[import-untyped]
from aetcd.rpc import rpc_pb2 as pb  # type: ignore[import-untyped]

from domicile.placement.etcd_link import Link, Member, Metadata
from domicile.placement.store import StoreUnavailable

ALONE_MAX = 2  # under way before others are gathered
GATHER_SECS = 0.05  # nobody waits longer for those before
TOGETHER_MAX = 64
BYTES_MAX = 512 << 10
OVERHEAD_BYTES = 512


@dataclass(slots=True, eq=False)
class Waiting:
    """A write that is gathered. `asks`: keys it is conditioned on; `changes`: those it puts or deletes."""

    txn: Any
    asks: frozenset[str]
    changes: frozenset[str]
    size: int
    done: asyncio.Future[Any]


class Writes:
    """Sends transactions over `link`. `send` raises as `Link.ask`, and so do futures."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self._loop = asyncio.get_running_loop()
        self._under_way = 0
        self._waiting: list[Waiting] = []
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def alone(self, txn: Any, *, once: bool) -> tuple[Any, int]:
        """The transaction's response, and the revision it was decided at."""
        self._under_way += 1
        try:
            answer = await self.link.ask(partial(commit, txn), once=once)
            return answer, answer.header.revision
        finally:
            self._under_way -= 1
            self._next()

    async def send(self, txn: Any, asks: Iterable[str], changes: Iterable[str]) -> tuple[Any, int]:
        """The same, of a write: with others if there are."""
        changed = frozenset(changes)
        size = txn.ByteSize() + OVERHEAD_BYTES
        if (not self._waiting and self._under_way < ALONE_MAX) or size > BYTES_MAX // 2:
            return await self.alone(txn, once=bool(changed))
        waiting = Waiting(txn, frozenset(asks), changed, size, self._loop.create_future())
        self._waiting.append(waiting)
        self._next()
        result: tuple[Any, int] = await waiting.done
        return result

    def _next(self) -> None:
        """Send what waits, if there is a place; in any case soon."""
        if not self._waiting:
            return
        if self._under_way < ALONE_MAX:
            self._begin()
        elif self._timer is None:
            self._timer = self._loop.call_later(GATHER_SECS, self._in_any_case)

    def _in_any_case(self) -> None:
        self._timer = None
        if self._waiting:
            self._begin()
            self._next()

    def _begin(self) -> None:
        batch, self._waiting = fitting([one for one in self._waiting if not one.done.done()])
        if not batch:
            return
        self._under_way += 1
        task = self._loop.create_task(self._together(batch))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        for one in batch:
            one.done.add_done_callback(lambda _: self._give_up(task, batch))

    @staticmethod
    def _give_up(task: asyncio.Task[None], batch: Sequence[Waiting]) -> None:
        """All callers have gone: the member may be to blame, which only the request can tell the link."""
        if all(one.done.cancelled() for one in batch):
            task.cancel()

    async def _together(self, batch: Sequence[Waiting]) -> None:
        try:
            await self._ask(batch)
        except grpc.aio.AioRpcError as error:
            if len(batch) > 1:  # one of them was refused, and with it all: nothing was done
                await asyncio.gather(*map(self._by_itself, batch))
            else:
                refusal = error
                _fail(batch, lambda _: refusal)
        except StoreUnavailable as error:
            told, maybe = str(error), error.maybe
            _fail(batch, lambda one: StoreUnavailable(told, maybe=maybe and bool(one.changes)))
        except asyncio.CancelledError:
            _fail(batch, lambda one: StoreUnavailable("the write was given up", maybe=bool(one.changes)))
            raise
        finally:
            self._under_way -= 1
            self._next()

    async def _by_itself(self, one: Waiting) -> None:
        self._under_way += 1
        await self._together([one])

    async def _ask(self, batch: Sequence[Waiting]) -> None:
        once = any(one.changes for one in batch)
        if len(batch) == 1:
            answers = [await self.link.ask(partial(commit, batch[0].txn), once=once)]
            revision = answers[0].header.revision
        else:
            txn = pb.TxnRequest(success=[pb.RequestOp(request_txn=one.txn) for one in batch])
            answer = await self.link.ask(partial(commit, txn), once=once)
            answers, revision = [op.response_txn for op in answer.responses], answer.header.revision
        for one, its in zip(batch, answers, strict=True):
            if not one.done.done():
                one.done.set_result((its, revision))


def fitting(waiting: Sequence[Waiting]) -> tuple[list[Waiting], list[Waiting]]:
    """Which go together now, the first among them, and which have to wait."""
    batch: list[Waiting] = []
    rest: list[Waiting] = []
    asked: set[str] = set()
    changed: set[str] = set()
    size = 0
    for one in waiting:
        apart = one.changes.isdisjoint(asked) and one.changes.isdisjoint(changed) and one.asks.isdisjoint(changed)
        if len(batch) == TOGETHER_MAX or (batch and (size + one.size > BYTES_MAX or not apart)):
            rest.append(one)
            continue
        batch.append(one)
        asked |= one.asks
        changed |= one.changes
        size += one.size
    return batch, rest


async def commit(txn: Any, member: Member, metadata: Metadata, secs: float) -> Any:
    """One transaction at one member."""
    return await member.kv.Txn(txn, metadata=metadata, timeout=secs)


def _fail(batch: Sequence[Waiting], error: Callable[[Waiting], Exception]) -> None:
    for one in batch:
        if not one.done.done():
            one.done.set_exception(error(one))
