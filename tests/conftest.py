"""For all tests: how long property tests search (`make soak` takes the long profile), and real etcd for who asks."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

KIT = str(Path(__file__).parent / "kit")
if KIT not in sys.path:
    sys.path.insert(0, KIT)

from etcd_servers import Etcd, running  # noqa: E402 - found beside this file

# The machines that test are busy; how long one example takes says nothing.
settings.register_profile("fast", deadline=None)
settings.register_profile("soak", deadline=None, max_examples=10_000)
settings.load_profile("fast")

# Short elections, so that grants may be as short as a second and tests need not wait for a lost leader.
ONE_MEMBER = ("--heartbeat-interval", "50", "--election-timeout", "250")
THREE_MEMBERS = ("--heartbeat-interval", "100", "--election-timeout", "600")


@pytest.fixture(autouse=True, scope="session")
def _late_news_for_closed_loops() -> Iterator[None]:
    """grpc keeps one queue for all loops of a process: what an earlier test cancelled may be told to its closed loop
    while another turns. A node closes no loop but its heartbeat's, which is deaf by then."""
    tell = asyncio.BaseEventLoop.call_soon_threadsafe

    def tell_the_living(loop: asyncio.BaseEventLoop, *args: Any, **kwargs: Any) -> Any:
        return None if loop.is_closed() else tell(loop, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio.BaseEventLoop, "call_soon_threadsafe", tell_the_living)
        yield


@pytest.fixture(scope="session")
def _one_etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    with running(tmp_path_factory.mktemp("etcd"), 1, ONE_MEMBER) as etcd:
        yield etcd


@pytest.fixture
def etcd(_one_etcd: Etcd) -> Etcd:
    """One member, empty. All tests use the same: leave it running."""
    _one_etcd.wipe()
    return _one_etcd


@pytest.fixture(scope="session")
def _three_etcds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    with running(tmp_path_factory.mktemp("etcds"), 3, THREE_MEMBERS) as etcd:
        yield etcd


@pytest.fixture
def three_etcds(_three_etcds: Etcd) -> Etcd:
    """Three members, empty and whole. Kill, freeze and restart them as you like: whoever is next gets them healed."""
    _three_etcds.heal()
    _three_etcds.wipe()
    return _three_etcds
