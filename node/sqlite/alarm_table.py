"""The alarms of one object, in its own storage (PROTOCOLS section 9).

An alarm is taken *before* its handler runs and in the handler's transaction: what the handler sets anew stays, and a
handler that fails brings the alarm back with it. Names, payloads and times were checked by the SDK.
"""

from __future__ import annotations

from dataclasses import replace

from domicile.context import Alarm
from domicile.crontab import Crontab
from domicile.node.sqlite.meta_table import Store

ATTEMPTS_MAX = 6
BACKOFF_FIRST_MS = 2_000
BACKOFF_LAST_MS = 3_600_000

_LIST = "SELECT name, due_ms, payload, cron, attempts, failed FROM _domicile_alarms ORDER BY due_ms, name"
_EARLIEST = "SELECT min(due_ms) FROM _domicile_alarms WHERE failed = 0"
_DUE = (
    "SELECT name, due_ms, payload, cron, attempts, failed FROM _domicile_alarms"
    " WHERE failed = 0 AND due_ms <= ? ORDER BY due_ms, name LIMIT ?"
)
_PUT = (
    "INSERT OR REPLACE INTO _domicile_alarms(name, due_ms, payload, cron, attempts, failed) VALUES (?, ?, ?, ?, ?, ?)"
)
_DELETE = "DELETE FROM _domicile_alarms WHERE name = ? RETURNING 1"
_SAME = "SELECT 1 FROM _domicile_alarms WHERE name = ? AND due_ms = ? AND attempts = ? AND failed = 0"


def set_alarm(store: Store, name: str, due_ms: int, payload: bytes | None = None, cron: str | None = None) -> None:
    """Arm `name`, in place of what it was. With `cron` it is due again at the times of it that follow."""
    _put(store, Alarm(name, due_ms, payload, cron))


def clear_alarm(store: Store, name: str) -> bool:
    """Remove `name`, failed or not, and tell whether it was there."""
    return bool(store.write(_DELETE, (name,)))


def list_alarms(store: Store) -> list[Alarm]:
    """All of them, failed ones included, by due time, then name."""
    return [_alarm(row) for row in store.read(_LIST)]


def earliest_due(store: Store) -> int | None:
    """When the next alarm is due, in milliseconds, or None: what the placement store mirrors."""
    due: int | None = store.read(_EARLIEST)[0][0]
    return due


def due_now(store: Store, now_ms: int, limit: int) -> list[Alarm]:
    """Up to `limit` alarms that are due, the earliest first."""
    return [_alarm(row) for row in store.read(_DUE, (now_ms, limit))]


def take(store: Store, alarm: Alarm, now_ms: int) -> bool:
    """Take a due alarm, in the transaction its handler then runs in; a cron alarm moves to its next time.

    False when it is not the one that was seen: cleared, or set anew.
    """
    if not _is_there(store, alarm):
        return False
    if alarm.cron is None:
        clear_alarm(store, alarm.name)
    else:  # times missed meanwhile fire once
        _put(store, Alarm(alarm.name, Crontab.parse(alarm.cron).next_ms(now_ms), alarm.payload_json, alarm.cron))
    return True


def mark_attempt(store: Store, alarm: Alarm, now_ms: int) -> Alarm | None:
    """After the handler failed and was rolled back: due again later, or failed with the sixth attempt.

    A cron alarm never fails for good: it goes on with its next time, six attempts on record. Gives the row as it is
    now, None when it is not the one that was seen.
    """
    if not _is_there(store, alarm):
        return None
    attempts = alarm.attempts % ATTEMPTS_MAX + 1
    if attempts < ATTEMPTS_MAX:
        wait_ms = min(BACKOFF_FIRST_MS << (attempts - 1), BACKOFF_LAST_MS)
        now = replace(alarm, due_ms=now_ms + wait_ms, attempts=attempts)
    elif alarm.cron is not None:
        now = replace(alarm, due_ms=Crontab.parse(alarm.cron).next_ms(now_ms), attempts=attempts)
    else:
        now = replace(alarm, attempts=attempts, failed=True)
    _put(store, now)
    return now


def _put(store: Store, alarm: Alarm) -> None:
    row = (alarm.name, alarm.due_ms, alarm.payload_json, alarm.cron, alarm.attempts, int(alarm.failed))
    store.write(_PUT, row)


def _is_there(store: Store, alarm: Alarm) -> bool:
    return bool(store.read(_SAME, (alarm.name, alarm.due_ms, alarm.attempts)))


def _alarm(row: tuple[object, ...]) -> Alarm:
    name, due_ms, payload, cron, attempts, failed = row
    return Alarm(name, due_ms, payload, cron, attempts, bool(failed))  # type: ignore[arg-type]
