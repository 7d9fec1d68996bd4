"""Cron expressions: five fields (minute, hour, day of month, month, day of week) and when they come next, in UTC.

Fields take `*`, numbers, ranges `a-b`, steps `*/n`, `a-b/n`, `a/n` (from a to the end), lists of these and three-letter
names for months and weekdays; Sunday is 0 or 7. As in cron, when both day fields are restricted (neither begins with
`*`) a day needs to fit only one of them, else it needs to fit both.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta

from domicile.errors import BadArguments

_DAYS_IN_MONTH = (0, 31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ITEM = re.compile(r"(?:\*|(\w+)(?:-(\w+))?)(?:/(\d+))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    low: int
    high: int
    names: tuple[str, ...] = ()


_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_MINUTE = _Field("minute", 0, 59)
_HOUR = _Field("hour", 0, 23)
_DAY = _Field("day of month", 1, 31)
_MONTH = _Field("month", 1, 12, _MONTHS)
_WEEKDAY = _Field("day of week", 0, 7, _WEEKDAYS)


@dataclass(frozen=True, slots=True)
class Crontab:
    """A parsed expression. `weekdays` counts from Sunday as 0."""

    text: str
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    either_day: bool

    @classmethod
    def parse(cls, text: str) -> Crontab:
        """Raises BadArguments for what is no expression, and for one that names no day that exists."""
        fields = text.split() if isinstance(text, str) else []
        if len(fields) != 5:
            raise BadArguments(f"{text!r} is no cron expression: five fields, minute hour day month weekday")
        minute, hour, day, month, weekday = fields
        either_day = not day.startswith("*") and not weekday.startswith("*")
        parsed = cls(
            text=text,
            minutes=tuple(sorted(_parse_field(_MINUTE, minute))),
            hours=tuple(sorted(_parse_field(_HOUR, hour))),
            days=frozenset(_parse_field(_DAY, day)),
            months=frozenset(_parse_field(_MONTH, month)),
            weekdays=frozenset(value % 7 for value in _parse_field(_WEEKDAY, weekday)),
            either_day=either_day,
        )
        # Every date falls on every weekday in some year, so only the day of the month can be impossible.
        if not either_day and all(min(parsed.days) > _DAYS_IN_MONTH[number] for number in parsed.months):
            raise BadArguments(f"cron {text!r} names a day that no month in it has")
        return parsed

    def next_ms(self, after_ms: int) -> int:
        """The first occurrence later than `after_ms`; both in milliseconds since 1970."""
        start = _EPOCH + timedelta(minutes=after_ms // 60_000 + 1)
        day = start.date()
        moment = self._first_time(start.time()) if self._fits(day) else None
        while moment is None:
            day = self._day_after(day)
            moment = self._first_time(time.min)
        return (datetime.combine(day, moment, UTC) - _EPOCH) // timedelta(milliseconds=1)

    def _day_after(self, day: date) -> date:
        try:
            while True:
                # A month that is not in the expression is skipped as a whole.
                day = day + timedelta(days=1) if day.month in self.months else _next_month(day)
                if self._fits(day):
                    return day
        except (OverflowError, ValueError):
            raise BadArguments(f"cron {self.text!r} has no further occurrence") from None

    def _fits(self, day: date) -> bool:
        if day.month not in self.months:
            return False
        by_day, by_weekday = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return (by_day or by_weekday) if self.either_day else (by_day and by_weekday)

    def _first_time(self, from_: time) -> time | None:
        for hour in self.hours:
            if hour < from_.hour:
                continue
            for minute in self.minutes:
                if hour > from_.hour or minute >= from_.minute:
                    return time(hour, minute)
        return None


def _next_month(day: date) -> date:
    return date(day.year + day.month // 12, day.month % 12 + 1, 1)


def _parse_field(field: _Field, text: str) -> set[int]:
    return {value for item in text.split(",") for value in _parse_item(field, item)}


def _parse_item(field: _Field, text: str) -> range:
    match = _ITEM.fullmatch(text)
    if not match:
        raise BadArguments(f"{text!r} is no {field.name} of a cron expression")
    first, last, step_text = match.groups()
    step = int(step_text[:4]) if step_text else 1
    low = field.low if first is None else _parse_value(field, first, text)
    if last is not None:
        high = _parse_value(field, last, text, is_end=True)
    else:
        # `*` reaches to the end, and so does `a/n`; day 7 is Sunday once more, which `*` has as 0.
        end = 6 if field is _WEEKDAY else field.high
        high = low if first is not None and not step_text else max(low, end)
    if high < low:
        raise BadArguments(f"the range {text!r} runs backwards")
    if step < 1:
        raise BadArguments(f"the step of {text!r} must be at least 1")
    return range(low, high + 1, step)


def _parse_value(field: _Field, value: str, item: str, *, is_end: bool = False) -> int:
    name = value.lower()
    if name in field.names:
        index = field.names.index(name) + (1 if field is _MONTH else 0)
        return 7 if is_end and field is _WEEKDAY and index == 0 else index
    if value.isdigit() and len(value) <= 2 and field.low <= int(value) <= field.high:
        return int(value)
    raise BadArguments(f"{value!r} in {item!r} is no {field.name}: {field.low} to {field.high}")
