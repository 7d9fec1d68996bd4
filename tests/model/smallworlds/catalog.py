"""The models by name: their worlds, their rules, and where a dropped rule loses a write."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from smallworlds import collector, copies, eviction, move, position, replicas
from smallworlds.searching import Found, Model, search


class World(Protocol):
    """What the worlds of every model say."""

    @property
    def wide(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Entry:
    """One model. `witness`: rule to the world in which its loss shows."""

    make: Callable[[Any, frozenset[str]], Model[Any]]
    worlds: Mapping[str, World]
    rules: Mapping[str, str]
    witness: Mapping[str, str]

    def search(self, world: str, dropped: frozenset[str] = frozenset()) -> Found:
        """One world, to the end or to what breaks."""
        return search(self.make(self.worlds[world], dropped))

    def without(self, rule: str) -> Found:
        """The world that shows what the rule is for, without it."""
        return self.search(self.witness[rule], frozenset({rule}))

    def asked_for(self) -> list[str]:
        """The worlds to search as designed: the wide ones only with DOMICILE_MODELS=full."""
        full = os.environ.get("DOMICILE_MODELS") == "full"
        return [name for name, world in self.worlds.items() if full or not world.wide]


MODELS = {
    "position": Entry(position.Positions, position.WORLDS, position.RULES, position.WITNESS),
    "eviction": Entry(eviction.Evictions, eviction.WORLDS, eviction.RULES, eviction.WITNESS),
    "collector": Entry(collector.Collections, collector.WORLDS, collector.RULES, collector.WITNESS),
    "move": Entry(move.Moves, move.WORLDS, move.RULES, move.WITNESS),
}


def forget() -> None:
    """What the product answered so far is asked again."""
    for module in (copies, replicas, eviction, move):
        for function in vars(module).values():
            if callable(clear := getattr(function, "cache_clear", None)):
                clear()
