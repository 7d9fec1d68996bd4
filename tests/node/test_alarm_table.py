"""The alarms an object keeps in its own storage."""

from __future__ import annotations

from typing import Any

import pytest

from domicile.errors import SqlRefused
from domicile.node.sqlite import alarm_table, meta_table
from domicile.node.sqlite.alarm_table import Alarm

_HOUR = 3_600_000


def arm(thing: Any, *alarm: Any) -> None:
    thing.tx.own(lambda: alarm_table.set_alarm(thing.db, *alarm))


def fail(thing: Any, seen: Alarm, now_ms: int) -> Any:
    return thing.tx.own(lambda: alarm_table.mark_attempt(thing.db, seen, now_ms))


def test_alarms_are_set_replaced_and_cleared_with_the_call(thing: Any) -> None:
    """Any number of named alarms, part of the transaction of the call."""

    def method() -> None:
        alarm_table.set_alarm(thing.sql, "b", 200)
        alarm_table.set_alarm(thing.sql, "a", 300, b'{"x":1}')
        alarm_table.set_alarm(thing.sql, "c", 100)
        alarm_table.set_alarm(thing.sql, "b", 250)
        assert alarm_table.clear_alarm(thing.sql, "c")
        assert not alarm_table.clear_alarm(thing.sql, "c")

    def undone() -> None:
        alarm_table.set_alarm(thing.sql, "z", 1)
        raise ValueError

    assert thing.call(method).wrote
    thing.call(undone)
    assert alarm_table.list_alarms(thing.db) == [Alarm("b", 250), Alarm("a", 300, b'{"x":1}')]
    assert alarm_table.earliest_due(thing.db) == 250


def test_a_reading_method_sets_none(thing: Any) -> None:
    """Arming is a write."""
    done = thing.call(lambda: alarm_table.set_alarm(thing.sql, "a", 1), read_only=True)
    assert isinstance(done.error, SqlRefused)


def test_due_alarms_come_in_order_and_bounded(thing: Any) -> None:
    """The earliest first, up to the limit; without alarms nothing is due."""
    assert alarm_table.earliest_due(thing.db) is None
    for i in range(5):
        arm(thing, f"n{i}", 100 - i)
    assert [alarm.name for alarm in alarm_table.due_now(thing.db, 98, 2)] == ["n4", "n3"]
    assert [alarm.name for alarm in alarm_table.due_now(thing.db, 97, 9)] == ["n4", "n3"]


def test_taking_an_alarm_keeps_what_its_handler_sets(thing: Any) -> None:
    """An alarm is taken before its handler runs; one set anew inside stays, one seen too late is not taken."""
    arm(thing, "a", 100)
    (seen,) = alarm_table.due_now(thing.db, 100, 9)

    def handler() -> None:
        assert alarm_table.take(thing.sql, seen, 100)
        alarm_table.set_alarm(thing.sql, "a", 500)

    thing.ok(handler)
    assert alarm_table.list_alarms(thing.db) == [Alarm("a", 500)]
    assert not alarm_table.take(thing.db, seen, 100)
    assert fail(thing, seen, 100) is None


def test_a_failing_handler_backs_off_and_fails_at_the_sixth_attempt(thing: Any) -> None:
    """2 s doubling, six attempts, then visible as failed and never due again."""
    arm(thing, "a", 100, b"1")
    waits = []
    for _ in range(6):
        due = alarm_table.earliest_due(thing.db)
        (seen,) = alarm_table.due_now(thing.db, due, 9)
        now = fail(thing, seen, due)
        waits.append(now.due_ms - due)
    assert waits == [2000, 4000, 8000, 16000, 32000, 0]
    (failed,) = alarm_table.list_alarms(thing.db)
    assert (failed.failed, failed.attempts, failed.payload) == (True, 6, 1)
    assert alarm_table.earliest_due(thing.db) is None
    assert alarm_table.due_now(thing.db, 10**15, 9) == []
    arm(thing, "a", 7)
    assert alarm_table.list_alarms(thing.db) == [Alarm("a", 7)]


def test_a_cron_alarm_goes_on_with_its_next_time(thing: Any) -> None:
    """Times missed fire once; a cron alarm whose handler keeps failing tries again at its next time."""
    arm(thing, "a", _HOUR, None, "0 * * * *")
    (seen,) = alarm_table.due_now(thing.db, 5 * _HOUR + 1, 9)
    assert thing.tx.own(lambda: alarm_table.take(thing.db, seen, 5 * _HOUR + 1))
    assert alarm_table.list_alarms(thing.db) == [Alarm("a", 6 * _HOUR, None, "0 * * * *")]
    now = 6 * _HOUR
    for _ in range(6):
        (seen,) = alarm_table.due_now(thing.db, now, 9)
        now = fail(thing, seen, now).due_ms
    (given_up,) = alarm_table.list_alarms(thing.db)
    assert (given_up.due_ms, given_up.attempts, given_up.failed) == (7 * _HOUR, 6, False)
    assert fail(thing, given_up, now).attempts == 1


def test_facts_of_the_object_are_kept(thing: Any) -> None:
    """A fact is one row, set with the call."""
    with pytest.raises(AssertionError):
        thing.tx.own(lambda: [meta_table.put(thing.db, "init", b"1"), _fail()])
    assert meta_table.get(thing.db, "init") is None
    thing.ok(lambda: meta_table.put(thing.sql, "init", b"1"))
    assert meta_table.get(thing.db, "init") == b"1"


def _fail() -> None:
    raise AssertionError
