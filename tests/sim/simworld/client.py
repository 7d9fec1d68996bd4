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
from domicile.node.values import Answer, Call, Front
from domicile.placement.records import Epoch, ObjectKey
from simworld.history import Attempt, History, Op, Operation, Shown
from simworld.loop import SimLoop

T = TypeVar("T")

CALL_SECS = 30.0
PATIENCE_SECS = 60.0


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
    """What a client does, in shares; the rest are reads."""

    append: float = 0.45
    increment: float = 0.15
    delete: float = 0.03
    keyed: float = 0.6
    think_secs: float = 0.5


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
            else:
                op = "delete" if draw > 1 - habits.delete else "read"
        number = f"{self.name}-{self._wishes}"
        keyed = op != "read" and self._rng.random() < habits.keyed
        item = number if op in ("append", "increment") else ""
        return Operation(self.name, str(key), op, item, f"key-{number}" if keyed else None)

    async def perform(self, key: ObjectKey, operation: Operation, patience_secs: float = PATIENCE_SECS) -> None:
        """Try until something is certain, or nothing more can be found out, or patience is over."""
        self._history.begin(operation)
        until = self._loop.time() + patience_secs
        while True:
            wait = await self._attempt(key, operation)
            if wait is None or self._loop.time() + wait > until:
                return
            await self._sleep(wait)

    async def _attempt(self, key: ObjectKey, operation: Operation) -> float | None:
        """Seconds until the next attempt; None when this was the last."""
        attempt = Attempt(self._loop.time())
        operation.attempts.append(attempt)
        wait: float | None = None
        again = operation.key is not None or operation.op == "read"
        try:
            shown = await self._wire.ask(lambda front: self._send(front, key, operation))
        except NotReached:
            attempt.outcome, wait = "not_run", 0.2
        except ConnectionLost:
            attempt.outcome, wait = "unknown", (0.2 if again else None)
        except NoSuchObject as error:
            attempt.outcome, attempt.code, wait = "absent", error.code, None
        except DomicileError as error:
            attempt.outcome, attempt.code = error.outcome, error.code
            known = error.outcome != "unknown"
            wait = (error.retry_after or 0.2) if error.retryable and (known or again) else None
        else:
            attempt.outcome, operation.shown, wait = "answered", shown, None
        attempt.returned = self._loop.time()
        return wait

    async def _send(self, front: Front, key: ObjectKey, operation: Operation) -> Shown:
        if operation.op == "delete":
            return Shown(epoch=await front.delete(key, None, operation.key))
        body = json.dumps([operation.item] if operation.item else []).encode()
        call = Call(key, operation.op, body, front.now() + CALL_SECS, operation.key)
        return _shown(await front.call(call))

    async def _sleep(self, secs: float) -> None:
        done = self._loop.create_future()
        self._loop.call_later(secs * (0.5 + self._rng.random()), done.set_result, None)
        await done

    async def think(self) -> None:
        await self._sleep(self.habits.think_secs * self._rng.expovariate(1.0))


def _shown(answer: Answer) -> Shown:
    told: dict[str, Any] = json.loads(answer.body)
    who = tuple(Epoch(*epoch) for epoch in told.get("who", ()))
    return Shown(tuple(told["items"]), told.get("value"), who, answer.epoch, answer.served_by)
