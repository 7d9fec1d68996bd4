"""Rules of one node, dropped one at a time from the production code: the world sees what each of them is there for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from simworld.blobs import SimBlobs
from simworld.client import Habits
from simworld.nodes import options_for
from simworld.plan import Kind, dense
from simworld.weather import CALM, Odds
from simworld.world import run_seed

from domicile.node import activation
from domicile.node.call import CallPath
from domicile.node.due import DueAlarms
from domicile.node.sqlite import idempotency
from domicile.node.sqlite.turns import Turns
from domicile.node.takeover import lay as takeover
from domicile.node.takeover import own_copy

WITHIN = 200
SLOW = Odds(latency=0.1, slow=0.5, slow_secs=2.0)
LOSSY = Odds(latency=0.01, request_lost=0.3, answer_lost=0.1, late=0.1, late_secs=3.0, timeout_secs=0.3)


@dataclass(frozen=True)
class Rule:
    """`drop` makes what stands in the rule's place from what is there. `first`: seeds that were seen to miss it.

    With `kinds` the plan has these faults alone, and many; `habits` is what is asked then,
    `blobs` and `store` how these are.
    """

    owner: Any
    name: str
    drop: Callable[[Any], Any]
    first: tuple[int, ...] = ()
    kinds: tuple[Kind, ...] = ()
    habits: Habits = field(default_factory=lambda: Habits(delete=0.0, arm=0.1, odd=0.4))
    blobs: Odds | None = None
    store: Odds = field(default_factory=lambda: CALM)
    secs: float = 60.0
    objects: int = 3


def options(rule, seed):
    """The production node under the plan that suits the rule."""
    usual = options_for("real")
    if not rule.kinds:
        return usual
    plan = dense(seed, rule.kinds, rule.secs)
    if rule.blobs is not None:
        plan = replace(plan, blobs=rule.blobs)
    if rule.blobs is not None or rule.store is not CALM:
        plan = replace(plan, store=rule.store)
    return replace(usual, plan=plan, objects=rule.objects, wishes=150, habits=lambda rng: replace(rule.habits))


async def _at_once(path, residency, ran):
    """The gate, left open."""


def _for_writes_alone(landed):
    async def gate(path, residency, ran):
        if ran.wrote:
            await landed(path, residency, ran)

    return gate


def _no_record(*args, **more):
    """An idempotency record, never found."""


def _unconditional(put):
    return lambda blobs, key, data, condition: put(blobs, key, data, None)


def _same_nonce(claim):
    return lambda *args: claim(*args[:6], "0", *args[7:])


def _confirmed(laid):
    return lambda *args, **more: replace(laid(*args, **more), confirmed=True)


async def _not_mirrored(alarms):
    """The mirror, not written."""


RULES = {
    "answers wait for their flight": Rule(CallPath, "_landed", lambda old: _at_once, (17,)),
    "an answer that only looked waits too": Rule(CallPath, "_landed", _for_writes_alone, (67,), ("power",)),
    "a file of another boot is verified": Rule(
        own_copy,
        "_same_boot",
        lambda old: lambda *args: True,
        (17,),
        ("power", "power-at-op"),
        Habits(odd=0.3, think_secs=0.05),
        Odds(latency=0.004),
        secs=20.0,
        objects=2,
    ),
    "a key runs nothing twice": Rule(idempotency, "find", lambda old: _no_record, (9,)),
    "a manifest is conditioned on its tag": Rule(SimBlobs, "_put", _unconditional, (10,)),
    "a call that reached others is not refused": Rule(
        Turns,
        "reached_outside",
        lambda old: property(lambda turns: False),
        (),
        ("compact",),
        Habits(append=0.3, increment=0.1, delete=0.3, odd=1.0),
        secs=20.0,
    ),
    "a row proves which claim wrote it": Rule(
        activation,
        "Claim",
        _same_nonce,
        (),
        ("disk-ill", "compact", "compact"),
        Habits(delete=0.05, think_secs=0.4),
        store=LOSSY,
        secs=30.0,
    ),
    "what was laid is confirmed before it is shown": Rule(
        takeover,
        "Laid",
        _confirmed,
        (5,),
        ("kill", "power", "power"),
        Habits(think_secs=0.1),
        SLOW,
        secs=20.0,
        objects=1,
    ),
    "an alarm is mirrored before its setting is answered": Rule(
        DueAlarms, "after_round", lambda old: _not_mirrored, (), ("kill", "power"), Habits(arm=0.3), secs=20.0
    ),
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", sorted(RULES))
def test_a_rule_dropped_from_the_production_node_is_missed(name, monkeypatch):
    """The world is not blind: without the rule some seed finds what it is there for."""
    rule = RULES[name]
    monkeypatch.setattr(rule.owner, rule.name, rule.drop(getattr(rule.owner, rule.name)))
    for seed in [*rule.first, *range(1, WITHIN)]:
        if run_seed(seed, options(rule, seed)).violations:
            monkeypatch.undo()
            assert run_seed(seed, options(rule, seed)).violations == [], "with the rule the seed is a good one"
            return
    pytest.fail(f"{WITHIN} seeds did not miss the rule: {name}")
