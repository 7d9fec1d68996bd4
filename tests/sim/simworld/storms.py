"""Plans of a few kinds of fault, one every few seconds, on slow stores: what meets seldom elsewhere meets here."""

from __future__ import annotations

import random
from dataclasses import replace

from simworld import cluster_node
from simworld.client import Habits
from simworld.cluster_plan import KINDS, WIPES, ClusterPlan, Shape, any_links, dense
from simworld.network import LinkOdds
from simworld.weather import CALM, Odds
from simworld.world import Options

SLOW_BLOBS = Odds(latency=0.05, slow=0.5, slow_secs=3.0)
SLOW_LINKS = LinkOdds(latency=0.002, slow=0.1, slow_secs=1.0)


def storm(seed: int) -> Options:
    """The production cluster under the storm of a seed."""
    rng = random.Random(f"storm/{seed}")
    usual, plan = cluster_node.options(), _plan(rng, seed)
    habits = Habits(append=rng.choice([0.4, 0.6]), think_secs=rng.choice([0.05, 0.1, 0.3]))
    objects, wishes = rng.choice([1, 1, 2]), rng.choice([80, 150])
    return replace(usual, plan=plan, habits=lambda _: replace(habits), objects=objects, wishes=wishes)


def _plan(rng: random.Random, seed: int) -> ClusterPlan:
    kinds = tuple(rng.choice(KINDS) for _ in range(rng.randint(2, 4)))
    quorum, machines = rng.choice([2, 2, 2, 1, 0]), rng.choice([3, 4, 4, 5])
    patient = (quorum != 1 or not set(kinds) & set(WIPES)) and rng.random() < 0.7
    shape = Shape(machines, 2, quorum, "wait" if patient else "serve")
    links, secs = rng.choice([any_links(rng), SLOW_LINKS]), rng.choice([15.0, 25.0, 40.0])
    return replace(dense(seed, kinds, shape, links, secs), blobs=rng.choice([SLOW_BLOBS, SLOW_BLOBS, CALM]))
