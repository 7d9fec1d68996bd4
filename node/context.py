"""What an object sees of its node: the `Context` behind `self.sql`, `self.set_alarm`, `self.object(…)`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from domicile.context import Alarm
from domicile.errors import CallCycle, ChainTooDeep, DomicileError, MethodFailed
from domicile.node.sqlite import alarm_table
from domicile.node.values import Answer, Call
from domicile.placement.records import ObjectKey

if TYPE_CHECKING:
    from domicile.node.host import Host
    from domicile.node.sqlite.database import Database
    from domicile.node.sqlite.kv import KvApi
    from domicile.node.sqlite.sql import SqlApi
    from domicile.node.sqlite.transaction import Transactions
    from domicile.node.workers import Job


class ObjectContext:
    """One residency's context. What belongs to the running call is set by `begin`."""

    def __init__(
        self, host: Host, key: ObjectKey, db: Database, sql: SqlApi, kv: KvApi, tx: Transactions, log: Any
    ) -> None:
        self._host = host
        self._key = key
        self._db = db
        self._tx = tx
        self.sql = sql
        self.kv = kv
        self.log = log
        self.scope, self.cls, self.name = key.scope, key.cls, key.name
        self.alarms_touched = False
        self.call_out: Callable[[Call], Awaitable[Answer]] | None = None
        self._now = host.clock.wall_ms()
        self._call: Call | None = None
        self._job: Job[Any] | None = None

    def begin(self, call: Call, now_ms: int, job: Job[Any] | None) -> None:
        """A call begins: `job` is the one that runs it in a thread, None for a coroutine on the loop."""
        self._call, self._now, self._job = call, now_ms, job

    def now_ms(self) -> int:
        return self._now

    def set_alarm(self, name: str, due_ms: int, payload_json: bytes | None, cron: str | None) -> None:
        alarm_table.set_alarm(self.sql, name, due_ms, payload_json, cron)
        self.alarms_touched = True

    def clear_alarm(self, name: str) -> bool:
        cleared = alarm_table.clear_alarm(self.sql, name)
        self.alarms_touched = self.alarms_touched or cleared
        return cleared

    def alarms(self) -> list[Alarm]:
        return alarm_table.list_alarms(self.sql)

    def invoke(self, cls: str, name: str, method: str, body: bytes) -> bytes | Awaitable[bytes]:
        """Call another object of the same scope: blocks in a `def` method, gives an awaitable in an `async def` one.

        The callee's retryable refusals keep their type, so that an uncaught one is this call's answer too; its other
        refusals are this method's failure.
        """
        self._tx.turns.require_alone()
        assert self._call is not None, "a context is used inside a call"
        caller = self._call
        key = ObjectKey.checked(self.scope, cls, name)
        call = Call(key, method, body, caller.deadline, chain=(*caller.chain, self._key), trace=caller.trace)
        if self._job is None:
            return self._invoke(call)
        self._job.detach()
        return asyncio.run_coroutine_threadsafe(self._invoke(call), self._host.loop).result()

    async def _invoke(self, call: Call) -> bytes:
        assert self.call_out is not None
        turns = self._tx.turns
        turns.outside += 1
        try:
            return (await self.call_out(call)).body
        except DomicileError as error:
            turns.outside -= error.outcome == "not_run"
            raise


def as_failure(error: DomicileError) -> DomicileError:
    """What an uncaught error of a callee is to the caller's caller."""
    if error.retryable or error.outcome != "not_run":
        return error
    if isinstance(error, CallCycle | ChainTooDeep):
        error.outcome = "ran"  # the chain is at fault, and all of it is rolled back
        return error
    return MethodFailed(f"{type(error).__name__}: {error.detail}", type=type(error).__name__, message=error.detail)
