"""Renewal, admission deadline and eviction: nobody is evicted while it may serve (PROTOCOLS section 3).

One node, A, renews its row; another, B, suspects it. Every message takes any time and may be lost. The deadline is the
product's `Admission`, B's judgement is the product's `Evictor`, each started anew from what the state says. Time is in
whole steps; what happens within one step happens in any order. Only how long ago things were makes a difference, so
the search covers any number of renewals over any length of time.

From the moment the store deletes A's row somebody else may answer for A's objects: A may serve nothing then.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple, cast

from domicile.placement.admission import Admission, Timing
from domicile.placement.eviction import Evictor
from domicile.placement.keys import Keys
from domicile.placement.records import NodeRow, encode
from domicile.placement.store import At, Condition, Conflict, Delete, Mutation, Record, Store, holds
from smallworlds.searching import Label

RULES = {
    "keepalive": "a renewal rewrites the row; a grant's age says nothing for the time until the delete arrives",
    "stale": "only a committed rewrite renews; a keepalive's answer never does",
    "unchanged": "the delete is conditioned on the version that was watched",
    "window": "the row is watched for no less than the admission time",
    "before": "the deadline is counted from before the renewal was sent",
}

KEYS = Keys("small", "here")
A = "a"
NODE = KEYS.node(A)
ANY = -1
NOW = 32
"""States are shifted in time so that it is always this late."""


@dataclass(frozen=True, slots=True)
class World:
    """The settings, in steps of time."""

    admission: int
    margin: int
    wide: bool = False

    @property
    def timing(self) -> Timing:
        ttl = float(self.admission + self.margin)
        return Timing(ttl=ttl, heartbeat=1.0, timeout=0.5, admission=self.admission, margin=self.margin)

    @property
    def hasty(self) -> Timing:
        """With a window shorter than the admission time."""
        return dataclasses.replace(self.timing, margin=-1.0)


WORLDS = {"tight": World(2, 1), "even": World(2, 2), "long": World(4, 2, wide=True)}
WITNESS = dict.fromkeys(RULES, "tight")


class Renewal(NamedTuple):
    """On its way since `sent`; `applied` once the store has it."""

    sent: int
    applied: bool = False


class Question(NamedTuple):
    """B's read of A's row, asked at a time; what it found once the store has answered."""

    asked: int
    answered: bool = False
    version: int = 0


class Sighting(NamedTuple):
    """The version of A's row that B has seen, and since when."""

    version: int
    since: int


class State(NamedTuple):
    """`version` of A's row, 0 once deleted. `renewed`: when the store last had a renewal. `delete`: on its way.

    Times are absolute; it is NOW.
    """

    deadline: int
    renewal: Renewal | None
    version: int
    renewed: int
    sighting: Sighting | None
    question: Question | None
    delete: int | None


class Evictions:
    """One world, with some rules dropped."""

    def __init__(self, world: World, dropped: frozenset[str] = frozenset()) -> None:
        assert dropped <= RULES.keys(), f"no such rule: {sorted(dropped - RULES.keys())}"
        self._timing = world.timing
        self._timing.check()
        self._watching = world.hasty if "window" in dropped else world.timing
        self._dropped = dropped
        self._by_grant = bool(dropped & {"keepalive", "stale"})

    def start(self) -> State:
        return State(deadline(self._timing, NOW, NOW), None, 1, NOW, None, None, None)

    def broken(self, state: State) -> str:
        return "A serves after its eviction" if not state.version and serves(self._timing, state.deadline) else ""

    def alike(self, state: State) -> State:
        """What is too long ago to matter is as long ago as just does not matter; of versions, their order."""
        admission, fence = int(self._timing.admission), int(self._timing.fence)
        until = state.deadline if state.deadline > NOW else NOW
        renewal = state.renewal and state.renewal._replace(sent=max(state.renewal.sent, NOW - admission))
        question, sighting = state.question, state.sighting
        asked = question.asked if question else NOW
        bound = max(asked, NOW - fence)
        if sighting:
            waited = min(asked - sighting.since, fence)
            sighting = sighting._replace(since=bound - waited if waited >= 0 else max(sighting.since, bound))
        question = question and question._replace(asked=bound)
        renewed = max(state.renewed, NOW - fence)
        return _few_versions(State(until, renewal, state.version, renewed, sighting, question, state.delete))

    def steps(self, state: State) -> Iterator[tuple[Label, State]]:
        yield ("time goes on",), _earlier(state)
        yield from self._renew(state)
        if state.version:
            yield from self._by_age(state) if self._by_grant else self._watch(state)
        if state.delete is not None:
            yield from self._evict(state)

    def _renew(self, state: State) -> Iterator[tuple[Label, State]]:
        renewal = state.renewal
        if renewal is None:
            yield ("A sends a renewal",), state._replace(renewal=Renewal(NOW))
            return
        applied = renewal._replace(applied=True)
        if not renewal.applied and state.version:
            if "stale" in self._dropped:
                yield ("a deposed leader answers the keepalive",), state._replace(renewal=applied)
            if "keepalive" in self._dropped:
                yield ("the store renews the grant",), state._replace(renewal=applied, renewed=NOW)
            if not self._by_grant:
                after = state._replace(renewal=applied, version=state.version + 1, renewed=NOW)
                yield ("the store rewrites the row, version", after.version), after
        if renewal.applied:
            sent = NOW if "before" in self._dropped else renewal.sent
            until = deadline(self._timing, state.deadline, sent)
            yield ("A hears of it",), state._replace(renewal=None, deadline=until)
        yield ("A gives the renewal up",), state._replace(renewal=None)

    def _by_age(self, state: State) -> Iterator[tuple[Label, State]]:
        """What the rule replaced: B asks how old the grant's last keepalive is."""
        if state.delete is None and NOW - state.renewed >= self._timing.fence:
            yield ("B reads the grant's age: old enough",), state._replace(delete=state.version)

    def _watch(self, state: State) -> Iterator[tuple[Label, State]]:
        known = state.sighting.version if state.sighting else 0
        for version in range(known + 1, state.version + 1):
            yield ("B's watch shows version", version), state._replace(sighting=saw(state.sighting, version))
        question = state.question
        if question is None and state.delete is None:
            yield ("B asks for the row",), state._replace(question=Question(NOW))
        elif question is not None and not question.answered:
            answer = question._replace(answered=True, version=state.version)
            yield ("the store answers version", state.version), state._replace(question=answer)
        elif question is not None:
            sighting, delete = judged(self._watching, state.sighting, question)
            what = "wants it deleted" if delete else "waits"
            yield ("B hears of it and", what), state._replace(question=None, sighting=sighting, delete=delete)

    def _evict(self, state: State) -> Iterator[tuple[Label, State]]:
        """The delete arrives, at any time."""
        assert state.delete is not None
        row = Record(NODE, b"", state.version, 1) if state.version else None
        unconditioned = state.delete == ANY or "unchanged" in self._dropped
        if row is not None and (unconditioned or holds(At(NODE, state.delete), row)):
            yield ("the store deletes A's row",), state._replace(version=0, delete=None)
        else:
            yield ("the delete meets another version",), state._replace(delete=None)


def _earlier(state: State) -> State:
    """A step of time: everything was one step longer ago."""
    renewal, sighting, question = state.renewal, state.sighting, state.question
    return state._replace(
        deadline=state.deadline - 1,
        renewal=renewal and renewal._replace(sent=renewal.sent - 1),
        renewed=state.renewed - 1,
        sighting=sighting and sighting._replace(since=sighting.since - 1),
        question=question and question._replace(asked=question.asked - 1),
    )


def _few_versions(state: State) -> State:
    """The same order of versions with small numbers; where others came between two, one still does."""
    sighting, question = state.sighting, state.question
    known = {state.version, sighting.version if sighting else 0, question.version if question else 0}
    known |= {state.delete or 0}
    small, last, number = {ANY: ANY, 0: 0}, 0, 0
    for version in sorted(known - {ANY, 0}):
        number += min(version - last, 2)
        small[version] = number
        last = version
    return state._replace(
        version=small[state.version],
        sighting=sighting and sighting._replace(version=small[sighting.version]),
        question=question and question._replace(version=small[question.version]),
        delete=None if state.delete is None else small[state.delete],
    )


# The product's own judgement, as steps from one value to the next.


@cache
def deadline(timing: Timing, until: int, sent: int) -> int:
    """A's deadline once it hears of a renewal that was sent at `sent`; it was `until` before."""
    admission = Admission(timing, _At(0).monotonic)
    admission.renewed(until - timing.admission)
    admission.renewed(sent)
    return int(admission.remaining())


@cache
def serves(timing: Timing, until: int) -> bool:
    """Whether an answer may leave A now."""
    clock = _At(0)
    admission = Admission(timing, clock.monotonic)
    admission.renewed(until - timing.admission)
    while clock.now < NOW:
        clock.now = min(NOW, clock.now + timing.tick)
        admission.tick()
    return admission.remaining() > 0


@cache
def saw(sighting: Sighting | None, version: int) -> Sighting | None:
    """What B remembers once its watch has shown a version."""
    evictor, clock = _evictor(None, sighting, Timing())
    clock.now = NOW
    evictor.saw(A, version)
    return _remembered(evictor)


@cache
def judged(timing: Timing, sighting: Sighting | None, question: Question) -> tuple[Sighting | None, int | None]:
    """What B remembers after a look at the row, and the version it wants deleted: ANY for no condition at all."""
    store = _Asked(question.version)
    evictor, store.clock = _evictor(store, sighting, timing)
    store.clock.now = question.asked
    with contextlib.suppress(StopIteration):
        evictor.suspect(A).send(None)
    if store.conditions is None:
        return _remembered(evictor), None
    versions = [condition.version for condition in store.conditions if isinstance(condition, At)]
    return _remembered(evictor), versions[0] if versions else ANY


def _evictor(store: _Asked | None, sighting: Sighting | None, timing: Timing) -> tuple[Evictor, _At]:
    clock = _At(sighting.since if sighting else 0)
    evictor = Evictor(cast(Store, store), KEYS, timing, clock)
    if sighting:
        evictor.saw(A, sighting.version)
    return evictor, clock


def _remembered(evictor: Evictor) -> Sighting | None:
    known = evictor._sightings.get(A)
    return Sighting(known.version, int(known.at)) if known else None


class _At:
    """A clock that stands until it is set."""

    def __init__(self, now: float) -> None:
        self.now = now

    def monotonic(self) -> float:
        return self.now

    def wall_ms(self) -> int:
        return 0

    async def sleep(self, secs: float) -> None:
        raise AssertionError("nothing waits here")


class _Asked:
    """A placement store that answers one read, now, and keeps what the one write is conditioned on."""

    def __init__(self, version: int) -> None:
        self.clock = _At(0)
        self.conditions: list[Condition] | None = None
        self._rows = {NODE: Record(NODE, encode(NodeRow(A, "")), version, 1)} if version else {}

    async def read(self, keys: Sequence[str]) -> dict[str, Record]:
        self.clock.now = NOW
        return {key: self._rows[key] for key in keys if key in self._rows}

    async def write(self, conditions: Sequence[Condition], mutations: Sequence[Mutation]) -> Conflict:
        assert Delete(NODE) in mutations
        self.conditions = list(conditions)
        return Conflict({NODE: self._rows.get(NODE)})
