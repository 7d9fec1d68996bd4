"""A home that dies while an object is born: nothing was lost, and the next one need not wait to know it."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from clusterkit.cluster import Cluster

QUORUM_SECS = 10.0  # a read quorum is waited for so long
SOON_SECS = 5.0  # and a takeover that has one takes far less, on any machine
SETTINGS = {"OBJECT_TAKEOVER_WAIT_MS": str(int(1000 * QUORUM_SECS))}


@pytest.mark.parametrize("nodes", [2, 3, 4])
def test_a_birth_that_fell_is_taken_over_at_once(start: Callable[..., Cluster], nodes: int) -> None:
    """Killed after the claim, after the lay, and when the first call was committed and had gone nowhere: members that
    live and hold nothing answer for it, so there is no wait and no incident."""
    cluster = start(count=nodes, settings=SETTINGS)
    home = cluster.nodes[0]
    for point in ("activation.after-claim", "activation.after-lay", "call.committed"):
        home.kill()
        home.start(f"{point}:kill", supervised=True)
        cluster.settle()
        name = cluster.fresh(point)
        fallen = cluster.client("fallen", 0, patience_secs=0).append(name)
        assert fallen.outcome == "unknown", point
        began = time.monotonic()
        assert cluster.client("next", 1).append(name).outcome == "answered"
        took = time.monotonic() - began
        print(f"\n{nodes} nodes, killed at {point}: taken over in {took:.2f} s")
        assert took < SOON_SECS
    told = cluster.nodes[1].get("/v1/incidents")
    assert told is not None
    assert told[1]["incidents"] == []
    cluster.settle()
    cluster.check()
