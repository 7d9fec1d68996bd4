"""The node dies at every named place, alone and with its supervisor; then its own copies are lost as well.

By default each place is met in one of the four ways; DOMICILE_CRASH=full meets it in all of them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from crashkit.campaign import Campaign

from domicile.node.failpoints import NAMES, Failpoints

ROOT = Path(__file__).resolve().parents[2]
WAYS = [(supervised, wiped) for wiped in (False, True) for supervised in (False, True)]


def cases() -> list[tuple[str, bool, bool]]:
    """Every place, in one way or in all."""
    if os.environ.get("DOMICILE_CRASH") == "full":
        return [(name, *way) for way in WAYS for name in sorted(NAMES)]
    return [(name, *WAYS[n % len(WAYS)]) for n, name in enumerate(sorted(NAMES))]


def named(case: tuple[str, bool, bool]) -> str:
    name, supervised, wiped = case
    return f"{name}-{'supervised' if supervised else 'alone'}-{'wiped' if wiped else 'kept'}"


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Campaign]:
    campaign = Campaign(tmp_path_factory.mktemp("kills"))
    yield campaign
    campaign.abandon()


@pytest.mark.parametrize("case", cases(), ids=named)
def test_nothing_answered_is_lost_when_the_node_dies_at(case: tuple[str, bool, bool], campaign: Campaign) -> None:
    """Whatever the node was at when it died, the bucket alone holds all that was answered, once and whole."""
    name, supervised, wiped = case
    campaign.die_at(name, supervised=supervised, wiped=wiped)


def test_the_history_of_all_these_deaths_keeps_the_promises(campaign: Campaign) -> None:
    """Clients who rode through saw one order of everything, reads included, and every alarm came, once."""
    campaign.conclude()


def test_every_name_is_a_place_in_the_code() -> None:
    """A failpoint that nothing hits proves nothing; at least thirty distinct places are there."""
    hits = [
        name
        for path in sorted((ROOT / "node").rglob("*.py"))
        for name in re.findall(r'failpoints\.hit\(\s*"([^"]+)"', path.read_text())
    ]
    assert sorted(hits) == sorted(NAMES)
    assert len(NAMES) >= 30


def test_a_failpoint_that_is_not_there_is_refused() -> None:
    """A misspelt drill fails at once instead of passing for nothing."""
    with pytest.raises(ValueError, match="no failpoint"):
        Failpoints.parse("flight.before-nothing:kill")
