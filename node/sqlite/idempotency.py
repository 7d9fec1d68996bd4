"""Records of calls that were made with an idempotency key (PROTOCOLS section 6).

A record is written in the transaction of the call it belongs to: it exists exactly where the call's writes exist.
"""

from __future__ import annotations

from itertools import takewhile

from domicile.errors import KeyReused
from domicile.node.sqlite.database import Database

PRUNED_PER_WRITE = 4  # more than one a write, so that old records shrink; a bound, so that no call pays for many

_FIND = "SELECT method, digest, answer FROM _domicile_idempotency WHERE key = ? AND at_ms >= ?"
_RECORD = "INSERT OR REPLACE INTO _domicile_idempotency(key, method, digest, answer, at_ms) VALUES (?, ?, ?, ?, ?)"
_OLDEST = "SELECT id, at_ms FROM _domicile_idempotency ORDER BY id LIMIT ?"
_DELETE = "DELETE FROM _domicile_idempotency WHERE id <= ?"


def find(database: Database, key: str, method: str, digest: bytes, *, since_ms: int) -> bytes | None:
    """Give the answer recorded under `key` at or after `since_ms`, or None when there is none.

    Raises KeyReused when it was recorded for another method or other arguments.
    """
    rows = database.read(_FIND, (key, since_ms))
    if not rows:
        return None
    recorded_method, recorded_digest, answer = rows[0]
    if recorded_method != method:
        raise KeyReused(f"this idempotency key was used for the method {recorded_method}")
    if recorded_digest != digest:
        raise KeyReused("this idempotency key was used with other arguments")
    return bytes(answer)


def record(database: Database, call: tuple[str, str, bytes], answer: bytes, *, now_ms: int, since_ms: int) -> None:
    """Record the answer of `call` (key, method, digest of the arguments) and drop a few records older than `since_ms`.

    May go past the size cap a little, or a full object could not answer the call that empties it. Raises DatabaseFull.
    """
    oldest = database.read(_OLDEST, (PRUNED_PER_WRITE,))
    old = list(takewhile(lambda row: row[1] < since_ms, oldest))
    if old:
        database.write(_DELETE, (old[-1][0],))
    database.write(_RECORD, (*call, answer, now_ms))
