"""Calls with an idempotency key run once, as long as their record is kept."""

from __future__ import annotations

import asyncio
from typing import Any

from domicile.errors import KeyReused, MethodFailed
from domicile.node.sqlite.idempotency import PRUNED_PER_WRITE

_DAY_MS = 86_400_000


def put(one: Any) -> int:
    one.sql.exec("INSERT INTO t(b) VALUES (1)")
    return int(one.sql.one("SELECT count(*) AS n FROM t")["n"])


def test_a_repeated_call_gets_the_recorded_answer(thing: Any) -> None:
    """The same key, method and arguments run nothing twice, also after a reopening."""
    first = thing.call(lambda: put(thing), idempotency_key="k", body=b"[1]")
    again = thing.call(lambda: put(thing), idempotency_key="k", body=b"[1]")
    assert (first.answer, first.replayed, first.wrote) == (b"1", False, True)
    assert (again.answer, again.replayed, again.wrote) == (b"1", True, False)
    thing = thing.reopened()
    assert thing.call(lambda: put(thing), idempotency_key="k", body=b"[1]").replayed
    assert thing.rows("SELECT count(*) FROM t") == [(1,)]
    thing.db.close()


def test_another_call_under_the_same_key_is_refused(thing: Any) -> None:
    """A key names one call: its method and its arguments."""
    thing.call(lambda: put(thing), idempotency_key="k", body=b"[1]")
    for other in ({"body": b"[2]"}, {"body": b"[1]", "method": "n"}):
        done = thing.call(lambda: put(thing), idempotency_key="k", **other)
        assert isinstance(done.error, KeyReused)
        assert done.error.outcome == "not_run"
    assert thing.rows("SELECT count(*) FROM t") == [(1,)]


def test_twins_in_one_group_run_once(thing: Any) -> None:
    """Two calls with one key that wait together are one call."""
    twin = thing.work(lambda: put(thing), idempotency_key="k")
    dones = thing.group(twin, twin, lambda: put(thing))
    assert [(done.answer, done.replayed) for done in dones] == [(b"1", False), (b"1", True), (b"2", False)]


def test_a_call_that_was_undone_leaves_no_record(thing: Any) -> None:
    """An error is not recorded: the same key may try again."""

    def failing() -> None:
        put(thing)
        raise ValueError

    assert isinstance(thing.call(failing, idempotency_key="k").error, MethodFailed)
    thing.group(thing.work(failing, idempotency_key="k"), thing.work(lambda: 1))
    assert thing.call(lambda: put(thing), idempotency_key="k").answer == b"1"


def test_a_call_that_only_read_leaves_no_record(thing: Any) -> None:
    """What wrote nothing may run again, and ships nothing."""
    length = thing.db.length
    thing.call(lambda: thing.sql.query("SELECT * FROM t"), idempotency_key="k")
    assert thing.db.length == length
    assert not thing.call(lambda: put(thing), idempotency_key="k").replayed


def test_an_async_call_is_recorded_as_well(thing: Any) -> None:
    """The kind of method makes no difference."""

    async def method() -> int:
        return put(thing)

    dones = [asyncio.run(thing.call_async(method, idempotency_key="k")) for _ in range(2)]
    assert [(done.answer, done.replayed) for done in dones] == [(b"1", False), (b"1", True)]


def test_records_expire_and_are_pruned_a_few_at_a_time(thing: Any) -> None:
    """Past its time a record counts no more, and each write removes a bounded number of old ones."""
    for i in range(10):
        thing.call(lambda: put(thing), idempotency_key=f"k{i}")
    thing.clock.ms += _DAY_MS + 1
    assert not thing.call(lambda: put(thing), idempotency_key="k9", body=b"other").replayed

    def records() -> int:
        thing.db.begin()
        count = thing.db.read("SELECT count(*) FROM _domicile_idempotency")[0][0]
        thing.db.rollback()
        return int(count)

    assert records() == 10 - PRUNED_PER_WRITE
    for i in range(3):
        thing.call(lambda: put(thing), idempotency_key=f"new{i}")
    assert records() == 4
    assert thing.call(lambda: put(thing), idempotency_key="k9", body=b"other").replayed
