"""A project's move, there and back, with caches as stale as they like (PROTOCOLS sections 2, 4 and 10).

This is ahead of the code: the workflow comes with the control plane. Whether a gate lets a claim through is already the
product's `may_claim`.

Two regions, two nodes in the first, one in the second, one object. A region's replicas hold what was answered there,
its bucket lags behind, and both stay when the project leaves. A node decides to claim by the policy it has cached; the
store commits the claim at any later time. The workflow: mark, close the gate, drain, copy, flip, open; it may cancel.

Every answer comes from a log that has every write answered before, and never are two regions' owners in their right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import NamedTuple

from domicile.placement.claims import Claim, Registration, may_claim
from domicile.placement.followed import Seen
from domicile.placement.gates import Decision
from domicile.placement.records import Birth, GateRow, ObjectKey
from smallworlds.searching import Label, put

Steps = Iterator[tuple[Label, "State"]]
Log = tuple[int, ...]

RULES = {
    "cache": "a gate in the region's own store decides: a cached policy is only a hint",
    "waits": "a gate decides, also if the move waited until every cache has seen the mark: a claim may be on its way",
    "ended": "a residency whose node is dead has not ended until a drain claim took it over and flushed it",
    "early": "the new gate opens after the copy",
    "clears": "the old gate stays closed",
    "rows": "the copy overwrites the target's old lease rows",
}

HOME = (0, 0, 1)
LOST = -1
"""What an answer shows that does not come from a log with every earlier one."""


@dataclass(frozen=True, slots=True)
class World:
    """How many writes are answered, nodes die, moves or cancels happen."""

    writes: int
    crashes: int
    moves: int
    wide: bool = False


WORLDS = {
    "there": World(writes=2, crashes=1, moves=1),
    "back": World(writes=2, crashes=0, moves=2),
    "both": World(writes=2, crashes=1, moves=2, wide=True),
}
WITNESS = {**dict.fromkeys(("cache", "waits", "ended", "early", "clears"), "there"), "rows": "back"}


class Policy(NamedTuple):
    """The project's home as control says it; `version` of the row."""

    home: int
    moving: bool
    version: int


class Claiming(Enum):
    """A claim that was decided and is on its way."""

    SENT = 1


class Node(NamedTuple):
    """`residency`: None, a claim on its way, or the log that it serves."""

    cached: Policy
    residency: Claiming | Log | None = None
    alive: bool = True


class Clean(NamedTuple):
    """A lease row that says released, at this log."""

    log: Log


class Region(NamedTuple):
    """`open`: its gate. `row`: the lease row, a node's or released. `named`: the manifest names the replicas."""

    open: bool
    row: int | Clean | None
    replicas: Log
    bucket: Log
    named: bool


class Workflow(NamedTuple):
    step: str
    old: int
    new: int
    moves: int


class State(NamedTuple):
    policy: Policy
    nodes: tuple[Node, ...]
    regions: tuple[Region, ...]
    workflow: Workflow
    told: Log
    crashes: int


@cache
def admitted(*, gate_open: bool, drain: bool) -> bool:
    """Whether the product lets a claim over a free row be tried at such a gate."""
    gate = Decision((("gates/p", Seen(GateRow(gate_open, 1), 1, 1)),))
    key = ObjectKey("p", "C", "n")
    by = Registration("n", 1)
    return may_claim(Claim(key=key, by=by, lease=None, gate=gate, birth=Birth(), now_ms=0, nonce="n", drain=drain))


class Moves:
    """One world, with some rules dropped."""

    def __init__(self, world: World, dropped: frozenset[str] = frozenset()) -> None:
        assert dropped <= RULES.keys(), f"no such rule: {sorted(dropped - RULES.keys())}"
        self._world = world
        self._dropped = dropped
        self._gated = not dropped & {"cache", "waits"}

    def start(self) -> State:
        policy = Policy(0, False, 0)
        regions = (Region(True, None, (), (), True), Region(False, None, (), (), False))
        return State(policy, (Node(policy),) * len(HOME), regions, Workflow("idle", 0, 1, 0), (), 0)

    def alike(self, state: State) -> State:
        """The two nodes of the first region are interchangeable: a trace may rename them between two steps."""
        one, other, far = state.nodes
        here, there = state.regions
        if _order(one, owns=here.row == 0) <= _order(other, owns=here.row == 1):
            return state
        row = 1 - here.row if isinstance(here.row, int) else here.row
        return state._replace(nodes=(other, one, far), regions=(here._replace(row=row), there))

    def broken(self, state: State) -> str:
        if LOST in state.told:
            return "an answer lacks a write that was answered before"
        in_their_right = {
            HOME[n]
            for n, node in enumerate(state.nodes)
            if node.alive and isinstance(node.residency, tuple) and state.regions[HOME[n]].row == n
        }
        return "two regions have a right to answer" if len(in_their_right) > 1 else ""

    def steps(self, state: State) -> Steps:
        for n, node in enumerate(state.nodes):
            if not node.alive:
                continue
            if node.cached != state.policy:
                yield ("node", n, "refreshes its policy"), _node(state, n, node._replace(cached=state.policy))
            yield from self._claim(state, n, node)
            if isinstance(node.residency, tuple):
                yield from self._serve(state, n, node.residency)
            if node.residency is not None and state.crashes < self._world.crashes:
                dead = _node(state, n, Node(node.cached, None, False))
                yield ("node", n, "dies"), dead._replace(crashes=state.crashes + 1)
        yield from self._move(state)

    def _claim(self, state: State, n: int, node: Node) -> Steps:
        region = state.regions[HOME[n]]
        drain = self._is_left_behind(state, HOME[n])
        if node.residency is None and (drain or (node.cached.home == HOME[n] and not node.cached.moving)):
            yield ("node", n, "decides to claim"), _node(state, n, node._replace(residency=Claiming.SENT))
        if not isinstance(node.residency, Claiming):
            return
        drain = drain and "ended" not in self._dropped
        free = not isinstance(region.row, int) or region.row == n or not state.nodes[region.row].alive
        if free and (not self._gated or admitted(gate_open=region.open, drain=drain)):
            log = _laid(region)
            after = _region(state, HOME[n], region._replace(row=n))
            yield ("the claim of node", n, "commits and lays", log), _node(after, n, node._replace(residency=log))
        yield ("the claim of node", n, "fails"), _node(state, n, node._replace(residency=None))

    def _is_left_behind(self, state: State, here: int) -> bool:
        """Whether a drain claim is asked for: the gate is closed, and the row is a dead node's."""
        region, workflow = state.regions[here], state.workflow
        asked = self._gated and not region.open and workflow.step == "draining" and workflow.old == here
        return asked and isinstance(region.row, int) and not state.nodes[region.row].alive

    def _serve(self, state: State, n: int, log: Log) -> Steps:
        here = HOME[n]
        region = state.regions[here]
        if region.row != n:
            return  # superseded: no quorum, no manifest, no release
        if len(log) < self._world.writes:
            longer = (*log, len(log) if log == state.told else LOST)
            after = _node(state, n, state.nodes[n]._replace(residency=longer))
            after = _region(after, here, region._replace(replicas=longer, named=True))
            yield ("node", n, "answers a write:", longer), after._replace(told=(*state.told, longer[-1]))
        if region.bucket != log:
            yield ("node", n, "puts", log), _region(state, here, region._replace(bucket=log, named=True))
        else:
            after = _region(state, here, region._replace(row=Clean(log)))
            yield ("node", n, "releases"), _node(after, n, state.nodes[n]._replace(residency=None))

    def _move(self, state: State) -> Steps:
        step, old, new, moves = state.workflow
        policy, source = state.policy, state.regions[old]

        def then(step: str) -> State:
            return state._replace(workflow=state.workflow._replace(step=step))

        if step == "idle" and moves < self._world.moves:
            yield ("mark",), then("marked")._replace(policy=Policy(old, True, policy.version + 1))
        elif step == "marked" and self._gated:
            yield ("close the old gate",), _region(then("draining"), old, source._replace(open=False))
        elif step == "marked":
            if "cache" in self._dropped or all(node.cached == policy or not node.alive for node in state.nodes):
                yield ("go on: the mark is there",), then("draining")
        elif step == "draining":
            yield from self._drained(state, then)
            if self._gated:
                after = _region(then("idle"), old, source._replace(open=True))
                cancelled = after.workflow._replace(moves=moves + 1)
                yield ("cancel",), after._replace(policy=Policy(old, False, policy.version + 1), workflow=cancelled)
        elif step == "early" and not isinstance(source.row, int):
            copied = state.regions[new]._replace(bucket=source.bucket, named=False)
            yield ("copy late",), _region(then("over"), new, copied)
        elif step == "copied":
            yield ("flip the home",), then("flipped")._replace(policy=Policy(new, False, policy.version + 1))
        elif step == "flipped":
            yield ("open the new gate",), self._opened(state)

    def _drained(self, state: State, then: Callable[[str], State]) -> Steps:
        _, old, new, _ = state.workflow
        source, target = state.regions[old], state.regions[new]
        if "early" in self._dropped:
            early = _region(then("early"), new, target._replace(open=True))
            yield ("open the new gate",), early._replace(policy=Policy(new, False, state.policy.version + 1))
        dead = isinstance(source.row, int) and not state.nodes[source.row].alive
        ended = not isinstance(source.row, int) or ("ended" in self._dropped and dead)
        if ended or (not self._gated and dead and source.replicas == source.bucket):
            row = target.row if "rows" in self._dropped else Clean(source.bucket)
            copied = target._replace(row=row, bucket=source.bucket, named=False)
            yield ("drained: copy", source.bucket), _region(then("copied"), new, copied)

    def _opened(self, state: State) -> State:
        _, old, new, moves = state.workflow
        if self._gated:
            state = _region(state, new, state.regions[new]._replace(open=True))
        if "clears" in self._dropped:
            state = _region(state, old, state.regions[old]._replace(open=True))
        return state._replace(workflow=Workflow("idle", new, old, moves + 1))


def _order(node: Node, *, owns: bool) -> tuple[object, ...]:
    residency = node.residency
    log = residency if isinstance(residency, tuple) else ()
    return node.alive, node.cached, residency is None, isinstance(residency, Claiming), log, owns


def _laid(region: Region) -> Log:
    """What a claim lays: the released copy if the replicas have exactly that, else the longest that is asked."""
    if isinstance(region.row, Clean) and region.replicas == region.row.log:
        return region.row.log
    return max(region.replicas, region.bucket, key=len) if region.named else region.bucket


def _node(state: State, n: int, node: Node) -> State:
    return state._replace(nodes=put(state.nodes, n, node))


def _region(state: State, here: int, region: Region) -> State:
    return state._replace(regions=put(state.regions, here, region))
