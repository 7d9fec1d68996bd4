"""Transactions that SQLite ends by itself, or does not let end: the call fails as a whole, the object goes on."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from numbers_kept import ids, put

from domicile.errors import DatabaseFull, DomicileError, SqlError


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
