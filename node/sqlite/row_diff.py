"""What differs between two databases, row by row (PROTOCOLS section 10, "RecoverIncident"). Pure: bytes in, values out.

Rows are told apart by their declared primary key, which is what people know them by; rows of a table without one by
their rowid, which is the same in two states of one history. `exactly` goes by rowid wherever there is one: what it
gives turns one state into the other to the last row.
"""

# ruff: noqa: S608 - every name goes through `quoted`

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import apsw

Row = tuple[Any, ...]
Read = Callable[[str, Sequence[Any]], list[Row]]
Kind = Literal["added", "updated", "deleted"]

ROWIDS = ("rowid", "_rowid_", "oid")
JOURNAL_MODE_AT, ROLLBACK = slice(18, 20), b"\x01\x01"  # of the file's header: a WAL file cannot be read from memory

_TABLES = "SELECT name, type, wr FROM pragma_table_list WHERE schema = 'main' AND type IN ('table', 'shadow')"
_COLUMNS = "SELECT name, upper(type), pk, hidden FROM pragma_table_xinfo(?)"
_COUNTERS = "SELECT name, seq FROM sqlite_sequence"
_SCHEMA = "SELECT type, name, sql FROM sqlite_schema WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite@_%' ESCAPE '@'"


@dataclass(frozen=True, slots=True)
class Table:
    """One table. `key`: its declared primary key, () for none. `rowid`: a name for it, None where there is none.

    `columns` are those that are stored as they were given. `shadow`: a virtual table keeps its content there.
    """

    name: str
    columns: tuple[str, ...]
    key: tuple[str, ...]
    rowid: str | None
    shadow: bool = False


@dataclass(frozen=True, slots=True)
class Change:
    """One row. `identity` are the values it is told apart by, `old` and `new` all columns; None where there is none."""

    kind: Kind
    identity: Row
    old: Row | None
    new: Row | None


@dataclass(frozen=True, slots=True)
class TableDiff:
    """The changed rows of one table. `by`: the columns of `Change.identity`; `columns`: those of the rows."""

    table: Table
    by: tuple[str, ...]
    columns: tuple[str, ...]
    changes: tuple[Change, ...]

    def count(self, kind: Kind) -> int:
        return sum(change.kind == kind for change in self.changes)


@dataclass(frozen=True, slots=True)
class Diff:
    """What makes `after` of `before`. `created` are statements of what is new, in an order in which they can run;
    `altered` names what was changed or dropped, which rows cannot say. `counters`: (table, last AUTOINCREMENT) behind
    it, all of them; they are no difference by themselves."""

    tables: tuple[TableDiff, ...]
    created: tuple[str, ...] = ()
    altered: tuple[str, ...] = ()
    counters: tuple[Row, ...] = ()

    @property
    def empty(self) -> bool:
        return not (self.tables or self.created or self.altered)


def quoted(name: str) -> str:
    """An identifier as SQL."""
    return '"' + name.replace('"', '""') + '"'


def tables(read: Read) -> dict[str, Table]:
    """The tables that hold rows, virtual ones' own included, SQLite's statistics left out."""
    found = {}
    for name, kind, without_rowid in read(_TABLES, ()):
        if not name.startswith("sqlite_"):
            found[name] = _table(read, name, shadow=kind == "shadow", without_rowid=bool(without_rowid))
    return found


def _table(read: Read, name: str, *, shadow: bool, without_rowid: bool) -> Table:
    described = read(_COLUMNS, (name,))
    columns = tuple(column for column, _, _, hidden in described if hidden == 0)
    numbered = sorted((pk, column, kind) for column, kind, pk, _ in described if pk)
    key = tuple(column for _, column, _ in numbered)
    if len(numbered) == 1 and numbered[0][2] == "INTEGER":
        return Table(name, columns, key, numbered[0][1], shadow)  # the rowid itself
    taken = {column.lower() for column in columns}
    rowid = None if without_rowid else next((alias for alias in ROWIDS if alias not in taken), None)
    return Table(name, columns, key, rowid, shadow)


def diff(before: bytes, after: bytes, *, exactly: bool = False) -> Diff:
    """What makes the database `after` of the database `before`; both are SQLite files.

    Raises apsw.Error when one is no database.
    """
    connection = _both(before, after)
    try:
        return _diff(connection, exactly=exactly)
    finally:
        connection.close(True)


def _both(before: bytes, after: bytes) -> apsw.Connection:
    connection = apsw.Connection(":memory:")
    connection.execute("ATTACH ':memory:' AS after").fetchall()
    for schema, data in (("main", before), ("after", after)):
        image = bytearray(data)
        image[JOURNAL_MODE_AT] = ROLLBACK
        connection.deserialize(schema, bytes(image))
    return connection


def _diff(connection: apsw.Connection, *, exactly: bool) -> Diff:
    def read(sql: str, params: Sequence[Any]) -> list[Row]:
        return connection.execute(sql, params).fetchall()

    def read_after(sql: str, params: Sequence[Any]) -> list[Row]:
        return other.execute(sql, params).fetchall()

    other = apsw.Connection(":memory:")
    other.deserialize("main", connection.serialize("after"))
    try:
        created, altered = _schema(read(_SCHEMA, ()), read_after(_SCHEMA, ()))
        old, new = tables(read), tables(read_after)
        found = []
        for name, table in sorted(new.items()):
            if name not in old:
                found.append(_all_added(read_after, table, exactly=exactly))
            elif old[name] == table:
                found.append(_rows(read, table, exactly=exactly))
        changed = tuple(one for one in found if one.changes)
        return Diff(changed, created, altered, tuple(read_after(_COUNTERS, ())) if _counts(read_after) else ())
    finally:
        other.close(True)


def _schema(old: list[Row], new: list[Row]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(statements that create what is new, names of what was changed or dropped)."""
    before = {(kind, name): sql for kind, name, sql in old}
    after = {(kind, name): sql for kind, name, sql in new}
    order = {"table": 0, "index": 1, "view": 2, "trigger": 3}
    created = sorted((order[kind], name, sql) for (kind, name), sql in after.items() if (kind, name) not in before)
    altered = sorted(f"{kind} {name}" for (kind, name), sql in before.items() if after.get((kind, name)) != sql)
    return tuple(sql for _, _, sql in created), tuple(altered)


def _counts(read: Read) -> bool:
    """SQLite makes the table of counters with the first table that has one."""
    return bool(read("SELECT 1 FROM sqlite_schema WHERE name = 'sqlite_sequence'", ()))


def _told_apart_by(table: Table, *, exactly: bool) -> tuple[str, ...]:
    if table.rowid is not None and (exactly or not table.key):
        return (table.rowid,)
    return table.key


def _stored(table: Table, by: tuple[str, ...]) -> tuple[str, ...]:
    """The columns of a row, the rowid among them where rows are told apart by it."""
    return tuple(column for column in by if column not in table.columns) + table.columns


def _all_added(read: Read, table: Table, *, exactly: bool) -> TableDiff:
    by = _told_apart_by(table, exactly=exactly)
    columns = _stored(table, by)
    rows = read(f"SELECT {_list(by)}, {_list(columns)} FROM {quoted(table.name)}", ())
    changes = tuple(Change("added", row[: len(by)], None, row[len(by) :]) for row in rows)
    return TableDiff(table, by, columns, changes)


def _rows(read: Read, table: Table, *, exactly: bool) -> TableDiff:
    by = _told_apart_by(table, exactly=exactly)
    if by and by == table.key and by != (table.rowid,) and _has_nulls(read, table):
        by = _told_apart_by(table, exactly=True)
    columns = _stored(table, by)
    count, width = len(by), len(columns)
    name, same_row = quoted(table.name), " AND ".join(f"a.{quoted(c)} IS b.{quoted(c)}" for c in by)
    a, b = _list(columns, "a"), _list(columns, "b")
    missing = "SELECT {0}, {1} FROM {2} WHERE NOT EXISTS (SELECT 1 FROM {3} WHERE " + same_row + ")"
    main, after = f"main.{name} AS b", f"after.{name} AS a"
    added = read(missing.format(_list(by, "a"), a, after, main), ())
    deleted = read(missing.format(_list(by, "b"), b, main, after), ())
    same = " AND ".join(
        f"a.{quoted(c)} IS b.{quoted(c)} COLLATE BINARY AND typeof(a.{quoted(c)}) = typeof(b.{quoted(c)})"
        for c in columns
    )
    both = f"SELECT {_list(by, 'a')}, {b}, {a} FROM {after} JOIN {main} ON {same_row}"
    updated = read(f"{both} WHERE NOT ({same})", ())
    changes = [Change("added", row[:count], None, row[count:]) for row in added]
    changes += [Change("updated", row[:count], row[count : count + width], row[count + width :]) for row in updated]
    changes += [Change("deleted", row[:count], row[count:], None) for row in deleted]
    return TableDiff(table, by, columns, tuple(changes))


def _has_nulls(read: Read, table: Table) -> bool:
    """SQLite lets a key of a table with rowids be NULL, more than once."""
    null = " OR ".join(f"{quoted(column)} IS NULL" for column in table.key)
    both = (f"SELECT 1 FROM {schema}.{quoted(table.name)} WHERE {null}" for schema in ("main", "after"))
    return bool(read(" UNION ".join(both) + " LIMIT 1", ()))


def _list(columns: Sequence[str], of: str = "") -> str:
    return ", ".join(f"{of}.{quoted(column)}" if of else quoted(column) for column in columns)


def cell(value: Any, chars: int) -> Any:
    """A value as a person reads it: text and bytes are cut at `chars` characters, bytes shown as hex."""
    if isinstance(value, bytes):
        shown = value[: chars // 2].hex()
        return f"x'{shown}'" if len(value) <= chars // 2 else f"x'{shown}…' ({len(value)} bytes)"
    if isinstance(value, str) and len(value) > chars:
        return f"{value[:chars]}… ({len(value)} characters)"
    return value
