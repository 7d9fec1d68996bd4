"""`self.sql` and `self.kv`: values, rows, errors, and what they refuse."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import Any

import pytest

from domicile.errors import BadArguments, DatabaseFull, SqlError, SqlRefused


def test_statements_and_their_results(thing: Any) -> None:
    """Rows are dicts, changes are counted, parameters are positional or named."""
    sql = thing.sql

    def method() -> None:
        assert sql.exec("INSERT INTO t VALUES (?, ?), (?, ?)", 1, "a", 2, b"b") == 2
        assert sql.exec("UPDATE t SET b = :b WHERE i = :i", {"i": 2, "b": None}) == 1
        assert sql.exec("UPDATE t SET b = 1 WHERE i > 10") == 0
        assert sql.exec("CREATE TABLE u(x)") == 0
        assert sql.query("SELECT * FROM t ORDER BY i") == [{"i": 1, "b": "a"}, {"i": 2, "b": None}]
        assert sql.one("SELECT b FROM t ORDER BY i") == {"b": "a"}
        assert sql.one("SELECT b FROM t WHERE i = 9") is None
        assert sql.query("SELECT b FROM t WHERE i = 9") == []
        assert sql.one("INSERT INTO u VALUES (5) RETURNING x") == {"x": 5}
        assert sql.batch([("SELECT 1 AS a", ()), ("UPDATE t SET b = ? WHERE i = 1 RETURNING b", ["z"])]) == [
            [{"a": 1}],
            [{"b": "z"}],
        ]

    thing.ok(method)
    assert thing.rows("SELECT b FROM t") == [("z",), (None,)]


def test_columns_follow_the_schema(thing: Any) -> None:
    """A renamed column has its new name at once, and its old one again after a rollback."""
    text = "SELECT * FROM t"
    thing.script("INSERT INTO t VALUES (1, 'x')")

    def method() -> None:
        assert thing.sql.one(text) == {"i": 1, "b": "x"}
        thing.sql.exec("ALTER TABLE t RENAME COLUMN b TO c")
        assert thing.sql.one(text) == {"i": 1, "c": "x"}
        raise RuntimeError

    thing.call(method)
    assert thing.ok(lambda: thing.sql.one(text)) == {"i": 1, "b": "x"}


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ((float("nan"),), "NaN"),
        ((2**63,), "64 bits"),
        (("\ud800",), "surrogate"),
        (([1],), "list"),
        ((object(),), "object"),
        (({"b": 1},), "named parameter|no name"),
        ((1, 2), "bindings"),
        ((), "bindings"),
    ],
)
def test_values_sqlite_cannot_store(thing: Any, params: tuple[Any, ...], words: str) -> None:
    """A value that would be stored as something else, or not at all, is an error that says so."""
    with pytest.raises(SqlError, match=words):
        thing.ok(lambda: thing.sql.query("SELECT ?", *params))


def test_a_missing_named_parameter(thing: Any) -> None:
    """A name without a value is an error, not NULL."""
    with pytest.raises(SqlError, match="'x'"):
        thing.ok(lambda: thing.sql.one("SELECT :x AS x", {"y": 1}))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("SELEC 1", "syntax"),
        ("SELECT * FROM nope", "nope"),
        ("INSERT INTO t VALUES (1, 1), (1, 2)", "UNIQUE"),
        ("SELECT CAST(x'ff41' AS TEXT) AS x", "UTF-8"),
        ("SELECT 1 AS a, 2 AS a", "several columns"),
        ('SELECT "text" AS x', "text"),
        ("SELECT 1 AS a; SELECT 2 AS a", "one statement"),
        ("SELECT 1 AS a UNION SELECT 2; DELETE FROM t", "one statement"),
        ("SELECT zeroblob(20000000) AS x", "too big"),
    ],
)
@pytest.mark.parametrize("way", ["one", "query"])
def test_errors_say_what_is_wrong(thing: Any, way: str, text: str, words: str) -> None:
    """SQLite's own words reach the caller, and the object goes on."""
    with pytest.raises(SqlError, match=words):
        thing.ok(lambda: getattr(thing.sql, way)(text))
    assert thing.rows("SELECT 1 AS one") == [(1,)]


def test_a_failed_statement_can_be_caught(thing: Any) -> None:
    """A constraint undoes its statement alone; the method may go on."""

    def method() -> int:
        thing.sql.exec("INSERT INTO t VALUES (1, 1)")
        with pytest.raises(SqlError):
            thing.sql.exec("INSERT INTO t VALUES (2, 2), (1, 1)")
        return thing.sql.exec("INSERT INTO t VALUES (3, 3)")

    assert thing.ok(method) == 1
    assert thing.rows("SELECT i FROM t") == [(1,), (3,)]


def test_case_8_nothing_is_left_open(thing: Any) -> None:
    """Case 8: reading one row of many leaves no statement behind, so the log can always be folded."""
    numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 500)"
    thing.script(f"{numbers} INSERT INTO t SELECT i, i FROM n")

    def method() -> Any:
        kept.append(iter(thing.sql.query("SELECT * FROM t")))
        return [thing.sql.one("SELECT * FROM t"), next(kept[0])]

    kept: list[Any] = []
    thing.ok(method)
    assert thing.db.checkpoint()
    assert next(kept[0]) == {"i": 2, "b": 2}
    with pytest.raises(SqlError, match="inside a running call"):
        thing.sql.query("SELECT 1 AS one")


def test_nothing_works_outside_a_call_or_in_another_thread(thing: Any) -> None:
    """SQL belongs to the running call and its thread, and its kin with it."""
    for use in (lambda: thing.sql.exec("SELECT 1"), lambda: thing.kv.get("a"), lambda: thing.sql.tx().__enter__()):
        with pytest.raises(SqlError, match="inside a running call"):
            use()
    told: list[str] = []

    def elsewhere() -> None:
        try:
            thing.sql.exec("INSERT INTO t VALUES (1, 1)")
        except SqlError as error:
            told.append(error.detail)

    def method() -> None:
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()

    thing.ok(method)
    assert "in its thread" in told[0]
    assert thing.rows("SELECT * FROM t") == []


def test_case_80_nested_transactions(thing: Any) -> None:
    """Case 80: an inner block that raises undoes itself alone, at any depth."""
    put = lambda i: thing.sql.exec("INSERT INTO t VALUES (?, ?)", i, i)  # noqa: E731
    tx = thing.sql.tx

    def method() -> None:
        with tx():
            put(1)
            with suppress(ZeroDivisionError), tx():
                put(2)
                with tx():
                    put(20)
                raise ZeroDivisionError
            put(3)
            with tx(), tx():
                put(4)

    thing.ok(method)
    assert thing.rows("SELECT i FROM t") == [(1,), (3,), (4,)]


def test_case_80_an_outer_block_that_raises_undoes_all(thing: Any) -> None:
    """Case 80: inner blocks that ended well go with the outer one."""

    def method() -> None:
        with suppress(ZeroDivisionError), thing.sql.tx():
            with thing.sql.tx():
                thing.sql.exec("INSERT INTO t VALUES (1, 1)")
            raise ZeroDivisionError
        thing.sql.exec("INSERT INTO t VALUES (2, 2)")

    thing.ok(method)
    assert thing.rows("SELECT i FROM t") == [(2,)]


async def _interleaved(thing: Any) -> list[str]:
    inside, go_on = asyncio.Event(), asyncio.Event()
    told: list[str] = []

    async def holder() -> None:
        with thing.sql.tx():
            thing.sql.exec("INSERT INTO t VALUES (1, 1)")
            inside.set()
            await go_on.wait()

    async def other() -> None:
        await inside.wait()
        try:
            thing.sql.exec("INSERT INTO t VALUES (2, 2)")
        except SqlError as error:
            told.append(error.detail)
        go_on.set()

    await asyncio.gather(holder(), other())
    thing.sql.exec("INSERT INTO t VALUES (3, 3)")
    return told


def test_case_80_another_coroutine_of_the_call(thing: Any) -> None:
    """Case 80: while a coroutine is inside a block, another one of the same call gets a clear error."""
    done = asyncio.run(thing.call_async(lambda: _interleaved(thing)))
    assert b"another task" in done.answer
    assert thing.rows("SELECT i FROM t") == [(1,), (3,)]


def test_a_task_left_by_an_earlier_call(thing: Any) -> None:
    """A task that outlives its call writes nothing into a later one."""
    told: list[str] = []

    async def run() -> None:
        go = asyncio.Event()
        tasks = []

        async def leftover() -> None:
            await go.wait()
            try:
                thing.sql.exec("INSERT INTO t VALUES (1, 1)")
            except SqlError as error:
                told.append(error.detail)

        async def first() -> None:
            tasks.append(asyncio.create_task(leftover()))

        async def second() -> None:
            go.set()
            await tasks[0]
            thing.sql.exec("INSERT INTO t VALUES (2, 2)")

        for method in (first, second):
            done = await asyncio.create_task(thing.call_async(method))
            assert done.error is None

    asyncio.run(run())
    assert "earlier call" in told[0]
    assert thing.rows("SELECT i FROM t") == [(2,)]


def test_a_block_left_open_fails_the_call(thing: Any) -> None:
    """A block that never ends decides nothing; the call is undone."""

    def method() -> None:
        thing.sql.tx().__enter__()
        thing.sql.exec("INSERT INTO t VALUES (1, 1)")

    done = thing.call(method)
    assert isinstance(done.error, SqlError)
    assert thing.rows("SELECT * FROM t") == []


def test_case_83_a_broken_script_is_undone_as_a_whole(thing: Any) -> None:
    """Case 83: a script commits nothing on its way; there is no raw handle to do it with."""

    def method() -> None:
        thing.sql.exec("INSERT INTO t VALUES (1, 1)")
        thing.sql.exec("CREATE TABLE z(x); INSERT INTO z VALUES (1); INSERT INTO nope VALUES (1)")

    done = thing.call(method)
    assert isinstance(done.error, SqlError)
    assert "nope" in done.error.detail
    assert thing.rows("SELECT name FROM sqlite_master WHERE name = 'z'") == []
    assert thing.rows("SELECT * FROM t") == []
    raw = {"executescript", "commit", "rollback", "isolation_level", "close", "executemany", "backup", "set_authorizer"}
    assert not raw & set(dir(thing.sql))


def test_case_83_a_batch_is_all_or_none(thing: Any) -> None:
    """Case 83: a batch broken in the middle leaves nothing, also when its error is caught."""

    def method() -> None:
        with pytest.raises(SqlError):
            thing.sql.batch([("INSERT INTO t VALUES (1, 1)", ()), ("INSERT INTO t VALUES (1, 1)", ())])

    thing.ok(method)
    assert thing.rows("SELECT * FROM t") == []


def test_a_read_only_method_writes_nothing(thing: Any) -> None:
    """A method declared for reading is refused every write by name, prepared ones and the map included."""
    thing.script("INSERT INTO t VALUES (1, 1)")
    writes = [
        lambda: thing.sql.exec("INSERT INTO t VALUES (1, 1)"),
        lambda: thing.sql.exec("SELECT 1; INSERT INTO t VALUES (5, 5)"),
        lambda: thing.sql.one("UPDATE t SET b = 2 RETURNING b"),
        lambda: thing.sql.exec("PRAGMA user_version=3"),
        lambda: thing.kv.put("a", 1),
    ]
    for write in writes:
        done = thing.call(write, read_only=True)
        assert isinstance(done.error, SqlRefused)
        assert "@domicile.read" in done.error.detail
    done = thing.call(lambda: thing.sql.one("SELECT b FROM t"), read_only=True)
    assert (done.answer, done.wrote) == (b'{"b": 1}', False)


def test_the_map_keeps_json(thing: Any) -> None:
    """Values come back as JSON carried them; keys are listed by prefix, in byte order."""
    kv = thing.kv
    keys = ["a", "a/1", "a/2", "a0", "b", "é", "éa", "\U0010ffff", "\U0010ffffx"]

    def method() -> None:
        for key in reversed(keys):
            kv.put(key, {"k": key, "n": [1, None, 2.5]})
        assert list(kv.list()) == sorted(keys, key=str.encode)
        assert list(kv.list("a/")) == ["a/1", "a/2"]
        assert list(kv.list("é")) == ["é", "éa"]
        assert list(kv.list("\U0010ffff")) == ["\U0010ffff", "\U0010ffffx"]
        assert kv.get("a/1") == {"k": "a/1", "n": [1, None, 2.5]}
        assert (kv.delete("a"), kv.delete("a"), kv.get("a", 7)) == (True, False, 7)
        kv.put("b", None)
        assert kv.get("b", 1) is None

    thing.ok(method)
    assert thing.call(lambda: kv.put("c", 1)).wrote


@pytest.mark.parametrize(("key", "value"), [("k", "x" * 65535), ("k", object()), ("", 1), (5, 1), ("k" * 1025, 1)])
def test_the_map_refuses_what_it_cannot_keep(thing: Any, key: Any, value: Any) -> None:
    """A value past 64 KiB, one that is no JSON, and a key that is none are errors of the caller."""
    with pytest.raises(BadArguments):
        thing.ok(lambda: thing.kv.put(key, value))
    thing.ok(lambda: thing.kv.put("k", "x" * 65534))


def test_a_full_map_dooms_the_call(opened: Any) -> None:
    """The map counts to the size cap, and a call that met it is undone as a whole."""
    one = opened(bytes_max=40 * 4096)

    def method() -> None:
        for i in range(10):
            try:
                one.kv.put(str(i), "x" * 60000)
            except DatabaseFull:
                continue

    assert isinstance(one.call(method).error, DatabaseFull)
    assert one.ok(lambda: one.kv.list()) == {}
