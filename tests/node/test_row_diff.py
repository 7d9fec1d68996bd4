"""Differences between two states of an object, row by row, and what is brought back of them (PROTOCOLS section 10)."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from domicile.node.branches import as_file
from domicile.node.sqlite.birth import IMAGE
from domicile.node.sqlite.row_changes import Applied, apply_rows, lay_rows
from domicile.node.sqlite.row_diff import diff

SCHEMA = (
    "CREATE TABLE plain(a, b)",
    "CREATE TABLE people(name TEXT PRIMARY KEY, age)",
    "CREATE TABLE pairs(x INT, y INT, v, PRIMARY KEY (x, y)) WITHOUT ROWID",
    "CREATE TABLE numbered(id INTEGER PRIMARY KEY AUTOINCREMENT, v UNIQUE)",
    "CREATE TABLE parents(id INTEGER PRIMARY KEY)",
    "CREATE TABLE children(id INTEGER PRIMARY KEY, parent REFERENCES parents(id) ON DELETE CASCADE)",
    "CREATE TABLE seen(what)",
    "CREATE TRIGGER noticed AFTER INSERT ON people BEGIN INSERT INTO seen VALUES (new.name); END",
)


@pytest.fixture
def state(opened: Callable[..., Any]) -> Any:
    """An object with tables of every kind."""
    one = opened()
    write(one, *SCHEMA)
    return one


def image(one: Any) -> bytes:
    """The object's database as a file."""
    return as_file(IMAGE, one.db.read_log(0, one.db.length) if one.db.length else b"")


def write(one: Any, *statements: str) -> None:
    def method() -> None:
        for sql in statements:
            one.sql.exec(sql)

    one.ok(method)


def lose(one: Any, writes: Callable[[], Any]) -> tuple[Any, bytes, bytes]:
    """(the object as it was before, that state, the lost one): what `writes` does is taken back."""
    before, length = image(one), one.db.length
    writes()
    after = image(one)
    assert one.db.close()
    os.truncate(f"{one.path}-wal", length)
    return type(one)(one.path, laid=length), before, after


def branch_of(one: Any, *statements: str) -> tuple[Any, bytes, bytes]:
    return lose(one, lambda: write(one, *statements))


def lay(one: Any, before: bytes, after: bytes) -> None:
    exact = diff(before, after, exactly=True)
    with one.db.rebuilding(exactly=True):
        one.tx.own(lambda: lay_rows(one.db, exact))


def bring(one: Any, before: bytes, after: bytes) -> Applied:
    found = diff(before, after)
    with one.db.rebuilding(exactly=False):
        return one.tx.own(lambda: apply_rows(one.db, found))


def reasons(applied: Applied) -> list[tuple[str, str, Any]]:
    return sorted((left.table, left.change.kind, left.why) for left in applied.left)


def test_rows_are_told_apart_by_their_key(state: Any) -> None:
    """A row that was replaced is one that changed, not one gone and one new."""
    write(state, "INSERT INTO people VALUES ('ada', 36), ('bob', 1), ('cy', 2)", "INSERT INTO pairs VALUES (1, 1, 'a')")
    state, before, after = branch_of(
        state,
        "INSERT OR REPLACE INTO people VALUES ('ada', 37)",
        "DELETE FROM people WHERE name = 'bob'",
        "INSERT INTO pairs VALUES (1, 2, 'b')",
        "UPDATE pairs SET v = 1.0 WHERE y = 1",
    )
    found = {table.table.name: table for table in diff(before, after).tables}
    assert [(c.kind, c.old, c.new) for c in found["people"].changes] == [
        ("updated", ("ada", 36), ("ada", 37)),
        ("deleted", ("bob", 1), None),
    ]
    assert [(c.kind, c.new) for c in found["pairs"].changes] == [("added", (1, 2, "b")), ("updated", (1, 1, 1.0))]
    assert found["seen"].count("added") == 1


def test_the_same_is_no_difference(state: Any) -> None:
    """Also where only the pages differ."""
    write(state, "INSERT INTO people VALUES ('ada', 36)")
    state, before, after = branch_of(state, "UPDATE people SET age = 1", "UPDATE people SET age = 36")
    assert diff(before, after).empty


def test_a_number_and_its_like_differ(state: Any) -> None:
    """1, 1.0 and '1' are three values, and so are 'a' and x'61'."""
    write(state, "INSERT INTO plain VALUES (1, 'a')")
    state, before, after = branch_of(state, "UPDATE plain SET a = 1.0", "UPDATE plain SET b = x'61'")
    (table,) = diff(before, after).tables
    assert [(c.kind, c.old, c.new) for c in table.changes] == [("updated", (1, 1, "a"), (1, 1.0, b"a"))]


def test_new_tables_are_named_and_changed_ones_too(state: Any) -> None:
    """What rows cannot say is said by statements and names."""
    state, before, after = branch_of(
        state, "CREATE TABLE more(id INTEGER PRIMARY KEY)", "ALTER TABLE plain ADD COLUMN c"
    )
    found = diff(before, after)
    assert found.created == ("CREATE TABLE more(id INTEGER PRIMARY KEY)",)
    assert found.altered == ("table plain",)


def test_a_branch_is_laid_to_the_last_row(state: Any) -> None:
    """Triggers and foreign keys do not act again; new tables, rows without a key and counters come along."""
    write(
        state,
        "INSERT INTO people VALUES ('ada', 36)",
        "INSERT INTO plain VALUES (1, 2), (1, 2), (3, 4)",
        "INSERT INTO numbered(v) VALUES ('one'), ('two')",
        "INSERT INTO parents VALUES (1), (2)",
        "INSERT INTO children VALUES (1, 1), (2, 2)",
    )
    state, before, after = branch_of(
        state,
        "INSERT INTO people VALUES ('bob', 1)",
        "DELETE FROM plain WHERE rowid = 2",
        "UPDATE numbered SET v = 'three' WHERE id = 1",
        "UPDATE numbered SET v = 'one' WHERE id = 2",
        "INSERT INTO numbered(v) VALUES ('four')",
        "UPDATE parents SET id = 9 WHERE id = 2 AND 0",
        "DELETE FROM parents WHERE id = 1",
        "CREATE TABLE more(id INTEGER PRIMARY KEY, v)",
        "CREATE INDEX more_v ON more(v)",
        "INSERT INTO more VALUES (7, 'x')",
    )
    lay(state, before, after)
    assert diff(image(state), after, exactly=True).empty
    assert state.rows("SELECT count(*) FROM seen") == [(2,)]
    assert state.rows("SELECT id FROM children") == [(2,)]
    write(state, "INSERT INTO people VALUES ('cy', 2)")
    assert state.rows("SELECT count(*) FROM seen") == [(3,)], "triggers act again afterwards"


def test_full_text_is_laid_too(opened: Callable[..., Any]) -> None:
    """What a virtual table keeps is rows like any other."""
    one = opened()
    one.script("CREATE VIRTUAL TABLE notes USING fts5(body)")
    write(one, "INSERT INTO notes VALUES ('the first')")
    one, before, after = branch_of(one, "INSERT INTO notes VALUES ('another one')")
    lay(one, before, after)
    assert diff(image(one), after, exactly=True).empty
    again = one.reopened()
    assert again.rows("SELECT body FROM notes WHERE notes MATCH 'another'") == [("another one",)]


def test_rows_that_contradict_nothing_are_brought_back(state: Any) -> None:
    """Rows the object lacks, and updates whose old values still stand; the rest is listed and left."""
    write(state, "INSERT INTO people VALUES ('ada', 1), ('bob', 1), ('cy', 1), ('dan', 1)")
    state, before, after = branch_of(
        state,
        "INSERT INTO people VALUES ('eve', 5), ('fay', 6)",
        "UPDATE people SET age = 2 WHERE name IN ('ada', 'bob')",
        "DELETE FROM people WHERE name = 'cy'",
        "INSERT INTO plain VALUES (1, 2)",
        "INSERT INTO numbered(v) VALUES ('lost')",
        "CREATE TABLE more(id INTEGER PRIMARY KEY)",
        "INSERT INTO more VALUES (1)",
    )
    write(
        state,
        "UPDATE people SET age = 9 WHERE name = 'bob'",
        "INSERT INTO people VALUES ('fay', 7)",
        "INSERT INTO numbered(v) VALUES ('served')",
    )
    applied = bring(state, before, after)
    assert state.rows("SELECT name, age FROM people ORDER BY name") == [
        ("ada", 2),
        ("bob", 9),
        ("cy", 1),
        ("dan", 1),
        ("eve", 5),
        ("fay", 7),
    ]
    assert applied.rows == 2
    assert reasons(applied) == [
        ("more", "added", "the object has no such table"),
        ("numbered", "added", "another row is here"),
        ("people", "added", "another row is here"),
        ("people", "deleted", "it was deleted there, and is here"),
        ("people", "updated", "another row is here"),
        ("plain", "added", "the table has no primary key"),
        ("seen", "added", "the table has no primary key"),
        ("seen", "added", "the table has no primary key"),
    ]
    again = bring(state, before, after)
    assert (again.rows, again.already, len(again.left)) == (0, 2, 8), "done again, nothing more is done"


def test_rows_that_need_each_other_come_in_order(state: Any) -> None:
    """A child whose parent comes with it goes in; one whose parent is nowhere is left."""
    write(state, "INSERT INTO parents VALUES (1)")
    state, before, after = branch_of(
        state, "INSERT INTO parents VALUES (5)", "INSERT INTO children VALUES (1, 5), (2, 1)"
    )
    write(state, "DELETE FROM parents WHERE id = 1")
    applied = bring(state, before, after)
    assert state.rows("SELECT id, parent FROM children") == [(1, 5)]
    assert [(left.table, left.change.identity) for left in applied.left] == [("children", (2,))]


def test_idempotency_records_come_along(state: Any) -> None:
    """A repeat of a lost call is answered as it was; a key that both sides used is listed."""
    record = "INSERT INTO _domicile_idempotency(key, method, digest, answer, at_ms) VALUES (?, 'm', x'00', ?, 1)"

    def lost() -> None:
        state.tx.own(lambda: [state.db.write(record, (key, b"lost")) for key in ("k1", "k2")])

    state, before, after = lose(state, lost)
    state.tx.own(lambda: state.db.write(record, ("k2", b"served")))
    applied = bring(state, before, after)
    answers = state.db.read("SELECT key, answer FROM _domicile_idempotency ORDER BY key")
    assert answers == [("k1", b"lost"), ("k2", b"served")]
    assert [(left.table, left.change.identity, left.why) for left in applied.left] == [
        ("_domicile_idempotency", ("k2",), "another row is here")
    ]


values = st.one_of(st.none(), st.integers(-3, 3), st.text("ab", max_size=2), st.binary(max_size=2))
keys = st.integers(1, 4)
statements = st.one_of(
    st.tuples(st.just("INSERT OR REPLACE INTO numbered(id, v) VALUES (?, ?)"), st.tuples(keys, values)),
    st.tuples(st.just("INSERT OR REPLACE INTO pairs VALUES (?, ?, ?)"), st.tuples(keys, keys, values)),
    st.tuples(st.just("INSERT OR REPLACE INTO people VALUES (?, ?)"), st.tuples(values, values)),
    st.tuples(st.just("INSERT INTO plain VALUES (?, ?)"), st.tuples(values, values)),
    st.tuples(st.just("UPDATE OR REPLACE numbered SET id = ? WHERE id = ?"), st.tuples(keys, keys)),
    st.tuples(st.just("DELETE FROM people WHERE name IS ?"), st.tuples(values)),
    st.tuples(st.just("DELETE FROM plain WHERE rowid = ?"), st.tuples(keys)),
    st.tuples(st.just("DELETE FROM pairs WHERE x = ?"), st.tuples(keys)),
)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.lists(statements, max_size=12), st.lists(statements, min_size=1, max_size=12))
def test_any_branch_can_be_laid(opened: Callable[..., Any], first: list[Any], then: list[Any]) -> None:
    """Whatever was written, laying the difference gives the branch, and nothing else is different."""
    one = opened()
    write(one, *SCHEMA[:4])

    def run(writes: list[Any]) -> None:
        one.ok(lambda: [one.sql.exec(sql, *params) for sql, params in writes] and None)

    run(first)
    again, before, after = lose(one, lambda: run(then))
    lay(again, before, after)
    assert diff(image(again), after, exactly=True).empty
    assert diff(image(again), after).empty
    again.db.close()
