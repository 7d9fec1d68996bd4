"""Make the kits importable: this folder's, the crash drills' and the simulation's; clusters that tests start."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
for folder in (HERE, HERE.parent / "crash", HERE.parent / "sim"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

from clusterkit.cluster import Cluster  # noqa: E402 - found beside this file


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    """Starts a cluster, as `Cluster` is built, and waits until all nodes know each other; ended whatever happens."""
    started: list[Cluster] = []

    def begin(**how: Any) -> Cluster:
        cluster = Cluster(tmp_path / f"cluster-{len(started)}", **how)
        started.append(cluster)
        cluster.start()
        return cluster

    yield begin
    for cluster in started:
        cluster.abandon()
