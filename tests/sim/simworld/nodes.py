"""What the world can run, by name."""

from __future__ import annotations

from typing import get_args

from simworld import cluster_node, real
from simworld.toy import Flaw, toy
from simworld.world import Options


def options_for(name: str) -> Options:
    """`real`, `cluster`, `toy`, or `toy:FLAW`. Raises ValueError for anything else."""
    if name == "real":
        return real.options()
    if name == "cluster":
        return cluster_node.options()
    kind, _, flaw = name.partition(":")
    if kind == "toy" and (not flaw or flaw in get_args(Flaw)):
        return Options(toy(flaw or "none"))  # type: ignore[arg-type]
    raise ValueError(
        f"{name!r} is not a node this world can run: real, cluster, toy, toy:{', toy:'.join(get_args(Flaw))}"
    )
