"""The placement store on etcd 3.4 and later: keys are etcd's keys, versions its revisions, grants its leases
(PROTOCOLS section 2).

A write is one transaction, or a part of one (`etcd_writes`); its else-branch reads the conditions' keys, so that a
conflict tells them as of the moment it was decided. All reads are linearizable. A scan reads at one revision; its token
carries it. Each event loop that uses the store has channels of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import partial
from typing import Any

import grpc  # type: ignore[import-untyped]
from aetcd.rpc import rpc_pb2 as pb  # type: ignore[import-untyped]

from domicile.placement.etcd_link import EtcdConfig, Link, Member, Metadata, Sleep
from domicile.placement.etcd_watch import follow
from domicile.placement.etcd_wire import (
    Fate,
    compare,
    fate,
    found,
    lease_of,
    operation,
    pack_token,
    ranges,
    record,
    span,
    told,
    unpack_token,
)
from domicile.placement.etcd_writes import Writes, commit
from domicile.placement.store import (
    SCAN_BYTES_MAX,
    SCAN_MAX,
    Committed,
    Condition,
    Conflict,
    Event,
    Grant,
    GrantGone,
    Mutation,
    Page,
    Record,
    Resync,
    ScanExpired,
    StoreUnavailable,
    check_keys,
    check_write,
)

READ_MAX = 128  # etcd's own bound on the operations of a transaction
SCAN_FIRST_ROWS = 32  # etcd bounds a range by rows only: how large they are is learned from the first few
CLOSE_SECS = 1.0


class EtcdStore:
    """A Store on an etcd cluster. Opening it sends nothing. `sleep` must work on every loop that uses the store."""

    def __init__(self, config: EtcdConfig, monotonic: Callable[[], float], sleep: Sleep) -> None:
        self._config = config
        self._monotonic = monotonic
        self._sleep = sleep
        self._ways: dict[asyncio.AbstractEventLoop, Writes] = {}
        self._lock = threading.Lock()
        self._closed = False

    async def read(self, keys: Sequence[str]) -> dict[str, Record]:
        check_keys(keys)
        wanted = list(dict.fromkeys(keys))
        if len(wanted) == 1:  # no transaction: it costs both ends more
            answer = await self._range(pb.RangeRequest(key=wanted[0].encode()))
            return {row.key: row for row in map(record, answer.kvs)}
        records: dict[str, Record] = {}
        revision = 0
        for at in range(0, len(wanted), READ_MAX):
            txn = pb.TxnRequest(success=ranges(wanted[at : at + READ_MAX], revision))
            try:
                answer = await self._read(partial(commit, txn))
            except ScanExpired as error:
                raise StoreUnavailable("the snapshot was compacted while it was read") from error
            revision = revision or answer.header.revision
            records.update((record.key, record) for record in found(answer))
        return records

    async def write(
        self, conditions: Sequence[Condition], mutations: Sequence[Mutation], grant: Grant | None = None
    ) -> Committed | Conflict:
        check_write(conditions, mutations)
        lease = 0 if grant is None else lease_of(grant)
        keys = list(dict.fromkeys(condition.key for condition in conditions))
        txn = pb.TxnRequest(
            compare=[compare(condition) for condition in conditions],
            success=[operation(mutation, lease) for mutation in mutations],
            failure=ranges(keys),
        )
        try:
            writes = self._writes()
            if lease:  # a renewal waits for nobody, and nobody for it
                answer, revision = await writes.alone(txn, once=bool(mutations))
            else:
                answer, revision = await writes.send(txn, keys, [mutation.key for mutation in mutations])
        except grpc.aio.AioRpcError as error:
            if fate(error) is Fate.NO_GRANT:
                raise GrantGone(f"the grant {grant} is gone") from error
            raise ValueError(told(error)) from error
        if answer.succeeded:
            return Committed(revision)
        current: dict[str, Record | None] = dict.fromkeys(keys)
        current.update((record.key, record) for record in found(answer))
        return Conflict(current)

    async def scan(self, prefix: str, limit: int = SCAN_MAX, token: str | None = None) -> Page:
        if not 1 <= limit <= SCAN_MAX:
            raise ValueError(f"a scan's limit is 1 to {SCAN_MAX}")
        first, end = span(prefix)
        revision, last = unpack_token(token, prefix) if token is not None else (0, "")
        page: list[Record] = []
        size, more = 0, True
        while more and len(page) < limit:
            start = (page[-1].key if page else last).encode() + b"\0" if page or last else first
            rows = _rows_for(page, size, limit)
            answer = await self._range(pb.RangeRequest(key=start, range_end=end, limit=rows, revision=revision))
            revision, more = revision or answer.header.revision, answer.more
            for row in map(record, answer.kvs):
                size += len(row.key.encode()) + len(row.value)
                if page and size > SCAN_BYTES_MAX:
                    return Page(tuple(page), revision, pack_token(revision, page[-1].key))
                page.append(row)
        return Page(tuple(page), revision, pack_token(revision, page[-1].key) if more else None)

    async def watch(self, prefix: str, after: int) -> AsyncGenerator[Event | Resync, None]:
        if self._closed:
            return
        async with contextlib.aclosing(follow(self._link(), prefix, after)) as changes:
            async for change in changes:
                yield change

    async def grant(self, ttl_secs: float) -> Grant:
        # etcd counts whole seconds. One whose answer was lost, and was asked for again, runs out by itself.
        wanted = pb.LeaseGrantRequest(TTL=math.ceil(ttl_secs))
        answer = await self._link().ask(
            lambda m, metadata, secs: m.lease.LeaseGrant(wanted, metadata=metadata, timeout=secs)
        )
        return Grant(str(answer.ID))

    async def keep(self, grant: Grant) -> None:
        lease = lease_of(grant)

        async def send(member: Member, metadata: Metadata, secs: float) -> int:
            call = member.lease.LeaseKeepAlive(metadata=metadata, timeout=secs)
            try:
                await call.write(pb.LeaseKeepAliveRequest(ID=lease))
                answer = await call.read()
                return 0 if answer is grpc.aio.EOF else answer.TTL
            finally:
                call.cancel()

        if await self._link().ask(send) <= 0:
            raise GrantGone(f"the grant {grant} is gone")

    async def revoke(self, grant: Grant) -> None:
        try:
            gone = pb.LeaseRevokeRequest(ID=lease_of(grant))
            await self._link().ask(lambda m, metadata, secs: m.lease.LeaseRevoke(gone, metadata=metadata, timeout=secs))
        except GrantGone:
            return
        except grpc.aio.AioRpcError as error:
            if fate(error) is not Fate.NO_GRANT:
                raise StoreUnavailable(told(error)) from error

    async def release(self) -> None:
        """Its channels are closed."""
        with self._lock:
            writes = self._ways.pop(asyncio.get_running_loop(), None)
        if writes is not None:
            await writes.link.close()

    async def close(self) -> None:
        """Watches end, on every loop; what waits, and whatever comes later, raises StoreUnavailable."""
        with self._lock:
            self._closed = True
            ways, self._ways = self._ways, {}
        here = asyncio.get_running_loop()
        for loop, link in ((loop, writes.link) for loop, writes in ways.items()):
            link.closed = True
            if loop is here:
                await link.close()
            elif loop.is_running():
                closing = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(link.close(), loop))
                # A loop that ends at this moment takes its channels along and never tells.
                await asyncio.wait((closing,), timeout=CLOSE_SECS)

    async def _range(self, request: Any) -> Any:
        return await self._read(lambda m, metadata, secs: m.kv.Range(request, metadata=metadata, timeout=secs))

    async def _read(self, send: Callable[[Member, Metadata, float], Any]) -> Any:
        try:
            return await self._link().ask(send)
        except grpc.aio.AioRpcError as error:
            raise ScanExpired(told(error)) from error

    def _link(self) -> Link:
        return self._writes().link

    def _writes(self) -> Writes:
        loop = asyncio.get_running_loop()
        writes = self._ways.get(loop)
        if writes is None:
            with self._lock:
                if self._closed:
                    raise StoreUnavailable("the placement store is closed")
                # A loop that has ended needs its channels no more.
                self._ways = {other: kept for other, kept in self._ways.items() if not other.is_closed()}
                writes = self._ways[loop] = Writes(Link(self._config, self._monotonic, self._sleep))
        return writes


def _rows_for(page: Sequence[Record], size: int, limit: int) -> int:
    """How many rows to ask for next, so that what comes is about what still fits."""
    if not page:
        return min(limit, SCAN_FIRST_ROWS)
    fit = (SCAN_BYTES_MAX - size) * len(page) // max(size, 1)
    return min(limit - len(page), max(fit, 1))
