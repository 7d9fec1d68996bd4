"""etcd's leader is deposed and does not know: what it still answers gives nobody the right to serve."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from clusterkit.cluster import Cluster
from clusterkit.peer_wires import DeposableEtcd

ADMISSION_SECS = 2.0  # of PROFILE=fast
CUT_SECS = 8.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Three nodes; the first knows of one etcd member only, the leader."""
    etcd = DeposableEtcd(tmp_path / "etcd")
    cluster = Cluster(tmp_path / "cluster", etcd=etcd)
    cluster.lead_to(cluster.nodes[0], [etcd.old.endpoint])
    for node in cluster.nodes[1:]:
        cluster.lead_to(node, [member.endpoint for member in etcd.members[1:]])
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.abandon()


def test_a_deposed_leader_gives_nobody_the_right_to_serve(cluster: Cluster) -> None:
    """It answers the home's keepalives all the while, and orders no write. The home stops at its deadline, another
    takes over, and there are no two writers; the home comes back by itself."""
    etcd = cluster.etcd
    assert isinstance(etcd, DeposableEtcd)
    client, there = cluster.client("c"), cluster.client("there", 0, patience_secs=0)
    for _ in range(5):
        client.at(0).append("x")
    assert cluster.home("x") is cluster.nodes[0]
    etcd.depose()
    deposed = time.monotonic()
    while time.monotonic() < deposed + CUT_SECS:
        there.at(0).append("x", keyed=False)
        there.at(0).read("x")
        client.at(1).append("x")
    assert etcd.keeps_alive()
    attempts = [op.attempts[-1] for op in cluster.operations() if op.client == there.name]
    late = [one for one in attempts if one.invoked > deposed + ADMISSION_SECS]
    assert {one.outcome for one in late} == {"not_run"}
    assert client.at(1).append("x").outcome == "answered"
    assert cluster.nodes[0] not in cluster._home("x")
    etcd.reunite()
    cluster.settle()
    assert there.at(0).append("x", keyed=False).outcome == "answered"
    cluster.check()
