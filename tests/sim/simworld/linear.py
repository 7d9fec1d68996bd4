"""Is there one order of an object's operations, agreeing with real time, that explains every answer?

The search of Wing and Gong with Lowe's memory: at each step one of the operations that may come next is taken, never
one that began after another still waiting had returned. Answers that show the whole object leave almost no choice: a
read of the present state is taken at once, and a write of unknown outcome only where some answer shows that it came
next. What remains open are deletions, so it is near linear. `search_plainly` is the same question without those
shortcuts, for small histories: it proves the shortcuts right.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations, permutations

from simworld.history import WRITES, Attempt, Operation

State = int
"""What an object holds, as a number: 0 is nothing, and `States` knows which is which."""


class States:
    """Every state that some answer shows, and every state on the way there: a tree of items, its nodes numbered."""

    def __init__(self) -> None:
        self._after: dict[tuple[State, str], State] = {}
        self._longest: dict[str, tuple[tuple[str, ...], list[State]]] = {}

    def of(self, items: tuple[str, ...]) -> State:
        """The number of this state. Answers mostly show more and more of one list: that is found without walking it."""
        if not items:
            return 0
        longest, path = self._longest.get(items[0], ((), []))
        if longest[: len(items)] == items:
            return path[len(items) - 1]
        state, path = 0, []
        for item in items:
            state = self._after.setdefault((state, item), len(self._after) + 1)
            path.append(state)
        if len(items) > len(longest):
            self._longest[items[0]] = (items, path)
        return state

    def after(self, state: State, item: str) -> State | None:
        """The state that `item` makes of it; None where no answer ever shows that."""
        return self._after.get((state, item))


def search(operations: Iterable[Operation]) -> bool:
    """Whether such an order exists."""
    return _Search(operations).found()


class _Search:
    def __init__(self, operations: Iterable[Operation]) -> None:
        seen = list(operations)
        seen += _run_again(seen)
        self.states = States()
        for op in sorted(seen, key=lambda op: -len(op.shown.items) if op.shown is not None else 0):
            if op.shown is not None:
                self.states.of(op.shown.items)
        self.ops = sorted((op for op in seen if self._matters(op)), key=lambda op: op.invoked)
        self.shows = [self.states.of(op.shown.items) if op.shown is not None else 0 for op in self.ops]
        self.invoked = [op.invoked for op in self.ops]
        self.returned = [op.returned for op in self.ops]
        self.must = sum(1 << i for i, op in enumerate(self.ops) if op.returned != float("inf"))

    def _matters(self, op: Operation) -> bool:
        if op.outcome in ("answered", "absent"):
            return True
        return op.may_have_run and (op.op in WRITES or op.op == "delete")

    def found(self) -> bool:
        stack: list[tuple[int, State]] = [(0, 0)]
        known: set[tuple[int, State]] = set()
        while stack:
            done, state = stack.pop()
            done = self._take_reads(done, state)
            if done & self.must == self.must:
                return True
            if (done, state) in known:
                continue
            known.add((done, state))
            for i in self._next(done):
                after = self._after(i, state)
                if after is not None:
                    stack.append((done | 1 << i, after))
        return False

    def _take_reads(self, done: int, state: State) -> int:
        """Answers that show this very state change nothing: taking them now forbids nothing later."""
        while True:
            taken = done
            for i in self._next(done):
                if self._free(i) and self.shows[i] == state:
                    taken |= 1 << i
            if taken == done:
                return done
            done = taken

    def _next(self, done: int) -> list[int]:
        """Operations not yet taken that began before every other untaken one had returned."""
        rest = []
        earliest = float("inf")
        first = (~done & (done + 1)).bit_length() - 1
        for i in range(first, len(self.ops)):
            if done >> i & 1:
                continue
            if self.invoked[i] > earliest:
                break
            rest.append(i)
            earliest = min(earliest, self.returned[i])
        return rest

    def _free(self, i: int) -> bool:
        """Whether it changes no item: a read, an alarm set, or a call that found no object."""
        op = self.ops[i]
        return op.op in ("read", "arm") or op.outcome == "absent"

    def _after(self, i: int, state: State) -> State | None:
        op = self.ops[i]
        if self._free(i):
            return state if self.shows[i] == state else None
        if op.op == "delete":
            return 0
        after = self.states.after(state, op.item)
        if op.shown is not None and self.shows[i] != after:
            return None
        return after


def ended_meanwhile(op: Operation, operations: Iterable[Operation]) -> int:
    """How many lives of the object may have ended between the first moment `op` may have run and its answer."""
    return sum(other.invoked < op.returned for other in _deletions_after(op, operations))


def _deletions_after(op: Operation, operations: Iterable[Operation]) -> list[Operation]:
    """Those that may have come after a try of `op`."""
    return [each for each in operations if each.op == "delete" and each.may_have_run and op.invoked < each.returned]


def _run_again(operations: list[Operation]) -> list[Operation]:
    """A record of a key ends with the incarnation: an attempt of unknown outcome may have run in a life now gone, and
    a later one in the next; or it lay on the way while a later one was answered, and runs after the deletion. Under a
    key a node makes such attempts itself. Not so a deletion: its key goes on into the next life."""
    again = []
    for op in operations:
        if op.op not in WRITES or not op.may_have_run:
            continue
        maybe = [attempt for attempt in op.attempts[:-1] if attempt.outcome in ("unknown", "open")]
        maybe = maybe[: len(_deletions_after(op, operations))]
        if op.key is not None:
            maybe += [Attempt(op.invoked, outcome="unknown")] * (ended_meanwhile(op, operations) - len(maybe))
        again += [Operation(op.client, op.object, op.op, op.item, op.key, [attempt]) for attempt in maybe]
    return again


def search_plainly(operations: Iterable[Operation]) -> bool:
    """Every subset of the unknown ones, every order: for up to seven operations."""
    ops = list(operations)
    certain = [op for op in ops if op.outcome in ("answered", "absent")]
    unknown = [op for op in ops if op.outcome == "unknown" and op.op != "read"]
    for count in range(len(unknown) + 1):
        for happened in combinations(unknown, count):
            if any(_explains(order) for order in permutations([*certain, *happened])):
                return True
    return False


def _explains(order: tuple[Operation, ...]) -> bool:
    state: tuple[str, ...] = ()
    for i, op in enumerate(order):
        if any(later.returned < op.invoked for later in order[i + 1 :]):
            return False
        if op.op == "delete" and op.outcome != "absent":
            state = ()
        elif op.op in WRITES and op.outcome != "absent":
            state = (*state, op.item)
        if op.outcome == "absent":
            if state:
                return False
        elif op.shown is not None and op.op != "delete" and op.shown.items != state:
            return False
    return True
