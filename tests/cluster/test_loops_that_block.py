"""A home whose process lives and does nothing: its loop is blocked for good, or its interpreter lock never comes
back."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Literal

from clusterkit.clients import RovingClient
from clusterkit.cluster import EVICTED_SECS, Cluster, Node
from crashkit.process import until

LOOP_SECS = 3.0
FOR_EVER_SECS = 600.0
SILENT_SECS = 5.0  # what an old connection is given to answer
SLACK_SECS = 10.0  # for machines that are busy
SETTINGS = {"NODE_LOOP_SECS": str(LOOP_SECS)}


def test_a_loop_that_is_blocked_for_good(start: Callable[..., Cluster]) -> None:
    """Field case 45, a stuck loop: renewals run on a thread of their own, and do not keep what the loop cannot serve.
    The process ends, says where it stood, and the next one serves; objects answer elsewhere at once."""
    cluster, home, gone = stopped(start, "block")
    until(lambda: home.serving_pid() != gone and home.is_ready(), "the node serves as another process")
    assert "the event loop has not turned" in home.said()
    assert "app.py" in home.said()
    cluster.settle()
    cluster.check()


def test_an_interpreter_lock_that_never_comes_back(start: Callable[..., Cluster]) -> None:
    """Field case 45, all threads stuck: no renewal either, and the deadline decides. The process stays, silent, until
    somebody ends it; then the next one serves."""
    cluster, home, stuck = stopped(start, "hold")
    assert home.serving_pid() == stuck
    assert home.get("/healthz", 1.0) is None
    os.kill(stuck, signal.SIGKILL)
    until(lambda: home.serving_pid() != stuck and home.is_ready(), "the node serves as another process")
    cluster.settle()
    cluster.check()


def stopped(start: Callable[..., Cluster], how: Literal["block", "hold"]) -> tuple[Cluster, Node, int]:
    """A cluster, its node that was made to stand still, and that process's id: its object answers elsewhere since."""
    cluster = start(settings=SETTINGS)
    x, y = cluster.fresh("x"), cluster.fresh("y")
    first = cluster.client("first")
    first.append(x)
    home = cluster.home(x)
    at = cluster.nodes.index(home)
    assert cluster.client("there", at).append(y).outcome == "answered"
    assert cluster.home(y) is home
    pid = home.serving_pid()
    stopper = cluster.client("stopper", at, patience_secs=0)
    stopping = threading.Thread(target=stopper.stop_node, args=(y, how, FOR_EVER_SECS), daemon=True)
    began = time.monotonic()
    stopping.start()
    until(lambda: home.get("/healthz", 0.5) is None, "the home is silent")
    other = next(n for n in range(3) if n != at)
    took = answered(cluster.client("other", other), x) - began
    print(f"\n{how}: answered elsewhere {took:.1f} s after the call that stopped the home")
    assert took < max(LOOP_SECS, EVICTED_SECS) + SILENT_SECS + SLACK_SECS
    if how == "block":
        stopping.join()
    return cluster, home, pid


def answered(client: RovingClient, name: str) -> float:
    """When a call through the client's node is answered."""
    assert client.append(name).outcome == "answered"
    return time.monotonic()
