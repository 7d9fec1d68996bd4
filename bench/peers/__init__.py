"""The servers that are measured: how each is installed, started, called, and what its answer means."""

from bench.peers.base import Peer
from bench.peers.baseline import Baseline
from bench.peers.domicile import Domicile
from bench.peers.domicile_cluster import DomicileCluster
from bench.peers.etcd import Etcd
from bench.peers.nats import Nats
from bench.peers.workerd import Workerd

__all__ = ["Peer", "of_a_cluster", "of_one_node"]


def of_one_node() -> list[Peer]:
    """Domicile first: ratios are read as `domicile / other`."""
    return [Domicile(), Baseline(), Workerd()]


def of_a_cluster() -> list[Peer]:
    """Three servers each, but for the two that have one only, which show what the other copies cost."""
    return [DomicileCluster(), Etcd(), Nats(), Baseline(), Workerd()]
