"""The seeds that a test plays: how many the environment asks for, in blocks, and what is said of one that fails."""

from __future__ import annotations

import os

import pytest

from simworld.nodes import options_for
from simworld.world import run_seed

BLOCK = 25


def blocks(variable: str, usual: int) -> list[range]:
    """As many seeds as the environment's `variable` says, in blocks of 25."""
    seeds = int(os.environ.get(variable, usual))
    return [range(first, min(first + BLOCK, seeds)) for first in range(0, seeds, BLOCK)]


def named(block: range) -> str:
    """A block's name among a test's parameters."""
    return f"{block.start}-{block.stop - 1}"


def play(node: str, seeds: range) -> None:
    """Every promise holds in every one of these runs, or the test fails and says how to play that one again."""
    for seed in seeds:
        report = run_seed(seed, options_for(node, seed))
        if report.violations:
            again = f"PYTHONPATH=tests/sim python -m simworld --node {node} --seeds {seed} --log"
            pytest.fail(f"seed {seed}: {report.violations[0]}\nplay it again: {again}", pytrace=False)
        assert report.answered, f"seed {seed} did nothing"
