"""Calls that are out of time, and those that wait inside their transaction."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from numbers_kept import ids, put

from domicile.errors import CallTimeout
from domicile.node.sqlite.transaction import CallInterrupted

_LONG = (
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 400000000) SELECT count(*) AS n FROM n"
)


def expire_when(thing: Any, ready: threading.Event, inject: Callable[[], object] | None = None) -> threading.Thread:
    """A watchdog: expires the running turn, again and again, until it has ended."""

    def watch() -> None:
        ready.wait()
        turn = thing.tx.turns.turn
        while thing.tx.turns.expire(turn, inject):
            threading.Event().wait(0.002)

    thread = threading.Thread(target=watch)
    thread.start()
    return thread


@pytest.mark.parametrize("swallow", [False, True])
@pytest.mark.parametrize("write", [False, True])
def test_a_statement_past_its_time_is_interrupted(thing: Any, swallow: bool, write: bool) -> None:
    """A call past its time is undone, also if its method swallows the signal; those beside it stay."""
    ready = threading.Event()

    def slow() -> Any:
        put(thing, 1)
        ready.set()
        try:
            return thing.sql.exec(f"INSERT INTO t(b) {_LONG}" if write else _LONG)
        except BaseException:
            if swallow:
                return "ok"
            raise

    watchdog = expire_when(thing, ready)
    dones = thing.group(lambda: put(thing, 5), slow, lambda: put(thing, 6))
    watchdog.join()
    assert [type(done.error) for done in dones] == [type(None), CallTimeout, type(None)]
    assert ids(thing) == [5, 6]


def test_an_injected_exception_is_a_timeout(thing: Any) -> None:
    """The runtime's own signal undoes the call; the next one is untouched."""

    def method() -> None:
        put(thing, 1)
        raise CallInterrupted

    assert isinstance(thing.call(method).error, CallTimeout)
    assert thing.ok(lambda: put(thing, 2)) == 1
    assert ids(thing) == [2]


def test_an_expired_turn_cannot_be_expired_again(thing: Any) -> None:
    """A late watchdog hits neither the commit nor the next call."""
    turns: list[int] = []
    thing.call(lambda: turns.append(thing.tx.turns.turn))
    assert not thing.tx.turns.expire(turns[0])
    assert not thing.tx.turns.expire(0)
    assert thing.ok(lambda: thing.tx.turns.expire(turns[0])) is False


def test_an_async_call_keeps_its_transaction_over_awaits(thing: Any) -> None:
    """The transaction of an `async def` stays open while it awaits and ends as a whole."""

    async def method() -> int:
        put(thing, 1)
        await asyncio.sleep(0)
        assert thing.db.in_transaction
        return put(thing, 2)

    done = asyncio.run(thing.call_async(method))
    assert (done.answer, done.wrote) == (b"1", True)
    assert ids(thing) == [1, 2]


def test_an_async_call_that_is_out_of_time(thing: Any) -> None:
    """A cancellation by `expire` is a timeout; one from outside rolls back and goes on."""

    async def run() -> None:
        async def method() -> None:
            put(thing, 1)
            began.set()
            await asyncio.Event().wait()

        for expires in (True, False):
            began = asyncio.Event()
            task = asyncio.create_task(thing.call_async(method))
            await began.wait()
            if expires:
                assert thing.tx.turns.expire(thing.tx.turns.turn, task.cancel)
                assert isinstance((await task).error, CallTimeout)
            else:
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            assert not thing.db.in_transaction
        assert (await asyncio.create_task(thing.call_async(second))).answer == b"1"

    async def second() -> int:
        return put(thing, 2)

    asyncio.run(run())
    assert ids(thing) == [2]
