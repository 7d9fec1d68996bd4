"""What an object's SQL may do, and what is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from domicile.errors import SqlError, SqlRefused

_TRANSACTIONS = [
    "BEGIN",
    "/*x*/ begin",
    "BEGIN EXCLUSIVE",
    "BEGIN; INSERT INTO t VALUES (9, 9); COMMIT",
    "-- x\nCOMMIT",
    "END",
    "end transaction",
    "ROLLBACK",
    "SAVEPOINT a",
    "RELEASE a",
    "ROLLBACK TO a",
]
_FILES = [
    "ATTACH '{dir}/x.db' AS z",
    "ATTACH 'file:{dir}/x.db' AS z",
    "ATTACH ':memory:' AS z",
    "ATTACH '' AS z",
    "/*c*/ attach database '{dir}/x.db' as z",
    "DETACH z",
    "VACUUM",
    "VACUUM INTO '{dir}/e.db'",
    "SELECT load_extension('x')",
    "PRAGMA temp_store_directory='/'",
    "PRAGMA writable_schema=ON",
    "CREATE VIRTUAL TABLE v USING dbstat",
    "CREATE VIRTUAL TABLE v USING csv(filename='/etc/passwd')",
    "CREATE VIRTUAL TABLE v USING fts4(x)",
    "SELECT * FROM dbstat",
]
_TEMPORARY = [
    "CREATE TEMP TABLE z(x)",
    "CREATE TEMPORARY VIEW z AS SELECT 1",
    "CREATE TEMP TRIGGER z AFTER INSERT ON t BEGIN SELECT 1; END",
]
_OWN = [
    "SELECT * FROM _domicile_kv",
    'SELECT count(*) FROM "_DOMICILE_KV"',
    "WITH x AS (SELECT * FROM _domicile_meta) SELECT * FROM x",
    "INSERT INTO _domicile_kv VALUES ('a', 'b')",
    "UPDATE _domicile_alarms SET due_ms = 0",
    "DELETE FROM _domicile_idempotency",
    "DROP TABLE _domicile_kv",
    "ALTER TABLE _domicile_kv ADD COLUMN x",
    "ALTER TABLE _domicile_kv RENAME TO mine",
    "CREATE TABLE _domicile_x(a)",
    "CREATE INDEX mine ON _domicile_kv(value)",
    "CREATE TRIGGER mine AFTER INSERT ON _domicile_kv BEGIN SELECT 1; END",
    "DROP INDEX _domicile_alarms_due",
    "CREATE VIRTUAL TABLE _domicile_f USING fts5(x)",
]
_MODES = [
    f"PRAGMA {prefix}journal_mode={mode}"
    for prefix in ("", "main.")
    for mode in ("DELETE", "TRUNCATE", "PERSIST", "MEMORY", "OFF", "delete", "WAL")
] + [
    "/* c */ PRAGMA journal_mode = DELETE",
    "-- c\npragma JOURNAL_MODE(delete)",
    "PRAGMA locking_mode=NORMAL",
    "PRAGMA page_size=512",
    "PRAGMA wal_checkpoint",
    "PRAGMA wal_checkpoint(PASSIVE)",
    "PRAGMA wal_autocheckpoint=0",
    "PRAGMA synchronous=OFF",
    "PRAGMA max_page_count=1000000",
    "PRAGMA mmap_size=1000000",
    "PRAGMA foreign_keys=OFF",
    "PRAGMA query_only=ON",
    "PRAGMA auto_vacuum=1",
    "PRAGMA incremental_vacuum",
    "PRAGMA cache_size=10",
    "PRAGMA temp_store=2",
    "PRAGMA trusted_schema=ON",
    "PRAGMA secure_delete=ON",
    "PRAGMA encoding='UTF-16'",
]


@pytest.mark.parametrize("text", _TRANSACTIONS)
def test_case_79_transaction_control_is_refused_by_name(thing: Any, text: str) -> None:
    """Case 79: BEGIN, COMMIT and their kin name `self.sql.tx()`, keep nothing, and hurt no later call."""
    done = thing.call(lambda: [thing.sql.exec("INSERT INTO t VALUES (1, 1)"), thing.sql.exec(text)])
    assert isinstance(done.error, SqlRefused)
    assert "self.sql.tx()" in done.error.detail
    assert not thing.db.in_transaction
    thing.script("INSERT INTO t VALUES (2, 2)")
    assert thing.rows("SELECT i FROM t") == [(2,)]


def test_case_79_a_swallowed_refusal_commits_nothing_early(thing: Any) -> None:
    """Case 79: a method that swallows the refusal still ends in its one transaction."""

    def method() -> int:
        thing.sql.exec("INSERT INTO t VALUES (1, 1)")
        length = thing.db.length
        for text in _TRANSACTIONS:
            with pytest.raises(SqlRefused):
                thing.sql.exec(text)
        assert thing.db.length == length
        return thing.sql.exec("INSERT INTO t VALUES (2, 2)")

    assert thing.ok(method) == 1
    assert thing.rows("SELECT i FROM t") == [(1,), (2,)]


@pytest.mark.parametrize("text", _FILES)
def test_case_87_no_way_to_other_files(thing: Any, text: str) -> None:
    """Case 87: what reads or writes files, or shows raw pages, is refused and makes no file."""
    before = sorted(thing.path.parent.iterdir())
    done = thing.call(lambda: thing.sql.query(text.format(dir=thing.path.parent)))
    assert isinstance(done.error, SqlRefused)
    assert sorted(thing.path.parent.iterdir()) == before


def test_case_87_functions_that_are_not_there(thing: Any) -> None:
    """Case 87: the shell's file functions do not exist here."""
    with pytest.raises((SqlError, SqlRefused), match="readfile"):
        thing.ok(lambda: thing.sql.query("SELECT readfile('/etc/passwd')"))


@pytest.mark.parametrize("text", _TEMPORARY)
def test_temporary_things_are_refused(thing: Any, text: str) -> None:
    """Temporary tables would be lost when the object moves."""
    with pytest.raises(SqlRefused, match="do not move"):
        thing.ok(lambda: thing.sql.exec(text))


@pytest.mark.parametrize("text", _OWN)
def test_the_runtimes_tables_are_out_of_reach(thing: Any, text: str) -> None:
    """No spelling reads or changes an internal table, and none puts something beside it."""
    with pytest.raises(SqlRefused, match=r"self\.kv"):
        thing.ok(lambda: thing.sql.query(text))


def test_an_internal_table_behind_a_view_or_trigger(thing: Any) -> None:
    """Neither a view nor a trigger reaches an internal table."""
    with pytest.raises(SqlRefused):
        thing.ok(lambda: thing.sql.exec("CREATE VIEW v AS SELECT * FROM _domicile_kv; SELECT * FROM v"))
    trigger = "CREATE TRIGGER g AFTER INSERT ON t BEGIN DELETE FROM _domicile_kv; END"
    with pytest.raises(SqlRefused):
        thing.ok(lambda: [thing.sql.exec(trigger), thing.sql.exec("INSERT INTO t VALUES (1, 1)")])


def test_internal_statements_are_not_found_by_their_text(thing: Any) -> None:
    """A statement the runtime has prepared is not lent to user SQL of the same text."""
    text = "SELECT key FROM _domicile_kv"
    thing.db.begin()
    thing.db.read(text)
    thing.db.rollback()
    with pytest.raises(SqlRefused):
        thing.ok(lambda: thing.sql.query(text))
    with pytest.raises(SqlRefused):
        thing.ok(lambda: thing.sql.exec("COMMIT"))


@pytest.mark.parametrize("text", _MODES)
def test_case_11_the_file_keeps_its_mode(thing: Any, text: str) -> None:
    """Case 11: journal, locking and the other modes are refused, and every write is in the log all the same."""
    length = thing.db.length
    done = thing.call(lambda: [thing.sql.exec("INSERT INTO t VALUES (1, 1)"), thing.sql.query(text)])
    assert isinstance(done.error, SqlRefused)
    assert thing.rows("PRAGMA journal_mode") == [("wal",)]
    assert thing.db.length == length
    thing.script("INSERT INTO t VALUES (2, 2)")
    assert thing.db.length > length


def test_case_11_the_table_form_only_looks(thing: Any) -> None:
    """Case 11: `pragma_journal_mode` tells and changes nothing."""
    assert thing.rows("SELECT * FROM pragma_journal_mode") == [("wal",)]
    with pytest.raises((SqlRefused, SqlError)):
        thing.ok(lambda: thing.sql.query("SELECT * FROM pragma_journal_mode('delete')"))
    assert thing.rows("PRAGMA journal_mode") == [("wal",)]


@pytest.mark.parametrize(
    "text",
    [
        "PRAGMA table_info(t)",
        "SELECT * FROM pragma_table_info('t')",
        "PRAGMA index_list(t)",
        "PRAGMA foreign_key_list(t)",
        "PRAGMA integrity_check",
        "PRAGMA quick_check(5)",
        "PRAGMA foreign_key_check",
        "PRAGMA defer_foreign_keys=ON",
        "PRAGMA foreign_keys=ON",
        "PRAGMA optimize",
        "ANALYZE",
        "REINDEX",
        "PRAGMA user_version=7",
        "CREATE VIRTUAL TABLE f USING fts5(x)",
        "CREATE VIRTUAL TABLE r USING rtree(id, a, b)",
        "SELECT * FROM json_each('[1]')",
        "SELECT * FROM sqlite_master",
        "EXPLAIN QUERY PLAN SELECT * FROM t",
        "ALTER TABLE t ADD COLUMN c INTEGER NOT NULL DEFAULT 1 CHECK (c > 0)",
        "ALTER TABLE t RENAME COLUMN b TO c",
        "CREATE TABLE u AS SELECT * FROM t",
    ],
)
def test_what_is_harmless_works(thing: Any, text: str) -> None:
    """Look-ups, maintenance and the virtual tables that are part of the file are allowed."""
    thing.ok(lambda: thing.sql.query(text) is None)


def test_full_text_search_works_across_calls(thing: Any) -> None:
    """FTS5 reads and writes its own shadow tables in user statements."""
    thing.script("CREATE VIRTUAL TABLE f USING fts5(x)")
    thing.script("INSERT INTO f VALUES ('hello world')")
    again = thing.reopened()
    assert again.rows("SELECT x FROM f WHERE f MATCH 'world'") == [("hello world",)]
    again.script("INSERT INTO f(f) VALUES ('integrity-check')")
    again.db.close()


def test_a_user_version_is_a_write(thing: Any) -> None:
    """What no row count shows is shipped as well."""
    done = thing.call(lambda: thing.sql.exec("PRAGMA user_version=7"))
    assert done.wrote
    assert thing.rows("PRAGMA user_version") == [(7,)]
