"""Make the kits importable (this folder's, the crash drills' and the simulation's), and give clusters to drills."""

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


@pytest.fixture(scope="module")
def _plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    yield from _shared(Cluster(tmp_path_factory.mktemp("shared") / "cluster"))


@pytest.fixture(scope="module")
def _wired(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    yield from _shared(Cluster(tmp_path_factory.mktemp("wired") / "cluster", wired=True))


def _shared(cluster: Cluster) -> Iterator[Cluster]:
    """One for the drills of a module: a cluster has to outlive any number of them. Last the bucket is looked at."""
    try:
        cluster.start()
        yield cluster
        cluster.make_whole()
        cluster.check()
    finally:
        cluster.abandon()


@pytest.fixture
def cluster(_plain: Cluster) -> Iterator[Cluster]:
    """Three nodes, all running and knowing each other. Break what you like: what clients saw is judged afterwards."""
    yield from _lent(_plain)


@pytest.fixture
def wired(_wired: Cluster) -> Iterator[Cluster]:
    """The same, with wires to cut."""
    yield from _lent(_wired)


def _lent(cluster: Cluster) -> Iterator[Cluster]:
    cluster.make_whole()
    cluster.begin_drill()
    yield cluster
    cluster.make_whole()
    cluster.end_loads()
    cluster.check_live()
