"""The world, proved on a toy: the right server keeps every promise under every plan, each wrong one is caught."""

from __future__ import annotations

import os

import pytest
from simworld.nodes import options_for
from simworld.plan import Plan, draw
from simworld.toy import FLAWS
from simworld.world import run_seed

SEEDS = int(os.environ.get("DOMICILE_SIM_SEEDS", "200"))
CATCH_WITHIN = 80


def run_all(node, seeds):
    for seed in seeds:
        report = run_seed(seed, options_for(node))
        if report.violations:
            again = f"PYTHONPATH=tests/sim python -m simworld --node {node} --seeds {seed} --log"
            pytest.fail(f"seed {seed}: {report.violations[0]}\nplay it again: {again}", pytrace=False)
        assert report.answered > 10, f"seed {seed} hardly did anything"


@pytest.mark.timeout(600)
def test_the_right_toy_survives_every_plan():
    """No plan breaks a promise of a correct server: plans are fair, and the checker calls no good history bad."""
    run_all("toy", range(SEEDS // 2))


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
    assert len({fault.kind for plan in plans for fault in plan.faults}) == 9
    assert isinstance(plans[0], Plan)
