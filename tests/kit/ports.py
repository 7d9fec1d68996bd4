"""Ports of the loopback for servers that tests start.

Below those that the kernel gives to outgoing connections, and of each worker its own: a port that was free a moment ago
is nobody else's by the time a server binds it, or binds it again after a kill.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import socket

WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
FIRST, SLICE, SLICES = 22_000, 1_000, 10
_mine = range(FIRST + SLICE * (WORKER % SLICES), FIRST + SLICE * (WORKER % SLICES + 1))
_next = itertools.cycle([*_mine[(at := random.SystemRandom().randrange(SLICE)) :], *_mine[:at]])


def free_port() -> int:
    """One that nobody listens on, and that none of the last hundreds of callers was given."""
    for port in itertools.islice(_next, SLICE):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("every port is taken")


def free_ports(count: int) -> list[int]:
    return [free_port() for _ in range(count)]


def free_run(count: int) -> int:
    """The first of so many in a row."""
    while True:
        found = free_ports(count)
        if found[-1] - found[0] == count - 1:
            return found[0]
