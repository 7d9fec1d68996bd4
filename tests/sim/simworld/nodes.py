"""What the world can run, by name."""

from __future__ import annotations

from typing import get_args

from simworld import cluster_node, real
from simworld.storms import storm
from simworld.toy import Flaw, toy
from simworld.world import Options


def options_for(name: str, seed: int = 0) -> Options:
    """`real`, `cluster`, `storm` (a cluster too; its plan is drawn from the seed here), `toy`, or `toy:FLAW`. Raises
    ValueError for anything else."""
    if name == "real":
        return real.options()
    if name == "cluster":
        return cluster_node.options()
    if name == "storm":
        return storm(seed)
    kind, _, flaw = name.partition(":")
    if kind == "toy" and (not flaw or flaw in get_args(Flaw)):
        return Options(toy(flaw or "none"))  # type: ignore[arg-type]
    raise ValueError(
        f"{name!r} is not a node this world can run: real, cluster, storm, toy, toy:{', toy:'.join(get_args(Flaw))}"
    )
