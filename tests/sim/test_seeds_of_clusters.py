"""Clusters in the simulated world; DOMICILE_SIM_CLUSTER_SEEDS and _STORM_SEEDS say how many are played."""

from __future__ import annotations

import pytest
from simworld.seeds import blocks, named, play


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seeds", blocks("DOMICILE_SIM_CLUSTER_SEEDS", 1000), ids=named)
def test_a_cluster_keeps_every_promise(seeds: range) -> None:
    """Safety under every plan, incidents only where a read quorum was out of reach, progress once all is calm."""
    play("cluster", seeds)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seeds", blocks("DOMICILE_SIM_STORM_SEEDS", 250), ids=named)
def test_a_cluster_keeps_every_promise_in_a_storm(seeds: range) -> None:
    """Likewise where few kinds of fault come one after the other and the stores are slow."""
    play("storm", seeds)
