"""The world, proved on a toy whose mistakes it catches, and the production node in it."""

from __future__ import annotations

import os
from typing import get_args

import pytest
from simworld.nodes import options_for
from simworld.plan import Kind, Plan, draw
from simworld.toy import FLAWS
from simworld.world import run_seed

SEEDS = int(os.environ.get("DOMICILE_SIM_SEEDS", "60"))
TOY_SEEDS = 100
CATCH_WITHIN = 80


def run_all(node, seeds):
    for seed in seeds:
        report = run_seed(seed, options_for(node))
        if report.violations:
            again = f"PYTHONPATH=tests/sim python -m simworld --node {node} --seeds {seed} --log"
            pytest.fail(f"seed {seed}: {report.violations[0]}\nplay it again: {again}", pytrace=False)
        assert report.answered, f"seed {seed} did nothing"


@pytest.mark.timeout(600)
def test_the_right_toy_survives_every_plan():
    """No plan breaks a promise of a correct server: plans are fair, and the checker calls no good history bad."""
    run_all("toy", range(TOY_SEEDS))


@pytest.mark.timeout(3600)
def test_the_production_node_keeps_every_promise():
    """Safety under every plan, then progress once nothing goes wrong any more, and every manifest restorable."""
    run_all("real", range(SEEDS))


@pytest.mark.parametrize("flaw", FLAWS)
def test_each_wrong_toy_is_caught(flaw):
    """Within a few seeds the world finds what each mistake breaks."""
    for seed in range(CATCH_WITHIN):
        if run_seed(seed, options_for(f"toy:{flaw}")).violations:
            return
    pytest.fail(f"{CATCH_WITHIN} seeds did not find {flaw}")


def test_plans_end_and_differ():
    """A plan is its seed's, every fault is over before the calm, and one seed in eight is calm throughout."""
    plans = [draw(seed) for seed in range(200)]

    assert plans == [draw(seed) for seed in range(200)]
    assert all(fault.at + fault.secs <= plan.calm_at for plan in plans for fault in plan.faults)
    assert all(plans[seed].faults == () for seed in range(0, 200, 8))
    assert {fault.kind for plan in plans for fault in plan.faults} == set(get_args(Kind))
    assert isinstance(plans[0], Plan)
