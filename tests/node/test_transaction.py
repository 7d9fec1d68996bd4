"""One transaction around one call or several: what lasts, what is undone, and what the caller is told."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from domicile.errors import CallTimeout, DatabaseFull, DomicileError, MethodFailed, Moving, SqlError
from domicile.node.errors import Ended
from domicile.node.sqlite.transaction import CallInterrupted, NeedsAlone

_LONG = (
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 400000000) SELECT count(*) AS n FROM n"
)


def put(one: Any, i: int) -> int:
    return int(one.sql.exec("INSERT INTO t VALUES (?, ?)", i, i))


def ids(one: Any) -> list[int]:
    return [i for (i,) in one.rows("SELECT i FROM t ORDER BY i")]


def test_a_call_lasts_as_a_whole(thing: Any) -> None:
    """A call that ends well is committed; its Done says that it wrote."""
    done = thing.call(lambda: put(thing, 1))
    assert (done.answer, done.error, done.wrote, done.replayed) == (b"1", None, True, False)
    assert ids(thing) == [1]


def test_a_call_that_changes_nothing_ships_nothing(thing: Any) -> None:
    """Reading, and an update that meets no row, makes no frame."""
    length = thing.db.length
    assert not thing.call(lambda: thing.sql.query("SELECT * FROM t")).wrote
    assert not thing.call(lambda: thing.sql.exec("UPDATE t SET b = 1 WHERE i = 77")).wrote
    assert thing.db.length == length


@pytest.mark.parametrize(
    "error",
    [ValueError("no"), KeyboardInterrupt(), SystemExit(3), GeneratorExit(), asyncio.CancelledError(), StopIteration()],
)
def test_whatever_a_method_raises_undoes_it(thing: Any, error: BaseException) -> None:
    """No exception of a method ends the node, keeps a row or shows a trace."""

    def method() -> None:
        put(thing, 1)
        thing.kv.put("k", 1)
        raise error

    async def method_async() -> None:
        method()

    for done in (thing.call(method), asyncio.run(thing.call_async(method_async))):
        if isinstance(error, StopIteration) and done.error.extra["type"] == "RuntimeError":
            continue  # Python's own rule for coroutines
        assert isinstance(done.error, MethodFailed)
        assert done.error.extra == {"type": type(error).__name__, "message": str(error)}
        assert not done.wrote
    assert ids(thing) == []
    assert not thing.db.in_transaction


def test_messages_are_bounded_and_show_no_paths(thing: Any) -> None:
    """A caller sees type and message, cut, and nothing of this machine."""

    def opening() -> None:
        open("/nonexistent/place/secret.txt")  # noqa: SIM115

    class Odd(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    def raising(error: Exception) -> Callable[[], None]:
        def method() -> None:
            raise error

        return method

    assert thing.call(opening).error.extra["message"] == "No such file or directory"
    assert thing.call(raising(ImportError("x (/usr/lib/python3/x.py)"))).error.extra["message"] == "x (<path>)"
    assert thing.call(raising(ValueError("no /v1/orders"))).error.extra["message"] == "no /v1/orders"
    assert len(thing.call(raising(ValueError("x" * 5000))).error.extra["message"]) == 1000
    assert thing.call(raising(Odd())).error.detail == "Odd"
    assert thing.call(raising(ValueError("\ud800"))).error.detail == "ValueError: ?"


def test_errors_of_the_tree_keep_their_type(thing: Any) -> None:
    """What another object answered, and was not caught, is this call's answer."""

    def method() -> None:
        put(thing, 1)
        raise Moving

    assert isinstance(thing.call(method).error, Moving)
    assert ids(thing) == []


def test_internal_errors_end_the_group(thing: Any) -> None:
    """An error of the node is no method's: it goes to the residency, and nothing stays open."""

    def method() -> None:
        put(thing, 1)
        raise Ended

    with pytest.raises(Ended):
        thing.group(lambda: put(thing, 2), method)
    assert not thing.db.in_transaction
    assert ids(thing) == []


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


def test_case_81_or_rollback_fails_the_call_as_a_whole(thing: Any) -> None:
    """Case 81: what SQLite rolled back by itself cannot be papered over; the first error is the answer."""

    def method() -> str:
        put(thing, 1)
        with suppress(SqlError):
            thing.sql.exec("INSERT OR ROLLBACK INTO t VALUES (1, 1)")
        with suppress(DomicileError):
            put(thing, 2)
        with suppress(DomicileError), thing.sql.tx():
            put(thing, 3)
        with suppress(DomicileError):
            thing.kv.put("k", 1)
        return "ok"

    done = thing.call(method)
    assert isinstance(done.error, SqlError)
    assert "UNIQUE" in done.error.detail
    assert ids(thing) == []
    assert thing.ok(lambda: thing.kv.list()) == {}
    assert thing.ok(lambda: put(thing, 4)) == 1


def test_case_81_raise_rollback_in_a_trigger(thing: Any) -> None:
    """Case 81: the same for RAISE(ROLLBACK), with its own text."""
    thing.script("CREATE TRIGGER g BEFORE INSERT ON t WHEN new.i = 9 BEGIN SELECT RAISE(ROLLBACK, 'not nine'); END")

    def method() -> str:
        put(thing, 1)
        with suppress(SqlError), thing.sql.tx():
            put(thing, 9)
        with suppress(SqlError):
            put(thing, 2)
        return "ok"

    done = thing.call(method)
    assert done.error.detail == "not nine"
    assert ids(thing) == []


def test_case_81_a_full_database_fails_the_call_as_a_whole(opened: Any) -> None:
    """Case 81: after 'full' nothing of the call stays, whatever the method caught; the next call is clean."""
    one = opened(bytes_max=60 * 4096)
    one.script("CREATE TABLE t(i INTEGER PRIMARY KEY, b); CREATE TABLE log(x)")

    def method() -> str:
        with suppress(DatabaseFull):
            for _ in range(100):
                one.sql.exec("INSERT INTO t(b) VALUES (zeroblob(4000))")
        with suppress(DomicileError):
            one.sql.exec("INSERT INTO log VALUES ('after')")
        return "ok"

    dones = one.group(lambda: one.sql.exec("INSERT INTO log VALUES ('before')"), method, lambda: 3)
    assert [type(done.error) for done in dones] == [type(None), DatabaseFull, type(None)]
    assert one.rows("SELECT * FROM log") == [("before",)]
    assert one.rows("SELECT count(*) FROM t") == [(0,)]


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


def test_case_82_a_failed_block_never_keeps_the_transaction_open(thing: Any) -> None:
    """Case 82: a call that raised inside a block leaves nothing open; each later write is in the log at once."""

    def failing() -> None:
        with thing.sql.tx():
            put(thing, 1)
            raise ValueError

    thing.group(failing)
    thing.group(failing, failing)
    for i in range(2, 100):
        length = thing.db.length
        assert thing.ok(lambda i=i: put(thing, i)) == 1
        assert thing.db.length > length
        assert not thing.db.in_transaction
    again = thing.reopened()
    assert len(ids(again)) == 98
    again.db.close()


def test_case_86_foreign_keys_are_always_enforced(opened: Any) -> None:
    """Case 86: a child without a parent is refused in this call, the next, and after every reopening."""
    one = opened()
    one.script("CREATE TABLE p(i INTEGER PRIMARY KEY); CREATE TABLE c(p REFERENCES p(i))")
    orphan = "PRAGMA foreign_keys=ON; INSERT INTO c VALUES (5)"
    for _ in range(3):
        for _ in range(2):
            with pytest.raises(SqlError, match="FOREIGN KEY"):
                one.script(orphan)
        one.db.checkpoint()
        one = one.reopened()
    one.db.close()


@pytest.mark.parametrize("how", ["column", "pragma"])
def test_case_86_a_deferred_violation_fails_the_call_at_its_commit(opened: Any, how: str) -> None:
    """Case 86: a broken deferred key undoes its call, not the calls that shared with it, and ships nothing."""
    one = opened()
    deferred = "DEFERRABLE INITIALLY DEFERRED" if how == "column" else ""
    one.script(f"CREATE TABLE p(i INTEGER PRIMARY KEY); CREATE TABLE c(p REFERENCES p(i) {deferred})")

    def bad() -> int:
        if how == "pragma":
            one.sql.exec("PRAGMA defer_foreign_keys=ON")
        return int(one.sql.exec("INSERT INTO c VALUES (5)"))

    length = one.db.length
    with pytest.raises(SqlError, match="FOREIGN KEY"):
        one.ok(bad, idempotency_key="k")
    assert one.db.length == length
    dones = one.group(
        lambda: one.sql.exec("INSERT INTO p VALUES (1)"), bad, lambda: one.sql.exec("INSERT INTO c VALUES (1)")
    )
    assert [done.error is None for done in dones] == [True, False, True]
    assert one.rows("SELECT p FROM c") == [(1,)]
    assert one.ok(lambda: one.sql.exec("INSERT INTO p VALUES (5)"), idempotency_key="k") == 1


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


_FULL_DISK = """
import resource, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from conftest import Opened
from domicile.node.sqlite.birth import IMAGE
path = Path(sys.argv[2])
path.write_bytes(IMAGE)
one = Opened(path)
one.script("CREATE TABLE t(i INTEGER PRIMARY KEY, b)")
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
limit = resource.getrlimit(resource.RLIMIT_FSIZE)
length = one.db.length
resource.setrlimit(resource.RLIMIT_FSIZE, (length + 5000, limit[1]))
insert = one.work(lambda: one.sql.exec("INSERT INTO t(b) VALUES (zeroblob(20000))"))
for works in ([insert], [insert, insert]):
    for done in one.tx.run_group(works):
        assert (type(done.error).__name__, done.error.outcome) == ("NotServing", "ran"), done
    assert one.db.length == length and not one.db.in_transaction
assert one.db.sick
resource.setrlimit(resource.RLIMIT_FSIZE, limit)
assert one.call(lambda: one.sql.exec("INSERT INTO t(b) VALUES (1)")).wrote
assert one.rows("PRAGMA integrity_check") == [("ok",)]
assert one.rows("SELECT b FROM t") == [(1,)]
one.reopened().db.close()
"""


def test_case_81_a_log_that_cannot_be_written(tmp_path: Path) -> None:
    """Case 81: a commit the disk refuses is undone and said so, and the object goes on when the disk does."""
    code = [sys.executable, "-c", _FULL_DISK, str(Path(__file__).parent), str(tmp_path / "o.db")]
    run = subprocess.run(code, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


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
