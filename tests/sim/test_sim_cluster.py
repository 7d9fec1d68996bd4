"""Clusters in the simulated world: every promise under every plan, and rules that are missed if dropped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, get_args

import pytest
from simworld.client import Habits
from simworld.cluster_plan import KINDS, WIPES, Kind, Shape, dense, draw
from simworld.network import LinkOdds
from simworld.nodes import options_for
from simworld.world import run_seed

from domicile.node import asking, quorum, replica_rules

WITHIN = 60
BUSY = Habits(append=0.6, increment=0.1, odd=0.2, think_secs=0.05)
STRICT, LOOSE = Shape(3, 2, 2, "wait"), Shape(3, 2, 1, "wait")
SLOW = LinkOdds(latency=0.002, slow=0.1, slow_secs=1.0)


def test_a_seed_of_a_cluster_is_one_history():
    """The same seed gives the same steps at the same times, over sockets and all."""
    one, again = (run_seed(3, replace(options_for("cluster"), traced=True)) for _ in range(2))

    assert one.digest == again.digest


def test_cluster_plans_end_and_are_fair():
    """Every fault ends before the calm, and nothing is wiped on two machines of a run."""
    plans = [draw(seed) for seed in range(400)]

    assert plans == [draw(seed) for seed in range(400)]
    assert all(fault.at + fault.secs <= plan.calm_at for plan in plans for fault in plan.faults)
    assert all(len({f.machine for f in plan.faults if f.kind in WIPES}) <= 1 for plan in plans)
    assert {f.kind for plan in plans for f in plan.faults} == set(KINDS) == set(get_args(Kind)) - {"row-lost"}


@dataclass(frozen=True)
class Rule:
    """`drop` makes what stands in the rule's place; under these faults the world sees one of `broken`.

    `first`: seeds that saw it.
    """

    owner: Any
    name: str
    drop: Callable[[Any], Any]
    kinds: tuple[Kind, ...]
    broken: tuple[str, ...] = ("lost", "taken-back", "forked", "stale", "not-linearizable")
    links: LinkOdds = SLOW
    habits: Callable[[], Habits] = lambda: replace(BUSY)
    shape: Shape = STRICT
    first: tuple[int, ...] = ()


def _one_ack(landed):
    return lambda acks, members: max((acks.get(copy, -1) for copy in members.copies), default=-1)


LOSSES = ("lost", "forked", "twice")
FALLS: tuple[Kind, ...] = ("power-home", "power-home", "blobs-out", "cut")
ROWS: tuple[Kind, ...] = ("row-lost", "row-lost", "blobs-out")
RULES = {
    "a fence is kept at the replica": Rule(
        replica_rules,
        "_refused",
        lambda old: lambda *args: None,
        ("row-lost", "row-lost", "blobs-out"),
        LOSSES,
        first=(99, 113),
    ),
    "a takeover waits for its read quorum": Rule(
        asking, "read_quorum", lambda old: lambda members: 0, FALLS, shape=LOOSE
    ),
    "an answer waits for Q acks": Rule(quorum, "landed", _one_ack, FALLS),
}


def options(rule, seed):
    """The production cluster under the plan that suits the rule."""
    plan = dense(seed, rule.kinds, rule.shape, rule.links)
    return replace(options_for("cluster"), plan=plan, habits=lambda rng: rule.habits())


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", sorted(RULES))
def test_a_rule_of_the_cluster_dropped_is_missed(name, monkeypatch):
    """The world is not blind: without the rule some seed finds what it is there for."""
    rule = RULES[name]
    monkeypatch.setattr(rule.owner, rule.name, rule.drop(getattr(rule.owner, rule.name)))
    for seed in [*rule.first, *range(WITHIN)]:
        if any(violation.kind in rule.broken for violation in run_seed(seed, options(rule, seed)).violations):
            return
    pytest.fail(f"{WITHIN} seeds did not miss the rule: {name}")
