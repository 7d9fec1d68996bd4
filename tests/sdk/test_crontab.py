"""Cron expressions against a matcher that knows nothing of skipping."""

from calendar import monthrange
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from domicile.crontab import Crontab
from domicile.errors import BadArguments

MINUTE_MS = 60_000


def at(*parts):
    return int(datetime(*parts, tzinfo=UTC).timestamp() * 1000)


def values(low, high):
    """A field and the set of values it names."""
    number = st.integers(low, high)
    step = st.integers(1, 40)
    item = st.one_of(
        st.builds(lambda a: (str(a), {a}), number),
        st.builds(lambda a, b: (f"{min(a, b)}-{max(a, b)}", set(range(min(a, b), max(a, b) + 1))), number, number),
        st.builds(
            lambda a, b, n: (f"{min(a, b)}-{max(a, b)}/{n}", set(range(min(a, b), max(a, b) + 1, n))),
            number,
            number,
            step,
        ),
        st.builds(lambda a, n: (f"{a}/{n}", set(range(a, high + 1, n))), number, step),
    )
    some = st.lists(item, min_size=1, max_size=3).map(
        lambda items: (",".join(text for text, _ in items), set().union(*(named for _, named in items)))
    )
    every = st.builds(lambda n: (f"*/{n}", set(range(low, high + 1, n))), step)
    return st.one_of(st.just(("*", set(range(low, high + 1)))), every, some)


@settings(max_examples=150, deadline=None)
@given(
    minute=values(0, 59),
    hour=values(0, 23),
    day=values(1, 31),
    month=values(1, 12),
    weekday=values(0, 6),
    after=st.integers(0, at(2100, 1, 1)),
)
def test_next_is_the_first_minute_that_fits(minute, hour, day, month, weekday, after):
    """The next occurrence fits every field, is later than the moment given, and nothing before it fits.

    An expression whose day no month in it has is refused.
    """
    fields = (minute, hour, day, month, weekday)
    either = not day[0].startswith("*") and not weekday[0].startswith("*")

    def day_fits(moment):
        by_day, by_weekday = moment.day in day[1], (moment.weekday() + 1) % 7 in weekday[1]
        return moment.month in month[1] and ((by_day or by_weekday) if either else (by_day and by_weekday))

    def fits(moment):
        return day_fits(moment) and moment.hour in hour[1] and moment.minute in minute[1]

    text = " ".join(text for text, _ in fields)
    if not either and not any(number <= monthrange(2024, m)[1] for number in day[1] for m in month[1]):
        with pytest.raises(BadArguments):
            Crontab.parse(text)
        return
    found = Crontab.parse(text).next_ms(after)

    moment = datetime.fromtimestamp(found / 1000, UTC)
    assert found > after
    assert found % MINUTE_MS == 0
    assert fits(moment)
    probe = datetime.fromtimestamp(after // MINUTE_MS * 60, UTC) + timedelta(minutes=1)
    while probe < moment:
        assert not fits(probe)
        whole_day = probe.hour == probe.minute == 0 and not day_fits(probe) and probe.date() < moment.date()
        probe += timedelta(days=1) if whole_day else timedelta(minutes=1)


@pytest.mark.parametrize(
    ("text", "after", "expected"),
    [
        ("0 3 * * *", at(2024, 5, 1, 3, 0), at(2024, 5, 2, 3, 0)),
        ("0 3 * * *", at(2024, 5, 1, 2, 59), at(2024, 5, 1, 3, 0)),
        ("0 3 * * *", at(2024, 5, 1, 3, 0) - 1, at(2024, 5, 1, 3, 0)),
        ("0 0 29 feb *", at(2096, 3, 1), at(2104, 2, 29)),
        ("0 0 13 * fri", at(2024, 9, 1), at(2024, 9, 6)),
        ("0 0 */13 * fri", at(2024, 9, 1), at(2024, 9, 27)),
        ("30 9 * * mon-fri", at(2024, 6, 7, 9, 30), at(2024, 6, 10, 9, 30)),
        ("0 0 * * SAT-SUN", at(2024, 6, 3), at(2024, 6, 8)),
        ("0 0 * * 7", at(2024, 6, 3), at(2024, 6, 9)),
        ("59 23 31 12 *", at(2024, 12, 31, 23, 59), at(2025, 12, 31, 23, 59)),
        ("0 0 31 jan,apr *", at(2024, 2, 1), at(2025, 1, 31)),
    ],
)
def test_known_occurrences(text, after, expected):
    """Leap days, month ends, the either-day rule, names and Sunday as 7 come out as cron has them."""
    assert Crontab.parse(text).next_ms(after) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "* * * *",
        "* * * * * *",
        "60 * * * *",
        "* 24 * * *",
        "* * 0 * *",
        "* * 32 * *",
        "* * * 13 *",
        "* * * * 8",
        "5-1 * * * *",
        "*/0 * * * *",
        "1,,2 * * * *",
        "a * * * *",
        "* * * foo *",
        "-1 * * * *",
        "1- * * * *",
        "* * * * fri-mon",
        "@daily",
        "0 0 30 2 *",
        "0 0 31 feb,apr,jun *",
        "0 0 31 4 */2",
        "* * * * 1/",
        "\u0661 * * * *",
        "0 0 ** * *",
        "0 0 */31/2 * *",
    ],
)
def test_refused_at_parse(text):
    """What is no expression, or can never come, is refused when it is read."""
    with pytest.raises(BadArguments):
        Crontab.parse(text)


@given(st.text(alphabet="0123456789*/-, abcdefjnostu", max_size=30))
def test_any_text_is_parsed_or_refused(text):
    """No text makes the parser fail otherwise, and what it takes has a next occurrence."""
    try:
        crontab = Crontab.parse(text)
    except BadArguments:
        return

    assert crontab.next_ms(0) > 0
