"""The model of chunks and the collector, ahead of the code (PROTOCOLS sections 7 and 10)."""

from __future__ import annotations

import pytest
from smallworlds.catalog import MODELS

COLLECTOR = MODELS["collector"]


@pytest.mark.parametrize("world", COLLECTOR.asked_for())
def test_every_named_chunk_is_there(world: str) -> None:
    """As designed, no manifest ever names a chunk that was collected."""
    found = COLLECTOR.search(world)
    assert not found.broken, str(found)


@pytest.mark.parametrize("rule", COLLECTOR.rules)
def test_every_rule_of_the_collector_is_needed(rule: str) -> None:
    """Without the rule a chunk is lost, and the search finds how."""
    found = COLLECTOR.without(rule)
    assert found.broken, f"without the rule that {COLLECTOR.rules[rule]}: {found}"
    assert found.trace
