"""The servers that are measured: how each is installed, started, called, and what its answer means."""

from bench.peers.base import Peer
from bench.peers.baseline import Baseline
from bench.peers.domicile import Domicile
from bench.peers.workerd import Workerd

__all__ = ["Peer", "everyone"]


def everyone() -> list[Peer]:
    """Domicile first: ratios are read as `domicile / other`."""
    return [Domicile(), Baseline(), Workerd()]
