"""The world, proved on a toy whose mistakes it catches."""

from __future__ import annotations

from typing import get_args

import pytest
from simworld.nodes import options_for
from simworld.plan import Kind, Plan, draw
from simworld.seeds import play
from simworld.toy import FLAWS
from simworld.world import run_seed

TOY_SEEDS = 100
CATCH_WITHIN = 80


@pytest.mark.timeout(600)
def test_the_right_toy_survives_every_plan():
    """No plan breaks a promise of a correct server: plans are fair, and the checker calls no good history bad."""
    play("toy", range(TOY_SEEDS))


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
