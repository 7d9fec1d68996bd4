"""Clusters in the simulated world: every promise under every plan, and rules that are missed if dropped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, get_args

import pytest
from simworld.client import Habits
from simworld.cluster_plan import KINDS, WIPES, Kind, Shape, dense, draw, one_by_one
from simworld.network import LinkOdds
from simworld.nodes import options_for
from simworld.weather import CALM, Odds
from simworld.world import run_seed

from domicile.node import quorum, reads
from domicile.node.members import MemberSets
from domicile.node.replica import rules as replica_rules
from domicile.node.takeover import asking
from domicile.placement.admission import Admission

WITHIN = 60
BUSY = Habits(append=0.6, think_secs=0.1)
SLOW_BLOBS = Odds(latency=0.05, slow=0.5, slow_secs=3.0)
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

    `first`: seeds that saw it. `also`: what else is not as it was (owner, name, value).
    With `stops` the faults come one after the other and last so long, on calm stores.
    """

    owner: Any
    name: str
    drop: Callable[[Any], Any]
    kinds: tuple[Kind, ...]
    first: tuple[int, ...] = ()
    shape: Shape = STRICT
    links: LinkOdds = SLOW
    habits: Habits = field(default_factory=lambda: BUSY)
    blobs: Odds = field(default_factory=lambda: SLOW_BLOBS)
    stops: tuple[float, float] | None = None
    secs: float = 25.0
    objects: int = 1
    wishes: int = 150
    also: tuple[tuple[Any, str, Any], ...] = ()


def _one_ack(landed):
    return lambda acks, members: max((acks.get(copy, -1) for copy in members.copies), default=-1)


def _in_either(landed_in_all):
    return lambda acks, sets: max((quorum.landed(acks, members) for members in sets), default=quorum.NOTHING)


def _any_copy(reached):
    async def held(reads, call, mark):
        return reads._replicas.copy(call.key.id)

    return held


def _as_it_leaves(enter, begin=MemberSets.begin):
    def late(sets, manifest):
        begin(sets)
        return enter(sets, manifest)

    return late


BROKEN = ("lost", "taken-back", "forked", "stale", "not-linearizable", "twice")
FALLS: tuple[Kind, ...] = ("power-home", "power-home", "blobs-out", "cut")
READS = Habits(append=0.4, odd=1.0, think_secs=0.15)
RULES = {
    "a fence is kept at the replica": Rule(
        replica_rules,
        "_refused",
        lambda old: lambda *args: None,
        ("row-lost", "row-lost", "blobs-out"),
        (70, 157, 451, 531),
        habits=Habits(append=0.6, increment=0.1, odd=0.2),
        secs=40.0,
        objects=2,
        wishes=30,
    ),
    "a takeover waits for its read quorum": Rule(
        asking, "read_quorum", lambda old: lambda members: 0, FALLS, (), LOOSE
    ),
    "an answer waits for Q acks": Rule(quorum, "landed", _one_ack, FALLS),
    "while members change an answer needs both sets": Rule(
        quorum,
        "landed_in_all",
        _in_either,
        ("power-home", "kill", "cut"),
        (193, 235, 548, 578, 755, 777),
        Shape(4, 2, 2, "wait"),
    ),
    "a change of members covers what was answered": Rule(
        MemberSets,
        "enter",
        _as_it_leaves,
        ("power-home", "kill", "cut"),
        (33,),
        Shape(4, 2, 2, "wait"),
        also=((MemberSets, "begin", lambda sets: None),),
    ),
    "nothing leaves past the deadline": Rule(
        Admission,
        "remaining",
        lambda old: lambda admission: 1.0,
        ("stop-home",),
        (4,),
        links=LinkOdds(latency=0.002),
        habits=READS,
        stops=(12.0, 20.0),
    ),
    "a copy is read at the length its owner vouches for": Rule(
        reads.ReplicaReads,
        "_reached",
        _any_copy,
        ("disk-slow", "cut-one-way", "blobs-out"),
        (),
        Shape(4, 2, 1, "serve"),
        LinkOdds(latency=0.02, slow=0.3, slow_secs=1.0),
        READS,
        CALM,
    ),
}


def options(rule, seed):
    """The production cluster under the plan that suits the rule."""
    if rule.stops is not None:
        plan = one_by_one(seed, rule.kinds, rule.shape, rule.links, rule.stops)
    else:
        plan = replace(dense(seed, rule.kinds, rule.shape, rule.links, rule.secs), blobs=rule.blobs)
    usual = options_for("cluster")
    more = {"objects": rule.objects, "wishes": rule.wishes}
    return replace(usual, plan=plan, habits=lambda rng: replace(rule.habits), **more)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", sorted(RULES))
def test_a_rule_of_the_cluster_dropped_is_missed(name, monkeypatch):
    """The world is not blind: without the rule some seed finds what it is there for."""
    rule = RULES[name]
    monkeypatch.setattr(rule.owner, rule.name, rule.drop(getattr(rule.owner, rule.name)))
    for owner, of, value in rule.also:
        monkeypatch.setattr(owner, of, value)
    for seed in [*rule.first, *range(WITHIN)]:
        if any(violation.kind in BROKEN for violation in run_seed(seed, options(rule, seed)).violations):
            monkeypatch.undo()
            assert run_seed(seed, options(rule, seed)).violations == [], "with the rule the seed is a good one"
            return
    pytest.fail(f"{WITHIN} seeds did not miss the rule: {name}")
