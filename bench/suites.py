"""The two sets of measurements, each of which is one run: one node, and the cluster."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench import cluster
from bench.cases import Case, every_case
from bench.peers import Peer, of_a_cluster, of_one_node
from bench.targets import Target


@dataclass(frozen=True)
class Suite:
    """`suffix` is what its results are called beside the other's of the same moment."""

    title: str
    suffix: str
    peers: Callable[[], list[Peer]]
    cases: Callable[[], list[Case]]
    targets: Sequence[Target]
    notes: Sequence[str] = ()


ONE_NODE = Suite(
    title="one node",
    suffix="",
    peers=of_one_node,
    cases=every_case,
    targets=(
        Target("read-1obj-64conn", "baseline", 0.75),
        Target("read-1obj-64conn", "workerd", 1.5),
        Target("increment-1obj-64conn", "baseline", 1.5),
        Target("first-call", "workerd", 1.0),
    ),
)

CLUSTER = Suite(
    title="the cluster",
    suffix="-cluster",
    peers=of_a_cluster,
    cases=cluster.every_case,
    targets=cluster.TARGETS,
    notes=cluster.NOTES,
)
