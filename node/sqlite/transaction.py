"""One transaction around one call, or around several that were waiting together (PROTOCOLS section 6).

A call is begun, run, and committed or rolled back as a whole: rows, alarms and idempotency record. Calls that share a
transaction have a savepoint each; if the transaction is lost, or cannot be committed, they run again one by one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from copy import copy
from dataclasses import dataclass
from typing import TypeVar

from blake3 import blake3

from domicile.errors import DomicileError
from domicile.node.clock import Clock
from domicile.node.sqlite import idempotency
from domicile.node.sqlite.database import Database
from domicile.node.sqlite.sql import CallInterrupted as CallInterrupted
from domicile.node.sqlite.sql import SqlApi
from domicile.node.sqlite.turns import NeedsAlone as NeedsAlone
from domicile.node.sqlite.turns import Turns

T = TypeVar("T")

_OWN_SAVEPOINT = 0  # those of `self.sql.tx()` are numbered from 1


@dataclass(frozen=True, slots=True)
class Limits:
    """`idempotency_secs`: OBJECT_IDEMPOTENCY_SECS."""

    idempotency_secs: int = 86_400


@dataclass(slots=True, kw_only=True)
class _Request:
    """What of a call its idempotency record and its rights need. `body`: its arguments."""

    method: str
    idempotency_key: str | None = None
    body: bytes = b""
    read_only: bool = False


@dataclass(slots=True, kw_only=True)
class Work(_Request):
    """A call of a `def` method. `run` decodes, runs the method, encodes."""

    run: Callable[[], bytes]


@dataclass(slots=True, kw_only=True)
class AsyncWork(_Request):
    """A call of an `async def` method."""

    run: Callable[[], Awaitable[bytes]]


@dataclass(slots=True)
class Done:
    """How a call ended: an answer or an error. `wrote`: its transaction committed something that has to be shipped.

    `outside`: it called other objects, which may have run; then its error never says that nothing did.
    """

    answer: bytes | None = None
    error: DomicileError | None = None
    wrote: bool = False
    replayed: bool = False
    outside: bool = False


@dataclass(slots=True)
class _Shared:
    """What became of calls that shared a transaction.

    `done` is settled: all of them, or those before one that needs to be alone. `lost` is how the call `by` lost the
    transaction for everybody; `uncommitted`: it could not be committed. Then `done` is empty.
    """

    done: list[Done]
    lost: Done | None = None
    by: Work | None = None
    uncommitted: bool = False


class Transactions:
    """Runs the calls of one residency, one transaction at a time.

    `turns` is the running user code: who watches its time expires it there, what reaches outside asks it to be alone.
    `prologue_done` becomes True with the commit of a transaction that held the prologue; from then on it is not run
    again. `before_commit` and `after_commit` run around each COMMIT.
    """

    def __init__(
        self,
        database: Database,
        sql: SqlApi,
        clock: Clock,
        limits: Limits,
        *,
        before_commit: Callable[[], None] | None = None,
        after_commit: Callable[[], None] | None = None,
    ) -> None:
        self._database = database
        self._sql = sql
        self._clock = clock
        self._limits = limits
        self._before_commit = before_commit
        self._after_commit = after_commit
        self.turns = Turns(database, sql)
        self.prologue_done = False

    def run_group(self, works: Sequence[Work], prologue: Callable[[], None] | None = None) -> list[Done]:
        """Run calls in their order in this thread, sharing one transaction where that works; one Done each.

        The prologue (migrations, `init`) runs once at the head of the first transaction and lasts if a call of that
        transaction succeeds. Raises Ended when the connection was doomed, and whatever a hook raises: then nothing
        of the group was committed beyond what `Database.length` shows.
        """
        try:
            return self._run_all(works, prologue)
        except BaseException:
            self._database.rollback()
            raise

    async def run_alone(self, work: AsyncWork, prologue: Callable[[], None] | None = None) -> Done:
        """Run one `async def` call; its transaction stays open over its awaits. Raises as `run_group` does.

        A cancellation from outside rolls back and goes on; one that `expire` asked for is a CallTimeout.
        """
        self._database.begin()
        try:
            done = self._run_prologue(prologue) or self._replayed(work)
            if done is None:
                answer, error = await self.turns.call_async(work.run, read_only=work.read_only)
                done = self._recorded(work, answer, error)
            return self._finish_one(done, prologue)
        except BaseException:
            self._database.rollback()
            raise

    def own(self, change: Callable[[], T]) -> T:
        """Run changes of the runtime's own (`Database.write`) in a transaction, and give their result.

        Raises what `change` raises, then nothing lasts; Ended; DatabaseFull.
        """
        self._database.begin()
        try:
            result = change()
            self._commit(None)
        except BaseException:
            self._database.rollback()
            raise
        return result

    # Groups.

    def _run_all(self, works: Sequence[Work], prologue: Callable[[], None] | None) -> list[Done]:
        done: list[Done] = []
        share = True
        while len(done) < len(works):
            rest = works[len(done) :]
            if not share or len(rest) == 1:
                done.append(self._run_one(rest[0], prologue))
                continue
            shared = self._run_shared(rest, prologue)
            done += shared.done
            if shared.lost is not None:
                done += [shared.lost if work is shared.by else self._run_one(work, prologue) for work in rest]
            elif shared.uncommitted:
                share = False
            elif len(done) < len(works):
                done.append(self._run_one(works[len(done)], prologue))
        return done

    def _run_shared(self, works: Sequence[Work], prologue: Callable[[], None] | None) -> _Shared:
        before = self._database.length
        self._database.begin()
        if (failed := self._run_prologue(prologue)) is not None:
            self._database.rollback()
            return _Shared([Done(error=failed.error) for _ in works])
        done: list[Done] = []
        for work in works:
            one = self._run_within(work)
            if one is None:
                break
            if not self._database.in_transaction:
                return _Shared([], lost=one, by=work)
            done.append(one)
        if all(one.error is not None for one in done):
            self._database.rollback()
            return _Shared(done)
        try:
            self._commit(prologue)
        except DomicileError:
            self._database.rollback()
            return _Shared([], uncommitted=True)
        moved = self._database.length != before
        for one in done:
            one.wrote = one.wrote and moved
        return _Shared(done)

    def _run_within(self, work: Work) -> Done | None:
        """Run a call in a savepoint of its own. None, and undone, when it needs to be alone."""
        if (replayed := self._replayed(work)) is not None:
            return replayed
        self._database.savepoint(_OWN_SAVEPOINT)
        self.turns.needs_alone, self.turns.sharing = False, True
        answer, error = self.turns.call(work.run, read_only=work.read_only)
        self.turns.sharing = False
        alone = self.turns.needs_alone
        done = Done(error=error) if alone else self._recorded(work, answer, error)
        if not self._database.in_transaction:
            return done
        if done.error is not None or alone:
            self._database.undo(_OWN_SAVEPOINT)
        else:
            self._database.release(_OWN_SAVEPOINT)
        return None if alone else done

    def _run_one(self, work: Work, prologue: Callable[[], None] | None) -> Done:
        self._database.begin()
        done = self._run_prologue(prologue) or self._replayed(work)
        if done is None:
            answer, error = self.turns.call(work.run, read_only=work.read_only)
            done = self._recorded(work, answer, error)
        return self._finish_one(done, prologue)

    def _finish_one(self, done: Done, prologue: Callable[[], None] | None) -> Done:
        before = self._database.length
        if done.error is None:
            try:
                self._commit(prologue)
            except DomicileError as error:
                done = Done(error=error, outside=done.outside)
        if done.error is not None:
            self._database.rollback()
        done.wrote = self._database.length != before
        return done

    def _commit(self, prologue: Callable[[], None] | None) -> None:
        if self._before_commit is not None:
            self._before_commit()
        self._database.commit()
        if prologue is not None:
            self.prologue_done = True
        if self._after_commit is not None:
            self._after_commit()

    # Around one call.

    def _run_prologue(self, prologue: Callable[[], None] | None) -> Done | None:
        """Give how it failed, or None."""
        if prologue is None or self.prologue_done:
            return None
        _, error = self.turns.call(prologue, read_only=False)
        return Done(error=error) if error is not None else None

    def _replayed(self, work: _Request) -> Done | None:
        if work.idempotency_key is None or work.read_only:
            return None
        try:
            since_ms = self._since_ms(self._clock.wall_ms())
            answer = idempotency.find(
                self._database, work.idempotency_key, work.method, _digest(work.body), since_ms=since_ms
            )
        except DomicileError as error:
            return Done(error=error)
        return Done(answer=answer, replayed=True) if answer is not None else None

    def _recorded(self, work: _Request, answer: bytes | None, error: DomicileError | None) -> Done:
        """Make the Done of a call that ran, and its record if it wrote."""
        outside = self.turns.reached_outside
        if error is not None:
            if outside and error.outcome == "not_run":
                error = copy(error)
                error.outcome = "ran"
            return Done(error=error, outside=outside)
        assert answer is not None
        done = Done(answer=answer, wrote=self._sql.wrote, outside=outside)
        if work.idempotency_key is None or not done.wrote:
            return done
        now_ms = self._clock.wall_ms()
        call = (work.idempotency_key, work.method, _digest(work.body))
        try:
            idempotency.record(self._database, call, answer, now_ms=now_ms, since_ms=self._since_ms(now_ms))
        except DomicileError as failed:
            return Done(error=failed)
        return done

    def _since_ms(self, now_ms: int) -> int:
        return now_ms - self._limits.idempotency_secs * 1000


def _digest(body: bytes) -> bytes:
    return blake3(body).digest(length=16)
