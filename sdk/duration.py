"""When an alarm is due: "10m", seconds, a moment, or the next occurrence of a cron expression."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta

from domicile.crontab import Crontab
from domicile.errors import BadArguments

# Due times are stored as 13 digits of milliseconds (PROTOCOLS section 2): up to November 2286.
DUE_MS_MAX = 10**13 - 1

When = str | int | float | timedelta | datetime

_PARTS = re.compile(r"(?:(\d+)w)?(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?(?:(\d+)ms)?", re.ASCII)
_PART_MS = (604_800_000, 86_400_000, 3_600_000, 60_000, 1_000, 1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def due_ms(when: When | None, cron: str | None, now_ms: int) -> int:
    """Milliseconds since 1970 at which the alarm is due; a moment that has passed means now.

    Exactly one of `when` and `cron` is given. Raises BadArguments.
    """
    if (when is None) == (cron is None):
        raise BadArguments("an alarm needs either a time or cron=, not both")
    due = _from_when(when, now_ms) if when is not None else Crontab.parse(cron or "").next_ms(now_ms)
    if due > DUE_MS_MAX:
        raise BadArguments("an alarm cannot be set past the year 2286")
    return due


def _from_when(when: When, now_ms: int) -> int:
    if isinstance(when, str):
        return now_ms + parse_duration_ms(when)
    if isinstance(when, datetime):
        if when.tzinfo is None:
            raise BadArguments("a datetime for an alarm needs a time zone, such as datetime.now(UTC)")
        return max(now_ms, (when - _EPOCH) // timedelta(milliseconds=1))
    if isinstance(when, timedelta):
        return now_ms + _not_negative(when / timedelta(milliseconds=1))
    if isinstance(when, bool) or not isinstance(when, (int, float)):
        raise BadArguments(f"{when!r} is no time for an alarm: use '10m', seconds, a timedelta or an aware datetime")
    # An int may be too large for a float; it is past the last possible moment long before that.
    return now_ms + _not_negative(min(when, DUE_MS_MAX) * 1000)


def _not_negative(milliseconds: float) -> int:
    if not math.isfinite(milliseconds) or milliseconds < 0:
        raise BadArguments("an alarm cannot be set to a negative or endless time from now")
    return math.ceil(milliseconds)


def parse_duration_ms(text: str) -> int:
    """Milliseconds of "2h30m", "90s", "3d", "500ms", "1w": largest unit first, each once. Raises BadArguments."""
    match = _PARTS.fullmatch(text)
    if not match or not text or len(text) > 64:
        raise BadArguments(f"{text[:64]!r} is no duration: write '90s', '10m', '2h30m' or '3d'")
    return sum(int(part) * ms for part, ms in zip(match.groups(), _PART_MS, strict=True) if part)
