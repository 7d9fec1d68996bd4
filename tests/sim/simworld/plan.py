"""Seeded fault plans that a correct single node always survives.

The rules that make them fair: the blob store and the placement store forget nothing they answered for; every outage,
full or failing disk and stop ends; a node that fell is started again. Then everything stops going wrong at `calm_at`,
and from there on progress is owed.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Literal

from simworld.weather import CALM, Odds

Kind = Literal[
    "kill",
    "power",
    "kill-at-op",
    "power-at-op",
    "stop",
    "suspend",
    "restart",
    "evict",
    "compact",
    "blobs-out",
    "store-out",
    "disk-full",
    "disk-ill",
    "disk-slow",
]

KINDS: tuple[Kind, ...] = (
    "kill",
    "kill",
    "power",
    "kill-at-op",
    "power-at-op",
    "stop",
    "suspend",
    "restart",
    "restart",
    "evict",
    "compact",
    "blobs-out",
    "store-out",
    "store-out",
    "disk-full",
    "disk-ill",
    "disk-slow",
)


@dataclass(frozen=True)
class Fault:
    """Something goes wrong `at` a virtual second, for `secs`; `op`: at the op-th disk operation after it."""

    at: float
    kind: Kind
    secs: float = 0.0
    op: int = 0


@dataclass(frozen=True)
class Plan:
    """All that goes wrong in one run."""

    faults: tuple[Fault, ...]
    blobs: Odds
    store: Odds
    calm_at: float


LENGTHS = (10.0, 15.0, 20.0, 30.0, 60.0)
"""Seconds: most runs are short, so that there are many, and some have time for whatever takes a minute."""


def draw(seed: int, secs: float | None = None) -> Plan:
    """The plan of a seed; one in eight is calm all through, so that plain bugs have a plain seed."""
    rng = random.Random(f"plan/{seed}")
    secs = secs or rng.choice(LENGTHS)
    if seed % 8 == 0:
        return Plan((), CALM, CALM, secs)
    faults = sorted((_fault(rng, secs) for _ in range(rng.randint(1, 6))), key=lambda fault: fault.at)
    return Plan(tuple(faults), odds(rng), odds(rng), secs)


def dense(seed: int, kinds: tuple[Kind, ...], secs: float = 60.0) -> Plan:
    """These faults alone, one every few seconds, over slow stores: for what is rare on an ordinary bad day."""
    rng = random.Random(f"dense/{seed}")
    faults, at = [], 1.0
    while (at := at + rng.uniform(1.0, 5.0)) < secs * 0.9:
        faults.append(Fault(at, rng.choice(kinds), rng.uniform(0.5, 2.0), int(rng.expovariate(1 / 8)) + 1))
    slow = Odds(latency=0.05, slow=0.3, slow_secs=2.0)
    return Plan(tuple(faults), slow, slow, secs)


def without(plan: Plan, *indexes: int) -> Plan:
    """The same plan with some faults left out: to see which of them a failure needs."""
    return replace(plan, faults=tuple(fault for i, fault in enumerate(plan.faults) if i not in indexes))


def _fault(rng: random.Random, secs: float) -> Fault:
    kind = rng.choice(KINDS)
    at = rng.random() * secs * 0.9
    lasts = min(secs - at, rng.choice([0.5, 3.0, 12.0, 25.0]) * (0.5 + rng.random()))
    return Fault(at, kind, lasts, int(rng.expovariate(1 / 20)) + 1)


def odds(rng: random.Random) -> Odds:
    """How a remote store behaves in a run."""
    if rng.random() < 0.4:
        return Odds(latency=rng.choice([0.001, 0.005, 0.05]))
    return Odds(
        latency=rng.choice([0.001, 0.005, 0.05]),
        slow=rng.choice([0.0, 0.05, 0.2]),
        slow_secs=rng.choice([0.5, 4.0]),
        refused=rng.choice([0.0, 0.05, 0.2]),
        request_lost=rng.choice([0.0, 0.02, 0.1]),
        answer_lost=rng.choice([0.0, 0.02, 0.1]),
        late=rng.choice([0.0, 0.02, 0.1]),
        timeout_secs=rng.choice([1.0, 3.0]),
    )
