"""Breadth first over every state a model can reach; the first broken promise found is one of the shortest."""

from __future__ import annotations

import gc
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Generic, Protocol, TypeVar

S = TypeVar("S", bound=Hashable)

Label = tuple[object, ...]


class Model(Protocol[S]):
    """One world with its rules."""

    def start(self) -> S: ...

    def steps(self, state: S) -> Iterable[tuple[Label, S]]:
        """Everything that may happen next. The label's parts, joined by blanks, say it."""
        ...

    def alike(self, state: S) -> S:
        """The one state that stands for all that differ only in what makes no difference."""
        ...

    def broken(self, state: S) -> str:
        """The promise that this state breaks; empty for none."""
        ...


@dataclass(frozen=True, slots=True)
class Found:
    """How a search ended: `broken` is empty when all `states` were seen and keep every promise."""

    states: int
    broken: str = ""
    trace: tuple[str, ...] = ()

    def __str__(self) -> str:
        if not self.broken:
            return f"no violation in {self.states} states: searched to the end"
        return f"VIOLATION after {self.states} states: {self.broken}\n" + "\n".join(f"  {line}" for line in self.trace)


class Search(Generic[S]):
    """One search of one model."""

    def __init__(self, model: Model[S]) -> None:
        self._model = model
        self._before: dict[S, S | None] = {}

    def run(self) -> Found:
        """To the end, or to the first state that breaks a promise."""
        collecting = gc.isenabled()
        gc.disable()  # it makes no cycles, and states by the hundred thousand are much to look through
        try:
            return self._run()
        finally:
            if collecting:
                gc.enable()

    def _run(self) -> Found:
        model, before = self._model, self._before
        first = model.alike(model.start())
        before[first] = None
        level = [first]
        while level:
            following = []
            met = set()  # as reached: most are reached in many ways, and to find their likes takes longest
            for state in level:
                for _, reached in model.steps(state):
                    if reached in met:
                        continue
                    met.add(reached)
                    like = model.alike(reached)
                    if like in before:
                        continue
                    before[like] = state
                    if broken := model.broken(like):
                        return Found(len(before), broken, tuple(self._trace(like)))
                    following.append(like)
            level = following
        return Found(len(before))

    def _trace(self, state: S) -> list[str]:
        """The steps to a state: labels are not kept, so each is looked for again."""
        path = [state]
        while (earlier := self._before[path[-1]]) is not None:
            path.append(earlier)
        path.reverse()
        return [self._label(at, to) for at, to in pairwise(path)]

    def _label(self, at: S, to: S) -> str:
        model = self._model
        label = next(label for label, reached in model.steps(at) if model.alike(reached) == to)
        return " ".join(str(part) for part in label)


def search(model: Model[S]) -> Found:
    """Search a model."""
    return Search(model).run()


T = TypeVar("T")


def put(items: tuple[T, ...], index: int, item: T) -> tuple[T, ...]:
    """The tuple with one item replaced."""
    return (*items[:index], item, *items[index + 1 :])
