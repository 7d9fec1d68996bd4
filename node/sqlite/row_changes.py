"""Bringing changed rows into an object that is awake (PROTOCOLS section 10, "RecoverIncident").

`lay_rows` makes the object what the lost branch was, where nothing was written since; `apply_rows` brings in what does
not contradict what was: rows the object lacks, and updates whose old values still stand. Both run inside a transaction
of the caller's, who has set the connection up by `Database.rebuilding`: triggers have run once already.
"""

# ruff: noqa: S608 - every name goes through `quoted`

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from domicile.errors import SqlError
from domicile.node.sqlite.database import Database
from domicile.node.sqlite.row_diff import Change, Diff, Row, Table, TableDiff, quoted, tables

IDEMPOTENCY = "_domicile_idempotency"
FACTS = frozenset({"_domicile_meta", "_domicile_migrations"})
"""What the runtime notes of the object's own history: the served side has its own."""
APPLY_SAVEPOINT = 0


@dataclass(frozen=True, slots=True)
class Left:
    """A row that was not brought in, and why."""

    table: str
    change: Change
    why: str


@dataclass(slots=True)
class Applied:
    """What became of the changes: `rows` brought in, `already` there, `left`."""

    rows: int = 0
    already: int = 0
    left: list[Left] = field(default_factory=list)


def lay_rows(db: Database, diff: Diff) -> None:
    """Exactly `diff`, which was told apart exactly, from exactly its beginning.

    Raises DomicileError: then the caller rolls back.
    """
    assert not diff.altered
    made_tables = [sql for sql in diff.created if sql[:12].upper() == "CREATE TABLE"]
    for sql in made_tables:
        db.write(sql)
    for table in diff.tables:
        name, where = quoted(table.table.name), _where(table.by)
        for change in table.changes:
            if change.kind != "added":
                db.write(f"DELETE FROM {name} WHERE {where}", change.identity)
        for change in table.changes:
            if change.new is not None:
                db.write(_insert(name, table.columns), change.new)
    for sql in diff.created:
        if sql not in made_tables:
            db.write(sql)
    if diff.counters:
        db.write("DELETE FROM sqlite_sequence")
        for counter in diff.counters:
            db.write("INSERT INTO sqlite_sequence(name, seq) VALUES (?, ?)", counter)


def apply_rows(db: Database, diff: Diff) -> Applied:
    """What can be brought in of `diff`, told apart by keys; idempotency records go with it. Raises DomicileError."""
    there = tables(lambda sql, params: db.read(sql, tuple(params)))
    applied = Applied()
    waiting: list[tuple[TableDiff, Change]] = []
    for table in diff.tables:
        if table.table.name in FACTS:
            continue
        if (why := _unfit(table.table, there.get(table.table.name))) is not None:
            applied.left += [Left(table.table.name, change, why) for change in table.changes]
        else:
            fit = _by_idempotency_key(table) if table.table.name == IDEMPOTENCY else table
            waiting += [(fit, change) for change in fit.changes]
    _apply_all(db, waiting, applied)
    return applied


def _unfit(table: Table, there: Table | None) -> str | None:
    if there is None:
        return "the object has no such table"
    if there != table:
        return "the table has other columns now"
    if table.shadow:
        return "a virtual table keeps its content there"
    return None if table.key else "the table has no primary key"


def _by_idempotency_key(table: TableDiff) -> TableDiff:
    """Records are one for each key; `id`, their order of arrival, is drawn anew."""
    places = [at for at, column in enumerate(table.columns) if column != "id"]
    key_at = table.columns.index("key")

    def without_id(row: Row | None) -> Row | None:
        return None if row is None else tuple(row[at] for at in places)

    changes = []
    for change in table.changes:
        row = change.new or change.old
        assert row is not None
        changes.append(Change(change.kind, (row[key_at],), without_id(change.old), without_id(change.new)))
    columns = tuple(table.columns[at] for at in places)
    return TableDiff(table.table, ("key",), columns, tuple(changes))


def _apply_all(db: Database, waiting: list[tuple[TableDiff, Change]], applied: Applied) -> None:
    """Again and again, as long as something more goes in: a row may need another one first."""
    while waiting:
        again: list[tuple[TableDiff, Change, str]] = []
        for table, change in waiting:
            why = _apply(db, table, change, applied)
            if why is not None:
                again.append((table, change, why))
        if len(again) == len(waiting):
            applied.left += [Left(table.table.name, change, why) for table, change, why in again]
            return
        waiting = [(table, change) for table, change, _ in again]


def _apply(db: Database, table: TableDiff, change: Change, applied: Applied) -> str | None:
    """None: brought in, or there already. Else why not."""
    name, where = quoted(table.table.name), _where(table.by)
    found = db.read(f"SELECT {_names(table.columns)} FROM {name} WHERE {where}", change.identity)
    now = found[0] if found else None
    if _same(now, change.new):
        applied.already += 1
        return None
    if change.kind == "deleted":
        return "it was deleted there, and is here"
    if not _same(now, change.old):
        return "another row is here" if now is not None else "the row it updated is gone"
    assert change.new is not None
    db.savepoint(APPLY_SAVEPOINT)
    try:
        if now is not None:
            sets = ", ".join(f"{quoted(column)} = ?" for column in table.columns)
            db.write(f"UPDATE {name} SET {sets} WHERE {where}", (*change.new, *change.identity))
        else:
            db.write(_insert(name, table.columns), change.new)
    except SqlError as error:
        db.undo(APPLY_SAVEPOINT)
        return error.detail
    db.release(APPLY_SAVEPOINT)
    applied.rows += 1
    return None


def _same(one: Row | None, other: Row | None) -> bool:
    """As SQLite stores them: 1 is not 1.0."""
    if one is None or other is None:
        return one is other
    return one == other and all(type(a) is type(b) for a, b in zip(one, other, strict=True))


def _insert(name: str, columns: Sequence[str]) -> str:
    return f"INSERT INTO {name}({_names(columns)}) VALUES ({', '.join('?' * len(columns))})"


def _where(columns: Sequence[str]) -> str:
    return " AND ".join(f"{quoted(column)} IS ?" for column in columns)


def _names(columns: Sequence[str]) -> str:
    return ", ".join(quoted(column) for column in columns)
