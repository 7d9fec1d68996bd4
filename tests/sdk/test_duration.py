"""When an alarm is due."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domicile.duration import DUE_MS_MAX, due_ms, parse_duration_ms
from domicile.errors import BadArguments

NOW = 1_700_000_000_000


@pytest.mark.parametrize(
    ("when", "after_ms"),
    [
        ("10m", 600_000),
        ("90s", 90_000),
        ("2h30m", 9_000_000),
        ("3d", 259_200_000),
        ("1w", 604_800_000),
        ("250ms", 250),
        (0, 0),
        (1.5, 1_500),
        (0.0001, 1),
        (60, 60_000),
        (timedelta(hours=1), 3_600_000),
    ],
)
def test_from_now(when, after_ms):
    """Texts, seconds and timedeltas count from the call's own time; a fraction of a millisecond is never early."""
    assert due_ms(when, None, NOW) == NOW + after_ms


@given(st.tuples(*(st.integers(0, 99) for _ in range(5))).filter(any))
def test_units_add_up(parts):
    """A text with units from weeks to seconds means their sum."""
    text = "".join(f"{n}{unit}" for n, unit in zip(parts, "wdhms", strict=True) if n)

    assert parse_duration_ms(text) == sum(
        n * secs * 1000 for n, secs in zip(parts, (604_800, 86_400, 3_600, 60, 1), strict=True)
    )


def test_a_moment_is_taken_as_it_is():
    """An aware datetime is exact to the millisecond in any zone; one that has passed means now."""
    zone = timezone(timedelta(hours=9))

    assert due_ms(datetime(2030, 1, 1, 9, 0, 0, 123_000, zone), None, NOW) == 1_893_456_000_123
    assert due_ms(datetime(1960, 1, 1, tzinfo=UTC), None, NOW) == NOW


def test_cron_gives_its_next_occurrence():
    """With cron= the next occurrence after now counts."""
    assert due_ms(None, "* * * * *", NOW) == NOW // 60_000 * 60_000 + 60_000


@pytest.mark.parametrize(
    ("when", "cron"),
    [
        ("", None),
        ("10", None),
        ("m", None),
        ("10m2h", None),
        ("1.5h", None),
        ("-5m", None),
        ("5m ", None),
        ("٣m", None),
        ("9" * 70 + "d", None),
        (-1, None),
        (float("nan"), None),
        (float("inf"), None),
        (True, None),
        (10**400, None),
        ("9999999w", None),
        (datetime(2030, 1, 1), None),
        (datetime(2300, 1, 1, tzinfo=UTC), None),
        (timedelta(seconds=-1), None),
        (b"10m", None),
        ([], None),
        (None, None),
        ("10m", "* * * * *"),
        (None, "x"),
        (None, 5),
        (0, "* * * * *"),
    ],
)
def test_refused(when, cron):
    """Nonsense, the naive, the negative, the endless and the far future are refused by type."""
    with pytest.raises(BadArguments):
        due_ms(when, cron, NOW)


@given(st.one_of(st.floats(), st.integers(), st.timedeltas(), st.datetimes(timezones=st.just(UTC)), st.text()))
def test_any_value_is_a_due_time_or_refused(when):
    """Whatever is given, the answer is a storable moment not before now, or BadArguments."""
    try:
        due = due_ms(when, None, NOW)
    except BadArguments:
        return

    assert NOW <= due <= DUE_MS_MAX
