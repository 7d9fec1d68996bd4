"""An object's schema, brought up to date inside the first call's transaction (API, "Python").

A migration is SQL with the rights of the object's own methods; once applied, its text is fixed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from domicile.errors import DomicileError, MethodFailed
from domicile.node.sqlite.sql import SqlApi


@dataclass(frozen=True, slots=True)
class Migration:
    """`name` orders migrations (0001_bids.sql); `digest` of the text tells whether it was changed."""

    name: str
    sql: str
    digest: bytes


def apply(sql: SqlApi, migrations: Sequence[Migration], now_ms: int) -> list[str]:
    """Apply what is missing, in name order, and give its names. Runs inside a call, as part of its transaction.

    Raises MethodFailed, naming the migration, when one fails, was changed after it was applied, or is gone.
    """
    applied = dict(sql.read("SELECT name, digest FROM _domicile_migrations"))
    known = {migration.name: migration for migration in migrations}
    if len(known) != len(migrations):
        raise _refused("two migrations have the same name")
    for name, digest in sorted(applied.items()):
        if name not in known:
            raise _refused(f"migration {name} was applied to this object and is not in the app any more; put it back")
        if known[name].digest != digest:
            raise _refused(f"migration {name} was changed after it was applied; undo that and add a new migration")
    missing = sorted(known.keys() - applied.keys())
    for name in missing:
        _apply_one(sql, known[name], now_ms)
    return missing


def _apply_one(sql: SqlApi, migration: Migration, now_ms: int) -> None:
    try:
        sql.exec(migration.sql)
    except DomicileError as error:
        raise _refused(f"migration {migration.name}: {error.detail}") from error
    row = (migration.name, migration.digest, now_ms)
    sql.write("INSERT INTO _domicile_migrations(name, digest, at_ms) VALUES (?, ?, ?)", row)


def _refused(message: str) -> MethodFailed:
    return MethodFailed(message, type="MigrationFailed", message=message)
