"""What the world's clients did and saw: one record of every operation, and of every try it took.

An *operation* is what a client wanted once (`append("c1-7")`); an *attempt* is one request it sent for it. Operations
speak of a **ledger**: an object whose every answer shows all it holds, in order, so that answers reveal the order of
everything and a whole history can be judged in almost one pass.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Literal

from domicile.placement.records import Epoch

Op = Literal["append", "increment", "read", "delete", "arm"]
Outcome = Literal["answered", "not_run", "ran", "unknown", "absent", "open"]

WRITES = ("append", "increment")


@dataclass
class Attempt:
    """One request: when it left, when something was heard, and what.

    `ran` is a refusal that rolled back; `absent` is `no_such_object`; `open` was never heard of again.
    """

    invoked: float
    returned: float | None = None
    outcome: Outcome = "open"
    code: str = ""


@dataclass
class Shown:
    """What an answer showed. `items`: everything in the object, oldest first, the answer's own write last.

    `who` is the epoch each item was written under, where the object keeps that; `value` the counter's.
    """

    items: tuple[str, ...] = ()
    value: int | None = None
    who: tuple[Epoch, ...] = ()
    epoch: Epoch | None = None
    served_by: str = "owner"


@dataclass
class Operation:
    """One wish of one client. `item` is unique in the history: what an append or an increment leaves behind.

    An `arm` sets an alarm whose handler appends `item` later. `method` is how it is sent, where that is not `op`;
    `via` names the object that is asked to append to this one.
    """

    client: str
    object: str
    op: Op
    item: str = ""
    key: str | None = None
    attempts: list[Attempt] = field(default_factory=list)
    shown: Shown | None = None
    method: str = ""
    via: str = ""

    @property
    def outcome(self) -> Outcome:
        """Of the whole: answered if any attempt was, unknown if any may have run."""
        outcomes = [attempt.outcome for attempt in self.attempts]
        if "answered" in outcomes:
            return "answered"
        if "unknown" in outcomes or "open" in outcomes:
            return "unknown"
        return outcomes[-1] if outcomes else "not_run"

    @property
    def invoked(self) -> float:
        """When it may first have run: refused attempts do not count, and a read answers for its last attempt only."""
        if self.op == "read" and self.outcome == "answered":
            return self.attempts[-1].invoked
        live = [a.invoked for a in self.attempts if a.outcome not in ("not_run", "ran")]
        return live[0] if live else self.attempts[0].invoked

    @property
    def returned(self) -> float:
        """When it had certainly run; infinite while nobody knows."""
        if self.outcome not in ("answered", "absent"):
            return float("inf")
        return self.attempts[-1].returned or 0.0

    @property
    def may_have_run(self) -> bool:
        """False when every attempt said that nothing of it ran or stayed."""
        return any(attempt.outcome in ("answered", "unknown", "open") for attempt in self.attempts)


class History:
    """All operations of one run, in the order in which they began.

    `witnessed` has, by object, items that its methods told to other objects: what leaves an object by a call is shown.
    """

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.witnessed: dict[str, set[str]] = {}

    def begin(self, operation: Operation) -> Operation:
        self.operations.append(operation)
        return operation

    def of_objects(self) -> dict[str, list[Operation]]:
        """Operations by object."""
        by_object: dict[str, list[Operation]] = {}
        for operation in self.operations:
            by_object.setdefault(operation.object, []).append(operation)
        return by_object

    def dump(self) -> str:
        """One JSON line an operation; the same run gives the same text."""
        return "\n".join(json.dumps(asdict(operation), sort_keys=True) for operation in self.operations) + "\n"

    def steady(self, name: str) -> bool:
        """Whether the object was never deleted, as far as anybody can know."""
        return not any(op.op == "delete" and op.object == name and op.may_have_run for op in self.operations)

    def answered(self) -> int:
        return sum(operation.outcome == "answered" for operation in self.operations)


def firings(operations: list[Operation]) -> list[Operation]:
    """What armed alarms do: each appends its item once a life, at a time that nobody is told."""
    return [
        Operation("alarm", op.object, "append", op.item, op.key, [_untold(attempt) for attempt in op.attempts])
        for op in operations
        if op.op == "arm" and op.may_have_run
    ]


def _untold(attempt: Attempt) -> Attempt:
    known = attempt.outcome in ("not_run", "ran", "absent")
    return Attempt(attempt.invoked, outcome=attempt.outcome if known else "unknown")
