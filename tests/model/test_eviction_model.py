"""The model of renewals, the admission deadline and eviction (PROTOCOLS section 3)."""

from __future__ import annotations

import pytest
from smallworlds.catalog import MODELS

from domicile.placement.admission import Admission, Timing
from domicile.placement.eviction import Evictor

EVICTION = MODELS["eviction"]


@pytest.mark.parametrize("world", EVICTION.asked_for())
def test_nobody_is_evicted_while_it_may_serve(world: str) -> None:
    """As designed, a node serves nothing once its row was deleted, however late any message is."""
    found = EVICTION.search(world)
    assert not found.broken, str(found)


@pytest.mark.parametrize("rule", EVICTION.rules)
def test_every_rule_of_eviction_is_needed(rule: str) -> None:
    """Without the rule a node serves after its eviction, and the search finds how."""
    found = EVICTION.without(rule)
    assert found.broken, f"without the rule that {EVICTION.rules[rule]}: {found}"
    assert found.trace


def test_a_window_that_is_too_short_is_found(wrong_code: pytest.MonkeyPatch) -> None:
    """The model goes by the product's own window: one shorter than the admission time evicts a node that serves."""
    wrong_code.setattr(Timing, "fence", property(lambda timing: timing.admission - 1))
    assert EVICTION.search("even").broken


def test_a_deadline_that_is_too_late_is_found(wrong_code: pytest.MonkeyPatch) -> None:
    """The model goes by the product's own deadline: one renewal that gives too much outlives an eviction."""
    right = Admission.renewed
    wrong_code.setattr(Admission, "renewed", lambda admission, sent: right(admission, sent + 3))
    assert EVICTION.search("even").broken


def test_time_counted_from_an_older_version_is_found(wrong_code: pytest.MonkeyPatch) -> None:
    """The model goes by what the product remembers: a new version that does not start the time anew is found."""
    right = Evictor._remember

    def forgetful(evictor: Evictor, node_id: str, version: int | None, at: float) -> None:
        known = evictor._sightings.get(node_id)
        right(evictor, node_id, version, known.at if known and version else at)

    wrong_code.setattr(Evictor, "_remember", forgetful)
    assert EVICTION.search("even").broken
