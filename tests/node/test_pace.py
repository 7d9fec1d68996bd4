"""The pace of store flights that nobody waits for."""

from __future__ import annotations

from domicile.node.pace import CALM, LAG_SHARE, Pace


def test_few_objects_fly_at_the_interval() -> None:
    """Up to `CALM` objects gathering: the interval, exactly."""
    pace = Pace()
    for gathering in range(CALM + 1):
        pace.gathering = gathering
        assert pace.rest_secs(1.0, 2.0) == 1.0


def test_many_objects_fly_less_often_and_never_too_late() -> None:
    """Longer with every object more, and always early enough to land within the lag."""
    pace, before = Pace(), 1.0
    for gathering in range(CALM + 1, 50 * CALM, 7):
        pace.gathering = gathering
        rest = pace.rest_secs(1.0, 2.0)
        assert before <= rest <= LAG_SHARE * 2.0
        before = rest
    assert before == LAG_SHARE * 2.0


def test_a_lag_no_longer_than_the_interval_leaves_the_interval() -> None:
    """Settings may be equal: then nothing is stretched, and nothing is hurried either."""
    pace = Pace()
    pace.gathering = 10_000
    assert pace.rest_secs(2.0, 2.0) == 2.0
