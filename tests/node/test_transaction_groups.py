"""One transaction around several calls: each undoes itself alone, and sharing shows to nobody."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numbers_kept import ids, put

from domicile.node.sqlite.transaction import CallInterrupted, NeedsAlone


def test_calls_that_share_undo_themselves_alone(thing: Any) -> None:
    """In a group each call is all or nothing by itself, in arrival order, in one commit."""
    order: list[int] = []

    def method(i: int, fails: bool) -> Callable[[], int]:
        def run() -> int:
            order.append(i)
            put(thing, i)
            if fails:
                raise ValueError
            return i

        return run

    dones = thing.group(*(method(i, i % 3 == 1) for i in range(6)))
    assert order == list(range(6))
    assert [done.error is None for done in dones] == [i % 3 != 1 for i in range(6)]
    assert ids(thing) == [0, 2, 3, 5]


def test_a_reader_in_a_group_wrote_nothing(thing: Any) -> None:
    """Only those calls of a group that wrote say so."""
    dones = thing.group(lambda: 1, lambda: put(thing, 1), lambda: thing.sql.one("SELECT count(*) AS n FROM t"))
    assert [done.wrote for done in dones] == [False, True, False]
    assert dones[2].answer == b'{"n": 1}'


def test_a_call_that_loses_the_transaction_makes_the_others_run_again(thing: Any) -> None:
    """The calls that shared with the loser run one by one; the loser does not run twice."""
    runs: list[int] = []

    def method(i: int) -> Callable[[], int]:
        def run() -> int:
            runs.append(i)
            if i == 2:
                return int(thing.sql.exec("INSERT OR ROLLBACK INTO t SELECT 50, 0 UNION ALL SELECT 50, 0"))
            return put(thing, i)

        return run

    dones = thing.group(*(method(i) for i in range(5)))
    assert [done.error is None for done in dones] == [True, True, False, True, True]
    assert ids(thing) == [0, 1, 3, 4]
    assert runs == [0, 1, 2, 0, 1, 3, 4]


def test_a_call_that_reaches_outside_runs_alone(thing: Any) -> None:
    """It is undone and run again by itself, after what came before was committed, even if it swallows the signal."""
    seen: list[tuple[int, bool, int]] = []

    def method(i: int) -> Callable[[], int]:
        def run() -> int:
            seen.append((i, thing.tx.turns.sharing, thing.db.length))
            put(thing, i)
            if i in (0, 2):
                with suppress(NeedsAlone):
                    thing.tx.turns.require_alone()
            return i

        return run

    dones = thing.group(*(method(i) for i in range(5)))
    assert [done.answer for done in dones] == [b"0", b"1", b"2", b"3", b"4"]
    assert [(i, shared) for i, shared, _ in seen] == [
        (0, True), (0, False), (1, True), (2, True), (2, False), (3, True), (4, True),
    ]  # fmt: skip
    assert seen[4][2] > seen[3][2]
    assert ids(thing) == [0, 1, 2, 3, 4]


def test_the_prologue_lasts_with_the_first_call_that_does(thing: Any) -> None:
    """Migrations and `init` run in the first transaction, again until one lasts, and never after."""
    runs: list[int] = []

    def prologue() -> None:
        runs.append(1)
        thing.sql.exec("CREATE TABLE u(x)")

    def failing() -> None:
        raise ValueError

    works = [thing.work(failing), thing.work(failing)]
    for group in (works[:1], works):
        dones = thing.tx.run_group(group, prologue)
        assert all(done.error is not None for done in dones)
        assert not thing.tx.prologue_done
    good = thing.work(lambda: thing.sql.exec("INSERT INTO u VALUES (1)"))
    dones = thing.tx.run_group([works[0], good], prologue)
    assert [done.error is None for done in dones] == [False, True]
    assert thing.tx.prologue_done
    thing.tx.run_group([good], prologue)
    assert len(runs) == 3
    assert thing.rows("SELECT count(*) FROM u") == [(2,)]


def test_a_prologue_that_fails_fails_every_call(thing: Any) -> None:
    """No call runs on an object that could not be prepared."""

    def prologue() -> None:
        thing.sql.exec("CREATE TABLE u(x)")
        raise ValueError("not now")

    for count in (1, 2):
        dones = thing.tx.run_group([thing.work(lambda: put(thing, 1))] * count, prologue)
        assert [done.error.detail for done in dones] == ["ValueError: not now"] * count
    assert ids(thing) == []
    assert thing.rows("SELECT name FROM sqlite_master WHERE name = 'u'") == []


def test_a_hook_that_fails_before_the_commit(thing: Any) -> None:
    """A fault between the method's end and the commit leaves nothing, and the group's thread hears of it."""

    def broken() -> None:
        raise OSError("fault")

    thing.before_commit = broken
    for works in ([lambda: put(thing, 1)], [lambda: put(thing, 1), lambda: put(thing, 2)]):
        with pytest.raises(OSError, match="fault"):
            thing.group(*works)
    thing.before_commit = lambda: None
    assert ids(thing) == []


kinds = st.sampled_from(["ok", "raise", "lose", "alone", "deferred", "read", "timeout"])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(groups=st.lists(st.lists(kinds, min_size=1, max_size=6), min_size=1, max_size=3))
def test_sharing_changes_nothing_a_caller_sees(opened: Any, groups: list[list[str]]) -> None:
    """Any mix of calls gives, in a group, the answers and rows it gives one by one."""
    shared, single = opened(), opened()
    for one in (shared, single):
        one.script(
            "CREATE TABLE t(i INTEGER PRIMARY KEY, b); CREATE TABLE c(p REFERENCES t(i) DEFERRABLE INITIALLY DEFERRED)"
        )

    def method(one: Any, kind: str) -> Callable[[], Any]:
        def run() -> Any:
            count = one.sql.one("SELECT count(*) AS n FROM t")["n"]
            if kind == "read":
                return count
            one.sql.exec("INSERT INTO t(b) VALUES (?)", kind)
            if kind == "raise":
                raise ValueError(count)
            if kind == "lose":
                one.sql.exec("INSERT OR ROLLBACK INTO t SELECT max(i), 0 FROM t")
            if kind == "alone":
                one.tx.turns.require_alone()
            if kind == "deferred":
                one.sql.exec("INSERT INTO c VALUES (-1)")
            if kind == "timeout":
                raise CallInterrupted
            return count

        return run

    def told(done: Any) -> Any:
        return (done.answer, done.error and done.error.detail)

    for group in groups:
        together = shared.group(*(method(shared, kind) for kind in group))
        alone = [single.call(method(single, kind)) for kind in group]
        assert [told(done) for done in together] == [told(done) for done in alone]
        assert shared.rows("SELECT * FROM t ORDER BY i") == single.rows("SELECT * FROM t ORDER BY i")
        assert not shared.db.in_transaction
    for one in (shared, single):
        one.db.close()
