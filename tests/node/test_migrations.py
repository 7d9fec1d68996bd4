"""Migrations run once, in name order, with the rights of the object's methods."""

from __future__ import annotations

from typing import Any

import pytest
from blake3 import blake3

from domicile.errors import MethodFailed
from domicile.node.sqlite.migrations import Migration, apply


def migration(name: str, sql: str) -> Migration:
    return Migration(name, sql, blake3(sql.encode()).digest())


FIRST = migration("0001_a.sql", "CREATE TABLE a(x); -- first\nCREATE INDEX ax ON a(x);\n")
SECOND = migration("0002_b.sql", "ALTER TABLE a ADD COLUMN y; INSERT INTO a VALUES (1, 2); -- done")


def run(one: Any, *migrations: Migration) -> list[str]:
    names: list[str] = one.ok(lambda: apply(one.sql, migrations, 5))
    return names


def test_missing_migrations_are_applied_in_name_order(thing: Any) -> None:
    """Each runs once, whatever order they are given in, and is remembered with the file."""
    assert run(thing, FIRST) == ["0001_a.sql"]
    thing = thing.reopened()
    assert run(thing, SECOND, FIRST) == ["0002_b.sql"]
    assert run(thing, FIRST, SECOND) == []
    assert thing.rows("SELECT * FROM a") == [(1, 2)]
    thing.db.close()


def test_nothing_to_do_writes_nothing(thing: Any) -> None:
    """An object that is up to date ships nothing when it wakes."""
    run(thing, FIRST)
    assert not thing.call(lambda: apply(thing.sql, [FIRST], 5)).wrote


@pytest.mark.parametrize(
    ("migrations", "words"),
    [
        ([migration("0001_a.sql", "CREATE TABLE other(x)")], "0001_a.sql was changed"),
        ([SECOND], "0001_a.sql was applied to this object and is not in the app"),
        ([FIRST, migration("0002_b.sql", "CREATE TABLE a(x)")], "0002_b.sql: table a already exists"),
        ([FIRST, migration("0002_b.sql", "CREATE TABLE c(x); SELEC")], "0002_b.sql.*syntax"),
        ([FIRST, migration("0002_b.sql", "BEGIN; CREATE TABLE c(x); COMMIT")], "0002_b.sql: BEGIN is refused"),
        ([FIRST, migration("0002_b.sql", "DELETE FROM _domicile_meta")], "0002_b.sql: _domicile_meta is refused"),
        ([FIRST, FIRST], "the same name"),
    ],
)
def test_what_cannot_be_applied_is_named(thing: Any, migrations: list[Migration], words: str) -> None:
    """A failing, changed or missing migration fails the call with its name, and nothing of it stays."""
    run(thing, FIRST)
    schema = thing.rows("SELECT sql FROM sqlite_master")
    with pytest.raises(MethodFailed, match=words) as caught:
        run(thing, *migrations)
    assert caught.value.extra["type"] == "MigrationFailed"
    assert thing.rows("SELECT sql FROM sqlite_master") == schema
    assert run(thing, FIRST, SECOND) == ["0002_b.sql"]
