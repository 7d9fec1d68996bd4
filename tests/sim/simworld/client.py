"""A client of the world: it wants one thing at a time, and retries as the real client does.

Refused for certain and retryable: again after the advice. Unknown: again only with an idempotency key, or for a read.
"""

from __future__ import annotations

import json
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from domicile.errors import DomicileError, NoSuchObject
from domicile.node.values import Answer, BatchItem, Call, Front
from domicile.placement.records import Epoch, ObjectKey
from simworld.history import Attempt, History, Op, Operation, Shown
from simworld.ledger import plain
from simworld.loop import SimLoop

T = TypeVar("T")

PROJECT = "acme"
CALL_SECS = 30.0
PATIENCE_SECS = 60.0
ODD = {"append": "append_slowly", "read": "peek"}


class NotReached(Exception):
    """Nobody listens: nothing was sent."""


class ConnectionLost(Exception):
    """The request was sent, and its answer will not come."""


class Wire(Protocol):
    """How a client reaches the node."""

    async def ask(self, make: Callable[[Front], Awaitable[T]]) -> T:
        """Raises NotReached, ConnectionLost, and what the node raises."""
        ...


@dataclass
class Habits:
    """What a client does, in shares; the rest are reads. `odd`: in another way than the plain one; `batch`: several at
    once; `think_secs` between two wishes, drawn for each client if None."""

    append: float = 0.45
    increment: float = 0.15
    arm: float = 0.0
    delete: float = 0.03
    keyed: float = 0.6
    odd: float = 0.0
    batch: float = 0.0
    think_secs: float | None = None


class Client:
    """One client; `history` records all it does."""

    def __init__(self, name: str, wire: Wire, loop: SimLoop, history: History, rng: random.Random) -> None:
        self.name = name
        self.habits = Habits()
        self._wire = wire
        self._loop = loop
        self._history = history
        self._rng = rng
        self._wishes = 0

    def wish(self, key: ObjectKey, op: Op | None = None) -> Operation:
        """The next thing it wants of an object."""
        self._wishes += 1
        draw, habits = self._rng.random(), self.habits
        if op is None:
            if draw < habits.append:
                op = "append"
            elif draw < habits.append + habits.increment:
                op = "increment"
            elif draw < habits.append + habits.increment + habits.arm:
                op = "arm"
            else:
                op = "delete" if draw > 1 - habits.delete else "read"
        number = f"{self.name}-{self._wishes}"
        keyed = op != "read" and self._rng.random() < habits.keyed
        item = number if op in ("append", "increment", "arm") else ""
        wish = Operation(self.name, str(key), op, item, f"key-{number}" if keyed else None)
        if habits.odd and op in ODD and self._rng.random() < habits.odd:
            wish.method = ODD[op]
        return wish

    def relayed(self, key: ObjectKey, via: ObjectKey) -> Operation:
        """To have one object append to another. It carries no key: the inner call would not either."""
        self._wishes += 1
        return Operation(self.name, str(key), "append", f"{self.name}-{self._wishes}", method="relay", via=via.name)

    async def perform_together(self, wishes: list[tuple[ObjectKey, Operation]]) -> None:
        """Send them as one batch; what is left uncertain is tried again one by one."""
        now = self._loop.time()
        for _, operation in wishes:
            self._history.begin(operation)
            operation.attempts.append(Attempt(now))
        found: list[Answer | Exception]
        try:
            items = [self._line(key, operation) for key, operation in wishes]
            found = await self._wire.ask(lambda front: front.batch(wishes[0][0].scope, items, front.now() + CALL_SECS))
        except (NotReached, ConnectionLost, DomicileError) as error:
            found = [error] * len(wishes)
        waits = [self._heard(operation, one) for (_, operation), one in zip(wishes, found, strict=True)]
        for (key, operation), wait in zip(wishes, waits, strict=True):
            if wait is not None:
                await self._sleep(wait)
                await self._persist(key, operation, PATIENCE_SECS)

    async def perform(self, key: ObjectKey, operation: Operation, patience_secs: float = PATIENCE_SECS) -> None:
        """Try until something is certain, or nothing more can be found out, or patience is over."""
        self._history.begin(operation)
        await self._persist(key, operation, patience_secs)

    async def _persist(self, key: ObjectKey, operation: Operation, patience_secs: float) -> None:
        until = self._loop.time() + patience_secs
        while True:
            wait = await self._attempt(key, operation)
            if wait is None or self._loop.time() + wait > until:
                return
            await self._sleep(wait)

    async def _attempt(self, key: ObjectKey, operation: Operation) -> float | None:
        """Seconds until the next attempt; None when this was the last."""
        operation.attempts.append(Attempt(self._loop.time()))
        found: Answer | Epoch | Exception
        try:
            found = await self._wire.ask(lambda front: self._send(front, key, operation))
        except (NotReached, ConnectionLost, DomicileError) as error:
            found = error
        return self._heard(operation, found)

    def _heard(self, operation: Operation, found: Answer | Epoch | Exception) -> float | None:
        """Write down what became of the last attempt; seconds until the next, None when this was the last."""
        attempt = operation.attempts[-1]
        attempt.returned = self._loop.time()
        again = operation.key is not None or operation.op == "read"
        if isinstance(found, NotReached):
            attempt.outcome = "not_run"
            return 0.2
        if isinstance(found, NoSuchObject) and not operation.via:
            attempt.outcome, attempt.code = "absent", found.code
            return None
        if isinstance(found, DomicileError):
            attempt.outcome, attempt.code = found.outcome, found.code
            if operation.via and found.outcome == "ran":
                attempt.outcome = "unknown"  # it is the object between that rolled back
            known = attempt.outcome != "unknown"
            return (found.retry_after or 0.2) if found.retryable and (known or again) else None
        if isinstance(found, Exception):
            attempt.outcome = "unknown"
            return 0.2 if again else None
        attempt.outcome = "answered"
        operation.shown = Shown(epoch=found) if isinstance(found, Epoch) else self._shown(operation, found)
        return None

    async def _send(self, front: Front, key: ObjectKey, operation: Operation) -> Answer | Epoch:
        if operation.op == "delete":
            return await front.delete(key, None, operation.key)
        method, body = self._request(key, operation)
        asked = ObjectKey(key.scope, key.cls, operation.via) if operation.via else key
        return await front.call(Call(asked, method, body, front.now() + CALL_SECS, operation.key))

    def _line(self, key: ObjectKey, operation: Operation) -> BatchItem:
        method, body = self._request(key, operation)
        return BatchItem(key.cls, key.name, method, body, operation.key)

    def _request(self, key: ObjectKey, operation: Operation) -> tuple[str, bytes]:
        """The method and its arguments; the same for every attempt."""
        args: list[object] = [operation.item] if operation.item else []
        if operation.via:
            args.append(key.name)
        if operation.op == "arm":
            draw = random.Random(operation.item)
            args += [draw.choice([0.0, 0.5, 3.0, 12.0]), draw.choice([0, 0, 0, 1])]
        return operation.method or operation.op, json.dumps(args).encode()

    def _shown(self, operation: Operation, answer: Answer) -> Shown:
        told: dict[str, Any] = json.loads(answer.body)
        for _, name, seen in (item.split("|") for item in told["items"] if "|" in item):
            whose = str(ObjectKey(PROJECT, "Ledger", name))
            self._history.witnessed.setdefault(whose, set()).add(seen)
        who = tuple(Epoch(*epoch) for epoch in told.get("who", ()))
        items = tuple(plain(item) for item in told["items"])
        return Shown(items, told.get("value"), who, None if operation.via else answer.epoch, answer.served_by)

    async def _sleep(self, secs: float) -> None:
        done = self._loop.create_future()
        self._loop.call_later(secs * (0.5 + self._rng.random()), done.set_result, None)
        await done

    async def think(self) -> None:
        await self._sleep((self.habits.think_secs or 0.5) * self._rng.expovariate(1.0))
