"""Seeded fault plans for several machines, which a correct cluster survives.

Fair, beyond the rules of `plan`: what is wiped is wiped on one machine of a run, so that with Q of K acks one more copy
of every answered write is there; where it is not (Q = 1), a takeover must say so by an incident.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Literal

from simworld.network import STILL, LinkOdds
from simworld.plan import LENGTHS, Plan, odds
from simworld.weather import CALM, Odds

Kind = Literal[
    "kill",
    "power",
    "kill-at-op",
    "power-at-op",
    "kill-home",
    "power-home",
    "stop",
    "stop-home",
    "suspend",
    "leave",
    "wipe-replicas",
    "wipe-objects",
    "wipe-all",
    "cut",
    "cut-one-way",
    "alone",
    "store-cut",
    "blobs-cut",
    "blobs-out",
    "store-out",
    "compact",
    "disk-slow",
    "row-lost",
]
WIPES = ("wipe-replicas", "wipe-objects", "wipe-all")
KINDS: tuple[Kind, ...] = (
    "kill",
    "power",
    "kill-at-op",
    "kill-at-op",
    "power-at-op",
    "kill-home",
    "power-home",
    "stop",
    "stop-home",
    "stop-home",
    "suspend",
    "leave",
    "leave",
    "wipe-replicas",
    "wipe-objects",
    "wipe-all",
    "cut",
    "cut",
    "cut-one-way",
    "alone",
    "alone",
    "store-cut",
    "store-cut",
    "blobs-cut",
    "blobs-out",
    "blobs-out",
    "store-out",
    "compact",
    "disk-slow",
)


@dataclass(frozen=True)
class Shape:
    """The cluster: how many machines, K, Q, and what a takeover without a read quorum does."""

    machines: int = 3
    replicas: int = 2
    quorum: int = 2
    on_incident: Literal["serve", "wait"] = "serve"


@dataclass(frozen=True)
class Fault:
    """Something goes wrong `at` a virtual second, for `secs`, on `machine` (and between it and `other`).

    `op`: at the op-th disk operation after it. A process that dies is down for `down_secs`; `told`: its supervisor
    deregisters it, else its row stays until it is evicted.
    """

    at: float
    kind: Kind
    machine: int = 0
    other: int = 1
    secs: float = 0.0
    op: int = 1
    down_secs: float = 0.3
    told: bool = True


@dataclass(frozen=True)
class ClusterPlan(Plan):
    """A plan, and the cluster it is for."""

    shape: Shape = field(default_factory=Shape)
    links: LinkOdds = STILL


def draw(seed: int, secs: float | None = None) -> ClusterPlan:
    """The plan of a seed; one in eight is calm all through."""
    rng = random.Random(f"cluster-plan/{seed}")
    secs = secs or rng.choice(LENGTHS)
    machines, quorum = rng.choice([3, 3, 3, 4, 5]), rng.choice([2, 2, 2, 1, 0])
    faults: list[Fault] = []
    if seed % 8:
        faults = [_fault(rng, machines, secs) for _ in range(rng.randint(1, 8))]
    faults = _fair(sorted(faults, key=lambda fault: fault.at))
    # With Q = 1 a read quorum is both members: it never comes back once one was wiped.
    can_wait = quorum != 1 or not any(fault.kind in WIPES for fault in faults)
    patient = rng.random() < 0.5 and can_wait
    shape = Shape(machines, 2, quorum, "wait" if patient else "serve")
    if not faults:
        return ClusterPlan((), CALM, CALM, secs, shape)
    return ClusterPlan(tuple(faults), odds(rng), odds(rng), secs, shape, any_links(rng))


def dense(seed: int, kinds: tuple[Kind, ...], shape: Shape, links: LinkOdds = STILL, secs: float = 40.0) -> ClusterPlan:
    """These faults alone, one every few seconds.

    `row-lost` is among no other plans: the placement store loses the row of a node that lives, and then stale reads
    are nobody's fault; what was answered must be there all the same.
    """
    rng = random.Random(f"cluster-dense/{seed}")
    faults, at = [], 1.0
    while (at := at + rng.uniform(0.5, 4.0)) < secs * 0.9:
        other = rng.randrange(shape.machines)
        machine = rng.choice([n for n in range(shape.machines) if n != other])
        lasts = min(secs - at, rng.choice([0.5, 3.0, 10.0]) * rng.uniform(0.5, 1.0))
        down = rng.choice([0.3, 3.0])
        faults.append(Fault(at, rng.choice(kinds), machine, other, lasts, rng.randint(1, 40), down))
    slow = Odds(latency=0.05, slow=0.5, slow_secs=3.0)
    return ClusterPlan(tuple(_fair(faults)), slow, CALM, secs, shape, links)


def one_by_one(
    seed: int, kinds: tuple[Kind, ...], shape: Shape, links: LinkOdds, lasts: tuple[float, float], secs: float = 50.0
) -> ClusterPlan:
    """These faults alone, one after the other, each for as long as `lasts` says, over calm stores."""
    rng = random.Random(f"cluster-one/{seed}")
    faults, at = [], 3.0
    while at + lasts[1] < secs:
        for_secs = rng.uniform(*lasts)
        faults.append(Fault(at, rng.choice(kinds), 0, 1, for_secs, rng.randint(1, 40)))
        at += for_secs + rng.uniform(1.0, 6.0)
    return ClusterPlan(tuple(_fair(faults)), CALM, CALM, secs, shape, links)


def _fair(faults: list[Fault]) -> list[Fault]:
    """Wipes on one machine only: the first that is wiped."""
    wiped = next((fault.machine for fault in faults if fault.kind in WIPES), None)
    return [fault for fault in faults if fault.kind not in WIPES or fault.machine == wiped]


def _fault(rng: random.Random, machines: int, secs: float) -> Fault:
    at = 1.0 + rng.random() * (secs * 0.9 - 1.0)
    machine, other = rng.sample(range(machines), 2)
    lasts = min(secs - at, rng.choice([0.5, 3.0, 8.0, 25.0]) * (0.5 + rng.random()))
    return Fault(
        at=at,
        kind=rng.choice(KINDS),
        machine=machine,
        other=other,
        secs=lasts,
        op=int(rng.expovariate(1 / 20)) + 1,
        down_secs=min(secs - at, rng.choice([0.3, 0.3, 4.0, 20.0])),
        told=rng.random() < 0.5,
    )


def any_links(rng: random.Random) -> LinkOdds:
    """How well the machines hear each other."""
    return LinkOdds(
        latency=rng.choice([0.0002, 0.001, 0.02]),
        slow=rng.choice([0.0, 0.0, 0.02, 0.1]),
        slow_secs=rng.choice([0.05, 0.5, 3.0]),
        reset=rng.choice([0.0, 0.0, 0.001, 0.01]),
    )
