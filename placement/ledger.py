"""The embedded store's rows, in one SQLite file: no threads and no promises to callers, only rows and versions.

WAL with `synchronous=FULL`: what `transact` returned lasts. The file is locked exclusively for as long as it is open.
Opening adds 1,000 to the sequence, so that versions a crash or an old copy of the file took back are not given out
again soon, and drops the rows of earlier runs' grants (PROTOCOLS section 2). Grants themselves live in memory: they
never outlast the process. SQLite's errors end here and leave as StoreUnavailable.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeVar

import apsw

from domicile.placement.change_log import Change, ChangeLog
from domicile.placement.snapshots import at_snapshot, page, read_token
from domicile.placement.store import (
    Committed,
    Condition,
    Conflict,
    Grant,
    GrantGone,
    Mutation,
    Page,
    Put,
    Record,
    ScanExpired,
    StoreInUse,
    StoreUnavailable,
    holds,
)

VERSIONS_SKIPPED_AT_OPEN = 1_000
FORMAT = 1
R = TypeVar("R")

_SCHEMA = """
CREATE TABLE IF NOT EXISTS sequence(one INTEGER PRIMARY KEY CHECK (one = 1), version INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS rows(
    key TEXT PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL, created INTEGER NOT NULL, held_by TEXT
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS rows_held ON rows(held_by) WHERE held_by IS NOT NULL;
INSERT OR IGNORE INTO sequence VALUES (1, 0);
"""
_FIND = "SELECT key, value, version, created FROM rows WHERE key = ?"
_FROM = "SELECT key, value, version, created FROM rows WHERE key >= ? ORDER BY key"
_AFTER = "SELECT key, value, version, created FROM rows WHERE key > ? ORDER BY key"
_HELD = "SELECT key, value, version, created FROM rows WHERE held_by = ? ORDER BY key"
_PUT = "INSERT OR REPLACE INTO rows(key, value, version, created, held_by) VALUES (?, ?, ?, ?, ?)"
_DELETE = "DELETE FROM rows WHERE key = ?"
_COUNT = "UPDATE sequence SET version = ?"


@dataclass(slots=True)
class _Lifetime:
    ttl_secs: float
    deadline: float


@dataclass(slots=True)
class _Transaction:
    """What a transaction did so far, published only once it is committed."""

    version: int
    changes: list[Change] = field(default_factory=list)
    grants_dropped: list[Grant] = field(default_factory=list)


class Ledger:
    """All calls from one thread at a time. `monotonic` gives seconds, for grants."""

    def __init__(self, path: str, monotonic: Callable[[], float], vfs: str | None, changes_max: int) -> None:
        """Raises StoreInUse, StoreUnavailable."""
        self._monotonic = monotonic
        self._grants: dict[Grant, _Lifetime] = {}
        self._broken: str | None = None
        try:
            self._db = _connect(path, vfs)
            version = _start_run(self._db)
        except apsw.BusyError as error:
            raise StoreInUse(f"the placement store {path} is open elsewhere: one process owns it") from error
        except (apsw.Error, OSError) as error:
            raise StoreUnavailable(f"the placement store {path} cannot be opened: {error}") from error
        self.log = ChangeLog(version, changes_max)
        self._run = version
        self._granted = 0
        self._at = _Transaction(version)

    def read(self, keys: Sequence[str]) -> dict[str, Record]:
        """Raises StoreUnavailable."""
        self._check()
        try:
            return self._find(keys)
        except (apsw.Error, OSError) as error:
            raise StoreUnavailable(f"the placement store cannot be read: {error}") from error

    def scan(self, prefix: str, limit: int, token: str | None) -> Page:
        """Raises ScanExpired, StoreUnavailable, ValueError for a text that is no token."""
        self._check()
        snapshot, after = (self._at.version, None) if token is None else read_token(token)
        past = self.log.undone(snapshot, prefix)
        if past is None:
            raise ScanExpired("the scan's snapshot is gone")
        sql, start = (_FROM, prefix) if after is None or after < prefix else (_AFTER, after)
        try:
            with closing(self._db.execute(sql, (start,))) as cursor:
                return page(at_snapshot(cursor, prefix, past, start, sql is _AFTER), snapshot, limit)
        except (apsw.Error, OSError) as error:
            raise StoreUnavailable(f"the placement store cannot be read: {error}") from error

    def transact(self, steps: Sequence[Callable[[], R]]) -> list[R | GrantGone]:
        """Run `write` and `revoke` calls in order in one transaction with one sync; each sees those before it.

        A step that finds its grant gone has that as its result and changes nothing. Raises StoreUnavailable for all.
        """
        self._check()
        before, self._at = self._at, _Transaction(self._at.version)
        try:
            self._db.execute("BEGIN IMMEDIATE")
            results = [_result(step) for step in steps]
            if self._at.version != before.version:
                self._db.execute(_COUNT, (self._at.version,))
        except (apsw.Error, OSError) as error:
            self._take_back(before, error, maybe=False)
        try:
            self._db.execute("COMMIT")
        except (apsw.Error, OSError) as error:
            # A full disk cut the commit's own frame short, so recovery can never find it. After any other failure the
            # frame may be whole in the file, and a new start would bring it back.
            self._take_back(before, error, maybe=not _is_full(error))
        for grant in self._at.grants_dropped:
            self._grants.pop(grant, None)
        self.log.append(self._at.changes, self._at.version)
        return results

    def write(
        self, conditions: Sequence[Condition], mutations: Sequence[Mutation], grant: Grant | None
    ) -> Committed | Conflict:
        """Inside `transact` only. Raises GrantGone before anything is changed."""
        current = self._find([condition.key for condition in conditions])
        if not all(holds(condition, current.get(condition.key)) for condition in conditions):
            return Conflict({condition.key: current.get(condition.key) for condition in conditions})
        if grant is not None and (grant not in self._grants or grant in self._at.grants_dropped):
            raise GrantGone(f"the grant {grant} is gone")
        self._change(mutations, grant)
        return Committed(self._at.version)

    def revoke(self, grant: Grant) -> None:
        """Inside `transact` only."""
        cursor: Iterator[Any] = self._db.execute(_HELD, (grant,))
        for old in [Record(*row) for row in cursor]:
            self._db.execute(_DELETE, (old.key,))
            self._at.version += 1
            self._at.changes.append(Change(old.key, self._at.version, old, None))
        self._at.grants_dropped.append(grant)

    def expire(self) -> None:
        """Drop the grants whose time is over, with their rows. Raises StoreUnavailable."""
        now = self._monotonic()
        over = [grant for grant, lifetime in self._grants.items() if lifetime.deadline <= now]
        if over:
            self.transact([lambda grant=grant: self.revoke(grant) for grant in over])  # type: ignore[misc]

    def grant(self, ttl_secs: float) -> Grant:
        """A new grant, known to nobody after this run."""
        self._check()
        self._granted += 1
        grant = Grant(f"{self._run}.{self._granted}")
        self._grants[grant] = _Lifetime(ttl_secs, self._monotonic() + ttl_secs)
        return grant

    def keep(self, grant: Grant) -> None:
        """Raises GrantGone."""
        self._check()
        lifetime = self._grants.get(grant)
        if lifetime is None:
            raise GrantGone(f"the grant {grant} is gone")
        lifetime.deadline = self._monotonic() + lifetime.ttl_secs

    @property
    def broken(self) -> str | None:
        """Why nothing is answered any more, until the file is opened anew; None while all is well."""
        return self._broken

    def close(self) -> None:
        """Let go of the file; what was committed stays."""
        self._broken = self._broken or "closed"
        self._db.close()

    def _check(self) -> None:
        if self._broken is not None:
            raise StoreUnavailable(f"the placement store is out of use: {self._broken}")

    def _find(self, keys: Sequence[str]) -> dict[str, Record]:
        found = {}
        for key in keys:
            if row := self._db.execute(_FIND, (key,)).fetchone():
                found[key] = Record(*row)
        return found

    def _change(self, mutations: Sequence[Mutation], grant: Grant | None) -> None:
        # All of one write carry one version, taken when the first of them really changes something.
        version = self._at.version + 1
        before = self._find([mutation.key for mutation in mutations])
        for mutation in mutations:
            old = before.get(mutation.key)
            if isinstance(mutation, Put):
                new = Record(mutation.key, mutation.value, version, old.created if old else version)
                self._db.execute(_PUT, (new.key, new.value, new.version, new.created, grant))
            elif old is None:
                continue
            else:
                new = None
                self._db.execute(_DELETE, (mutation.key,))
            self._at.version = version
            self._at.changes.append(Change(mutation.key, version, old, new))

    def _take_back(self, before: _Transaction, error: Exception, *, maybe: bool) -> NoReturn:
        self._at = before
        if maybe:
            # Memory and file may disagree, and what a failed sync left the kernel may have dropped: only a new start,
            # reading the file, tells the truth.
            self._broken = f"a commit failed: {error}"
        try:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
        except (apsw.Error, OSError) as again:
            self._broken = f"a rollback failed: {again}"
        raise StoreUnavailable(f"the placement store could not write: {error}", maybe=maybe) from error


def _connect(path: str, vfs: str | None) -> apsw.Connection:
    db = apsw.Connection(path, vfs=vfs)
    try:
        # Exclusive before the first read: no shared memory, and every other opener is refused from here on.
        db.execute("PRAGMA locking_mode=EXCLUSIVE").fetchall()
        db.execute("PRAGMA journal_mode=WAL").fetchall()
        db.execute("PRAGMA synchronous=FULL").fetchall()
    except apsw.Error:
        db.close()
        raise
    return db


def _start_run(db: apsw.Connection) -> int:
    try:
        found = db.execute("PRAGMA user_version").fetchone()
        if found and found[0] > FORMAT:
            raise StoreUnavailable(f"the placement store has format {found[0]}, this release reads up to {FORMAT}")
        db.execute("BEGIN IMMEDIATE")
        db.execute(_SCHEMA).fetchall()
        db.execute("DELETE FROM rows WHERE held_by IS NOT NULL")
        db.execute("UPDATE sequence SET version = version + ?", (VERSIONS_SKIPPED_AT_OPEN,))
        db.execute(f"PRAGMA user_version={FORMAT}").fetchall()
        db.execute("COMMIT")
        return int(db.execute("SELECT version FROM sequence").get)
    except (apsw.Error, StoreUnavailable):
        db.close()
        raise


def _result(step: Callable[[], R]) -> R | GrantGone:
    try:
        return step()
    except GrantGone as gone:
        return gone


def _is_full(error: Exception) -> bool:
    return isinstance(error, apsw.FullError) or (isinstance(error, OSError) and error.errno == errno.ENOSPC)
