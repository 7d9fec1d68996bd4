"""The production node in the simulated world; DOMICILE_SIM_SEEDS says how many seeds are played."""

from __future__ import annotations

import pytest
from simworld.seeds import blocks, named, play


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seeds", blocks("DOMICILE_SIM_SEEDS", 1000), ids=named)
def test_the_production_node_keeps_every_promise(seeds: range) -> None:
    """Safety under every plan, then progress once nothing goes wrong any more, and every manifest restorable."""
    play("real", seeds)
