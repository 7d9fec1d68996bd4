"""What the SQL of an object may do (PROTOCOLS section 6).

SQLite asks while it prepares a statement; a statement that is prepared already costs nothing. Installed once: setting
an authorizer anew would expire every prepared statement, so `internal` is flipped instead. Because prepared statements
are found by their text, internal SQL carries a mark that no user can write (`Database`).
"""

from __future__ import annotations

from functools import lru_cache

import apsw

REASONS_REMEMBERED = 4096
_OWN = "_domicile_"

_TRANSACTION = "transactions are the runtime's: a call is one; use `with self.sql.tx():` to undo a part of it"
_FILES = "an object has one database and no other files; call another object to reach its data"
_TEMP = "temporary tables, views and triggers do not move with the object; use ordinary ones, or a CTE"
_OWN_TABLES = "tables named _domicile_… are the runtime's; use self.kv, self.set_alarm and self.alarms"


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_READ_PRAGMAS = _words(
    """
    table_info table_xinfo table_list index_list index_info index_xinfo foreign_key_list foreign_key_check
    integrity_check quick_check collation_list function_list pragma_list compile_options data_version
    user_version application_id schema_version freelist_count page_count page_size max_page_count encoding
    journal_mode locking_mode synchronous auto_vacuum cache_size mmap_size temp_store foreign_keys
    defer_foreign_keys recursive_triggers secure_delete query_only busy_timeout wal_autocheckpoint optimize
    analysis_limit
    """
)
"""Pragmas that may be asked. Those of them that take an argument to look something up are named again below."""

_ARGUMENT_PRAGMAS = _words(
    """
    table_info table_xinfo table_list index_list index_info index_xinfo foreign_key_list foreign_key_check
    integrity_check quick_check user_version defer_foreign_keys optimize analysis_limit
    """
)
"""Pragmas that may have an argument: look-ups, and settings that live in the file or end with the transaction."""

_MODULES = frozenset({"fts5", "fts5vocab", "rtree", "rtree_i32", "geopoly"})
_FUNCTIONS = frozenset({"load_extension", "fts3_tokenizer", "readfile", "writefile", "edit", "sqlite_log"})
_TABLES = frozenset(
    {"sqlite_stmt", "sqlite_dbpage", "sqlite_dbdata", "sqlite_dbptr", "dbstat", "bytecode", "tables_used", "carray"}
)
"""Eponymous tables that show other statements or raw pages."""

_FIXED = {
    apsw.SQLITE_TRANSACTION: ("{0}", _TRANSACTION),
    apsw.SQLITE_SAVEPOINT: ("SAVEPOINT", _TRANSACTION),
    apsw.SQLITE_ATTACH: ("ATTACH and VACUUM INTO", _FILES),
    apsw.SQLITE_DETACH: ("DETACH", _FILES),
    apsw.SQLITE_CREATE_TEMP_TABLE: ("CREATE TEMP TABLE", _TEMP),
    apsw.SQLITE_CREATE_TEMP_VIEW: ("CREATE TEMP VIEW", _TEMP),
    apsw.SQLITE_CREATE_TEMP_TRIGGER: ("CREATE TEMP TRIGGER", _TEMP),
    apsw.SQLITE_CREATE_TEMP_INDEX: ("CREATE TEMP INDEX", _TEMP),
}

_TABLE_ACTIONS = frozenset(
    {
        apsw.SQLITE_READ,
        apsw.SQLITE_INSERT,
        apsw.SQLITE_UPDATE,
        apsw.SQLITE_DELETE,
        apsw.SQLITE_CREATE_TABLE,
        apsw.SQLITE_DROP_TABLE,
        apsw.SQLITE_CREATE_INDEX,
        apsw.SQLITE_DROP_INDEX,
        apsw.SQLITE_CREATE_TRIGGER,
        apsw.SQLITE_DROP_TRIGGER,
        apsw.SQLITE_CREATE_VIEW,
        apsw.SQLITE_DROP_VIEW,
        apsw.SQLITE_ALTER_TABLE,
        apsw.SQLITE_DROP_VTABLE,
        # ANALYZE and REINDEX are not here: over the whole database they visit the internal tables and harm nothing.
    }
)


class Authorizer:
    """The door keeper of one connection.

    `internal` is True only while the runtime prepares and runs SQL of its own. `refused` says why the last statement
    was denied; whoever catches the denial takes it.
    """

    def __init__(self) -> None:
        self.internal = False
        self.refused: str | None = None

    def __call__(self, action: int, one: str | None, two: str | None, db: str | None, via: str | None) -> int:
        """SQLite's callback: SQLITE_OK or SQLITE_DENY."""
        if self.internal:
            return apsw.SQLITE_OK
        reason = _reason(action, one, two)
        if reason is None:
            return apsw.SQLITE_OK
        self.refused = reason
        return apsw.SQLITE_DENY

    def take(self) -> str | None:
        """Give the reason of the last denial and forget it."""
        reason, self.refused = self.refused, None
        return reason


@lru_cache(maxsize=REASONS_REMEMBERED)
def _reason(action: int, one: str | None, two: str | None) -> str | None:
    """Why it is refused; None where it is not. Remembered: the objects of a class ask for the same again and again."""
    if fixed := _FIXED.get(action):
        return f"{fixed[0].format(one)} is refused: {fixed[1]}"
    if action in _TABLE_ACTIONS:
        return _table_reason(action, one or "", two or "")
    if action == apsw.SQLITE_PRAGMA:
        return _pragma_reason((one or "").lower(), two)
    if action == apsw.SQLITE_FUNCTION and (two or "").lower() in _FUNCTIONS:
        return f"the function {two} is refused: {_FILES}"
    if action == apsw.SQLITE_CREATE_VTABLE and (two or "").lower() not in _MODULES:
        return f"virtual tables of the module {two} are refused: objects may use {', '.join(sorted(_MODULES))}"
    if action == apsw.SQLITE_CREATE_VTABLE and (one or "").lower().startswith(_OWN):
        return f"{one} is refused: {_OWN_TABLES}"
    return None


def _table_reason(action: int, one: str, two: str) -> str | None:
    table = one.lower()
    if table.startswith(_OWN):
        return f"{one} is refused: {_OWN_TABLES}"
    if action not in (apsw.SQLITE_READ, apsw.SQLITE_UPDATE) and two.lower().startswith(_OWN):
        return f"{two} is refused: {_OWN_TABLES}"  # an index or a trigger on one of ours
    if table in _TABLES:
        return f"{one} is refused: it shows other statements or raw pages"
    return None


def _pragma_reason(name: str, argument: str | None) -> str | None:
    if name not in _READ_PRAGMAS:
        return f"PRAGMA {name} is refused: the runtime keeps the file's mode, its log and its limits"
    if argument is None or name in _ARGUMENT_PRAGMAS:
        return None
    if name == "foreign_keys":
        if argument.strip("'\"").lower() in ("1", "on", "yes", "true"):
            return None
        return "PRAGMA foreign_keys=OFF is refused: they are always enforced; PRAGMA defer_foreign_keys=ON may help"
    return f"PRAGMA {name} may be read, not set: the runtime keeps the file's mode, its log and its limits"
