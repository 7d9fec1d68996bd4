"""The promises, held over a whole history; nothing here knows what workload or what faults made it.

Named checks come first, because a name says what broke: something refused that ran (`refused-ran`), something nobody
sent (`invented`), a write twice (`twice`), an answered write missing (`lost`), two orders of one object (`forked`), a
read that misses what was answered before it began (`stale`), something shown and taken back (`taken-back`), two lives
mixed (`lives-mixed`), an epoch that fell (`epoch-fell`), a counter that disagrees (`miscounted`). Last comes the whole:
`linear.search` looks for one order of everything that explains every answer (`not-linearizable`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from domicile.placement.records import Epoch
from simworld.history import WRITES, History, Operation, firings
from simworld.linear import ended_meanwhile, search

_NEVER = float("inf")


@dataclass(frozen=True)
class Violation:
    """One broken promise."""

    kind: str
    object: str
    detail: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.object}: {self.detail}"


def check(history: History) -> list[Violation]:
    """Every violation found; an empty list is a history that keeps the promises."""
    found = []
    for name, operations in history.of_objects().items():
        named = list(_Ledger(name, operations).violations())
        found += named
        if not named and not search([*operations, *firings(operations)]):
            found.append(Violation("not-linearizable", name, "no order of the calls explains every answer"))
    return found + list(_witnesses(history))


def _witnesses(history: History) -> Iterator[Violation]:
    """What a method told another object is shown: it must not be taken back. The run ends with a read of everything."""
    for name, witnessed in history.witnessed.items():
        shown = {item for op in history.operations if op.object == name for item in _items(op)}
        if history.steady(name) and (gone := witnessed - shown):
            yield Violation("taken-back", name, f"{min(gone)} was told to another object, and is not there")


class _Ledger:
    """One object's operations, and the lives its answers showed: an item is the first of at most one life."""

    def __init__(self, name: str, operations: list[Operation]) -> None:
        self.name = name
        self.operations = operations
        self.seen = [op for op in operations if op.shown is not None]
        self.by_item = {op.item: op for op in [*operations, *firings(operations)] if op.op in WRITES}
        self.lives: dict[str, tuple[str, ...]] = {}
        for op in self.seen:
            items = _items(op)
            if items and len(items) > len(self.lives.get(items[0], ())):
                self.lives[items[0]] = items

    def violations(self) -> Iterator[Violation]:
        yield from self._items_known()
        yield from self._own_write_last()
        forks = list(self._one_order())
        yield from forks or self._real_time()
        yield from self._lives()
        yield from self._epochs()

    def _items_known(self) -> Iterator[Violation]:
        lives_of: dict[str, int] = {}
        for life in self.lives.values():
            for item in dict.fromkeys(life):
                lives_of[item] = lives_of.get(item, 0) + 1
            for item in sorted({item for item in life if life.count(item) > 1}):
                yield self._broken("twice", f"{item} stands {life.count(item)} times")
        for item, lives in lives_of.items():
            op = self.by_item.get(item)
            if op is None:
                yield self._broken("invented", f"{item} was shown, and nobody wrote it")
            elif not op.may_have_run:
                yield self._broken("refused-ran", f"{item} was shown, and every try of it was refused")
            elif lives > 1 + sum(a.outcome in ("unknown", "open") for a in op.attempts[:-1]) + self._resent(op):
                yield self._broken("lives-mixed", f"{item} stands in {lives} lives of the object")

    def _resent(self, op: Operation) -> int:
        """How often a node may have sent it again into a next life: under a key, for each deletion meanwhile."""
        return ended_meanwhile(op, self.operations) if op.key is not None else 0

    def _own_write_last(self) -> Iterator[Violation]:
        for op in self.seen:
            items = _items(op)
            if op.op in WRITES and (not items or items[-1] != op.item):
                yield self._broken("lost", f"{op.item} was answered, and its answer does not show it")
            assert op.shown is not None
            if op.shown.value is not None:
                count = sum(1 for item in items if item in self.by_item and self.by_item[item].op == "increment")
                if op.shown.value != count:
                    yield self._broken("miscounted", f"{op.shown.value} shown after {count} increments")

    def _one_order(self) -> Iterator[Violation]:
        if len(self.lives) > 1 and not any(op.op == "delete" for op in self.operations):
            yield self._broken("lost", f"it began anew, undeleted, with each of {sorted(self.lives)}")
        for op in self.seen:
            items = _items(op)
            if items and self.lives[items[0]][: len(items)] != items:
                longest = self.lives[items[0]]
                at = next(i for i, item in enumerate(items) if longest[i] != item)
                yield self._broken("forked", f"at {at}: {items[at]} for {op.client}, {longest[at]} for another")

    def _real_time(self) -> Iterator[Violation]:
        """Within one life, an answer that began after another shows at least what that one showed."""
        deletes = any(op.op == "delete" and op.outcome != "not_run" for op in self.operations)
        for life in self.lives:
            ops = [op for op in self.seen if _items(op)[:1] == (life,) or (not _items(op) and not deletes)]
            returns = sorted(ops, key=lambda op: op.returned)
            most: Operation | None = None
            next_return = 0
            for op in sorted(ops, key=lambda op: op.invoked):
                while next_return < len(returns) and returns[next_return].returned < op.invoked:
                    if most is None or len(_items(returns[next_return])) > len(_items(most)):
                        most = returns[next_return]
                    next_return += 1
                if most is not None and len(_items(op)) < len(_items(most)):
                    yield self._missing(op, most)
            yield from self._seen_before_sent(life, ops)

    def _seen_before_sent(self, life: str, ops: list[Operation]) -> Iterator[Violation]:
        earliest = _NEVER
        ends = {len(_items(op)): min(op.returned, _NEVER) for op in sorted(ops, key=lambda op: -op.returned)}
        for length in range(len(self.lives[life]), 0, -1):
            earliest = min(earliest, ends.get(length, _NEVER))
            op = self.by_item.get(self.lives[life][length - 1])
            if op is not None and op.attempts and op.attempts[0].invoked > earliest:
                yield self._broken("invented", f"{op.item} was shown before it was sent")

    def _lives(self) -> Iterator[Violation]:
        """What was written and answered before a deletion began is never shown after the deletion was answered, unless
        a former try of it was still on its way."""
        for deletion in self.operations:
            if deletion.op != "delete" or deletion.outcome != "answered":
                continue
            void = {
                item
                for item, op in self.by_item.items()
                if op.returned < deletion.invoked and all(a.outcome not in ("unknown", "open") for a in op.attempts)
            }
            for op in self.seen:
                risen = void.intersection(_items(op)) if op.invoked > deletion.returned else ()
                if risen:
                    yield self._broken("lives-mixed", f"{min(risen)} was deleted, and shown again to {op.client}")

    def _missing(self, op: Operation, most: Operation) -> Violation:
        missing = _items(most)[len(_items(op))]
        writer = self.by_item.get(missing)
        if writer is None or writer.outcome != "answered" or writer.returned >= op.invoked:
            return self._broken("taken-back", f"{missing} was shown to {most.client}, then not to {op.client}")
        ever_again = any(
            missing in _items(later) and later.returned > op.returned for later in self.seen if later is not writer
        )
        kind = "stale" if op.op == "read" and ever_again else "lost"
        return self._broken(kind, f"{missing} was answered at {writer.returned:.3f}, missing at {op.invoked:.3f}")

    def _epochs(self) -> Iterator[Violation]:
        for op in self.seen:
            assert op.shown is not None
            who = op.shown.who
            if any(later < earlier for earlier, later in pairwise(who)):
                yield self._broken("epoch-fell", f"inside the object: {[str(epoch) for epoch in who]}")
        highest: Epoch | None = None
        returns = sorted((op for op in self.seen if _epoch(op) and not _replayed(op)), key=lambda op: op.returned)
        next_return = 0
        for op in sorted(returns, key=lambda op: op.attempts[-1].invoked):
            while next_return < len(returns) and returns[next_return].returned < op.attempts[-1].invoked:
                highest = max(highest or Epoch(0, 0), _epoch(returns[next_return]) or Epoch(0, 0))
                next_return += 1
            epoch = _epoch(op)
            if highest is not None and epoch is not None and epoch < highest:
                yield self._broken("epoch-fell", f"{op.op} {op.item} answered under {epoch} after {highest}")

    def _broken(self, kind: str, detail: str) -> Violation:
        return Violation(kind, self.name, detail)


def _items(op: Operation) -> tuple[str, ...]:
    return op.shown.items if op.shown is not None and op.op != "delete" else ()


def _replayed(op: Operation) -> bool:
    """Whether the answer may be a record of an earlier attempt, shown again under a later epoch."""
    return op.op != "read" and any(attempt.outcome == "unknown" for attempt in op.attempts)


def _epoch(op: Operation) -> Epoch | None:
    return op.shown.epoch if op.shown is not None else None
