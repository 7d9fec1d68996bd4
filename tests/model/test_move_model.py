"""The model of a project's move, ahead of the code (PROTOCOLS sections 2, 4 and 10)."""

from __future__ import annotations

import pytest
from smallworlds.catalog import MODELS

MOVE = MODELS["move"]


@pytest.mark.parametrize("world", MOVE.asked_for())
def test_a_move_loses_nothing(world: str) -> None:
    """As designed, every answer has all earlier ones in it, and one region at a time answers."""
    found = MOVE.search(world)
    assert not found.broken, str(found)


@pytest.mark.parametrize("rule", MOVE.rules)
def test_every_rule_of_a_move_is_needed(rule: str) -> None:
    """Without the rule a write is lost or two regions answer, and the search finds how."""
    found = MOVE.without(rule)
    assert found.broken, f"without the rule that {MOVE.rules[rule]}: {found}"
    assert found.trace
