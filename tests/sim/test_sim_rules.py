"""Rules of one node, dropped one at a time from the production code: the world sees what each of them is there for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from simworld.blobs import SimBlobs
from simworld.client import Habits
from simworld.nodes import options_for
from simworld.plan import Kind, dense
from simworld.world import run_seed

from domicile.node import activation, idempotency, own_copy
from domicile.node.call import CallPath
from domicile.node.turns import Turns

WITHIN = 200


@dataclass(frozen=True)
class Rule:
    """`drop` makes what stands in the rule's place from what is there. `first`: seeds that were seen to miss it.

    With `kinds` the plan has these faults alone, and many; `deletions` is their share of what is asked then.
    """

    owner: Any
    name: str
    drop: Callable[[Any], Any]
    first: tuple[int, ...] = ()
    kinds: tuple[Kind, ...] = ()
    deletions: float = 0.0


def options(rule, seed):
    """The production node under the plan that suits the rule."""
    usual = options_for("real")
    if not rule.kinds:
        return usual
    habits = Habits(delete=rule.deletions, arm=0.1, odd=0.4)
    return replace(usual, plan=dense(seed, rule.kinds), objects=3, habits=lambda rng: habits)


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
    return lambda *args: claim(*args[:-1], "0")


RULES = {
    "answers wait for their flight": Rule(CallPath, "_landed", lambda old: _at_once),
    "an answer that only looked waits too": Rule(CallPath, "_landed", _for_writes_alone, (111,), ("power",)),
    "a file of another boot is verified": Rule(
        own_copy, "_same_boot", lambda old: lambda *args: True, (4,), ("power", "power-at-op"), 0.1
    ),
    "a key runs nothing twice": Rule(idempotency, "find", lambda old: _no_record, (7, 9)),
    "a manifest is conditioned on its tag": Rule(SimBlobs, "_put", _unconditional),
    "a call that reached others is not refused": Rule(
        Turns, "reached_outside", lambda old: property(lambda turns: False), (113, 182)
    ),
    "a row proves which claim wrote it": Rule(activation, "Claim", _same_nonce, (38,)),
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", sorted(RULES))
def test_a_rule_dropped_from_the_production_node_is_missed(name, monkeypatch):
    """The world is not blind: without the rule some seed finds what it is there for."""
    rule = RULES[name]
    monkeypatch.setattr(rule.owner, rule.name, rule.drop(getattr(rule.owner, rule.name)))
    for seed in [*rule.first, *range(1, WITHIN)]:
        if run_seed(seed, options(rule, seed)).violations:
            return
    pytest.fail(f"{WITHIN} seeds did not miss the rule: {name}")
