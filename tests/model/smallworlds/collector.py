"""Chunks and the collector: every key the manifest names is in the store, always (PROTOCOLS sections 7 and 10).

This is ahead of the code: the collector comes with the control plane. What a rotation may reuse is already the
product's `next_refs`.

One object of one chunk whose content flips between two values. Two owners, the second by takeover; the first goes on
as if it were not superseded. Two collectors, each as slow as it likes: read the manifest, list, delete key by key.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from domicile.node.chunks import ChunkRef, next_refs
from domicile.placement.records import Epoch, Generation
from smallworlds.searching import Label, put

Steps = Iterator[tuple[Label, "State"]]

RULES = {
    "hash": "a chunk's key carries the generation that put it; what the store happens to have is put again",
    "reput": "a chunk's key carries the generation that put it, even if all is put again but what the manifest names",
    "exists": "a key is reused only if the manifest being replaced names it, not because it exists",
    "young": "the collector leaves keys of generations newer than the manifest it read",
    "orphans": "where there is no manifest the collector deletes nothing",
}

A, B = b"a", b"b"


class Key(NamedTuple):
    """A chunk in the store. `generation` is BARE where keys are bare hashes."""

    generation: Generation
    content: bytes

    def __str__(self) -> str:
        return f"{self.generation}/{self.content.decode()}"


BARE = Generation(Epoch(0, 0), 0)


@dataclass(frozen=True, slots=True)
class World:
    """How many rotations each owner makes, how many passes each of two collectors."""

    rotations: tuple[int, int]
    passes: tuple[int, int]
    wide: bool = False


WORLDS = {
    "alone": World((2, 0), (1, 1)),
    "takeover": World((2, 1), (2, 0)),
    "both": World((2, 2), (2, 2)),
}
WITNESS = {"hash": "takeover", "reput": "takeover", "exists": "takeover", "young": "alone", "orphans": "alone"}


class Manifest(NamedTuple):
    """`seq` is its tag."""

    seq: int
    generation: Generation
    key: Key


class Owner(NamedTuple):
    """`before`: the manifest it replaces next, None for none. `following`: (generation, key) of its rotation."""

    alive: bool
    before: Manifest | None = None
    turns: int = 0
    following: tuple[Generation, Key] | None = None
    is_put: bool = False


class Job(NamedTuple):
    """What a collector read, then what of its list it condemned."""

    read: Manifest | None
    condemned: frozenset[Key] | None = None


class Collector(NamedTuple):
    passes: int
    job: Job | None = None


class State(NamedTuple):
    owners: tuple[Owner | None, ...]
    keys: frozenset[Key]
    manifest: Manifest | None
    collectors: tuple[Collector, ...]


class Collections:
    """One world, with some rules dropped."""

    def __init__(self, world: World, dropped: frozenset[str] = frozenset()) -> None:
        assert dropped <= RULES.keys(), f"no such rule: {sorted(dropped - RULES.keys())}"
        self._world = world
        self._dropped = dropped
        self._bare = bool(dropped & {"hash", "reput"})

    def start(self) -> State:
        return State((Owner(True), None), frozenset(), None, tuple(map(Collector, self._world.passes)))

    def alike(self, state: State) -> State:
        return state._replace(collectors=tuple(sorted(state.collectors, key=repr)))

    def broken(self, state: State) -> str:
        manifest = state.manifest
        return "the manifest names a chunk that is gone" if manifest and manifest.key not in state.keys else ""

    def steps(self, state: State) -> Steps:
        for e, owner in enumerate(state.owners):
            if owner is None:
                if state.manifest is not None:
                    fenced = state.manifest._replace(seq=state.manifest.seq + 1)
                    after = state._replace(manifest=fenced, owners=put(state.owners, e, Owner(True, fenced)))
                    yield (e, "claims and fences the manifest"), after
            elif owner.alive and owner.following is None:
                yield from self._rotate(state, e, owner)
            elif owner.alive:
                yield from self._ship(state, e, owner)
        for c, collector in enumerate(state.collectors):
            yield from self._collect(state, c, collector)

    def _rotate(self, state: State, e: int, owner: Owner) -> Steps:
        if owner.turns == self._world.rotations[e]:
            return
        generation = Generation(Epoch(1, e + 1), owner.turns + 1)
        for content in (A, B):
            key = self._key(state, owner, content, generation)
            named = owner.before is not None and owner.before.key == key
            there = named or (key in state.keys and bool(self._dropped & {"hash", "exists"}))
            turned = owner._replace(turns=owner.turns + 1, following=(generation, key), is_put=there)
            yield (e, "rotates to", key), state._replace(owners=put(state.owners, e, turned))

    def _key(self, state: State, owner: Owner, content: bytes, generation: Generation) -> Key:
        if self._bare:
            return Key(BARE, content)
        replaced = [ChunkRef(owner.before.key.content, owner.before.key.generation)] if owner.before else []
        ref = next_refs([content], replaced, generation)[0]
        if "exists" in self._dropped and ref not in replaced:
            known = sorted(key for key in state.keys if key.content == content)
            ref = ChunkRef(content, known[0].generation) if known else ref
        return Key(ref.generation, ref.hash)

    def _ship(self, state: State, e: int, owner: Owner) -> Steps:
        assert owner.following is not None
        generation, key = owner.following
        if not owner.is_put:
            after = state._replace(keys=state.keys | {key}, owners=put(state.owners, e, owner._replace(is_put=True)))
            yield (e, "puts chunk", key), after
        elif state.manifest == owner.before:
            manifest = Manifest(owner.before.seq + 1 if owner.before else 1, generation, key)
            known = Owner(True, manifest, owner.turns)
            yield (
                (e, "puts a manifest naming", key),
                state._replace(manifest=manifest, owners=put(state.owners, e, known)),
            )
        else:
            yield (e, "is fenced"), state._replace(owners=put(state.owners, e, Owner(False)))

    def _collect(self, state: State, c: int, collector: Collector) -> Steps:
        passes, job = collector

        def then(after: Job | None, keys: frozenset[Key] = state.keys, passes: int = passes) -> State:
            return state._replace(keys=keys, collectors=put(state.collectors, c, Collector(passes, after)))

        if job is None:
            if passes:
                yield ("collector", c, "reads the manifest"), then(Job(state.manifest), passes=passes - 1)
        elif job.condemned is None:
            condemned = frozenset(key for key in state.keys if self._is_garbage(key, job.read))
            yield (
                ("collector", c, "lists and condemns", len(condemned)),
                then(Job(job.read, condemned) if condemned else None),
            )
        else:
            key = min(job.condemned)
            left = job.condemned - {key}
            yield ("collector", c, "deletes", key), then(Job(job.read, left) if left else None, state.keys - {key})

    def _is_garbage(self, key: Key, manifest: Manifest | None) -> bool:
        if manifest is None:
            return "orphans" in self._dropped
        return key != manifest.key and (self._bare or "young" in self._dropped or key.generation <= manifest.generation)
