"""Clients that want one thing at a time, ride through whatever the node does, and write down each request.

The record is the simulation's (`simworld.history`), so that one checker holds the promises over both.
"""

from __future__ import annotations

import http.client
import itertools
import json
import random
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from simworld.history import Attempt, History, Op, Operation, Outcome, Shown

from domicile.placement.records import Epoch

PROJECT = "drill"
CALL_SECS = 20.0  # longer than any settings of the drills let a call last
AGAIN_SECS = 0.02
PATIENCE_SECS = 90.0
SLEEPY_SECS = 1.5
SMALL, SEGMENT, LARGE = 0, 6_000, 60_000  # a frame or two, more than a manifest's tail, about a rotation


@dataclass
class Answered:
    """One HTTP answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class Line:
    """One client's connection to the node. Not for several threads."""

    def __init__(self, port: int, secs: float = CALL_SECS) -> None:
        self._http = http.client.HTTPConnection("127.0.0.1", port, timeout=secs)

    def ask(self, method: str, path: str, body: Any = None, key: str | None = None) -> Answered:
        """Raises NotReachedError, when nothing was sent, and LostError, when no whole answer came."""
        try:
            if self._http.sock is None:
                self._http.connect()
        except OSError as error:
            self._http.close()
            raise NotReachedError(str(error)) from error
        headers = {"Idempotency-Key": key} if key else {}
        try:
            self._http.request(method, path, None if body is None else json.dumps(body), headers)
            answer = self._http.getresponse()
            return Answered(answer.status, {n.lower(): v for n, v in answer.getheaders()}, answer.read())
        except (OSError, http.client.HTTPException) as error:
            self._http.close()
            raise LostError(repr(error)) from error

    def call(self, name: str, method: str, *args: Any, key: str | None = None) -> Answered:
        """A call of the probe `name`."""
        return self.ask("POST", f"/v1/{PROJECT}/objects/Probe/{name}/{method}", list(args), key)

    def close(self) -> None:
        self._http.close()


class NotReachedError(Exception):
    """Nobody listens: nothing was sent."""


class LostError(Exception):
    """The request was sent, at least in part, and no whole answer came."""


@dataclass
class Wish:
    """What a client wants: a method of an object, and how that stands in the history."""

    name: str
    op: Op
    item: str = ""
    method: str = ""
    args: tuple[Any, ...] = ()
    keyed: bool = True
    operation: Operation = field(init=False)


class Client:
    """One client. `perform` tries until something is certain, or nothing more can be found out."""

    def __init__(self, name: str, port: int, history: History, patience_secs: float = PATIENCE_SECS) -> None:
        self.name = name
        self.line = Line(port)
        self._history = history
        self._patience_secs = patience_secs
        self._numbers = itertools.count(1)

    def append(self, name: str, padding: int = SMALL, *, keyed: bool = True) -> Operation:
        item = self._item()
        return self.perform(Wish(name, "append", item, "append", (item, padding), keyed))

    def arm(self, name: str, secs: float) -> Operation:
        """An append with an alarm by its item's name."""
        item = self._item()
        return self.perform(Wish(name, "append", item, "arm", (item, secs)))

    def linger(self, name: str, secs: float) -> Operation:
        """An append that takes its time, without a key: it is sent once."""
        item = self._item()
        return self.perform(Wish(name, "append", item, "linger", (item, secs), keyed=False))

    def stop_node(self, name: str, how: Literal["block", "hold"], secs: float) -> Operation:
        """An append that lets the whole node stand still, without a key: it is sent once."""
        item = self._item()
        return self.perform(Wish(name, "append", item, how, (item, secs), keyed=False))

    def read(self, name: str) -> Operation:
        return self.perform(Wish(name, "read", "", "read"))

    def delete(self, name: str) -> Operation:
        return self.perform(Wish(name, "delete", self._item()))

    def _item(self) -> str:
        return f"{self.name}-{next(self._numbers)}"

    def perform(self, wish: Wish) -> Operation:
        key = f"key-{wish.item}" if wish.keyed and wish.op != "read" else None
        item = wish.item if wish.op == "append" else ""
        operation = self._history.begin(Operation(self.name, wish.name, wish.op, item, key))
        until = time.monotonic() + self._patience_secs
        while self._attempt(wish, operation) and time.monotonic() < until:
            time.sleep(AGAIN_SECS)
        return operation

    def _attempt(self, wish: Wish, operation: Operation) -> bool:
        """Whether to try again."""
        attempt = Attempt(time.monotonic())
        operation.attempts.append(attempt)
        again = operation.key is not None or operation.op == "read"
        try:
            answer = self._send(wish, operation.key)
        except NotReachedError:
            return self._heard(attempt, "not_run", "not_reached", again=True)
        except LostError as error:
            return self._heard(attempt, "unknown", str(error), again=again)
        told = answer.json()
        if answer.status == 200:
            if wish.op != "delete" or operation.shown is None:
                operation.shown = _shown(wish, answer)
            return self._heard(attempt, "answered", "", again=False)
        if told["code"] == "no_such_object":
            return self._heard(attempt, "absent", "no_such_object", again=False)
        known = told["outcome"] != "unknown"
        return self._heard(attempt, told["outcome"], told["code"], again=(known and told["retryable"]) or again)

    def _send(self, wish: Wish, key: str | None) -> Answered:
        if wish.op == "delete":
            return self.line.ask("DELETE", f"/v1/{PROJECT}/objects/Probe/{wish.name}", key=key)
        return self.line.call(wish.name, wish.method, *wish.args, key=key)

    def _heard(self, attempt: Attempt, outcome: Outcome, code: str, *, again: bool) -> bool:
        attempt.outcome, attempt.code = outcome, code
        attempt.returned = time.monotonic()
        return again


def _shown(wish: Wish, answer: Answered) -> Shown:
    epoch = Epoch(*(int(part) for part in answer.headers["domicile-epoch"].split(".")))
    items = tuple(map(sys.intern, answer.json()["items"])) if wish.op != "delete" else ()
    return Shown(items, epoch=epoch, served_by=answer.headers.get("domicile-served-by", "owner"))


class Load:
    """Clients in threads that use a few objects in every way there is, until `finish`.

    `era` names the objects they share: raised now and then, it keeps each one's list short.
    """

    def __init__(
        self, port: int, history: History, *, clients: int = 4, seed: int = 1, think_secs: float = 0.02
    ) -> None:
        self.history = history
        self.era = 0
        self.armed: list[Operation] = []
        self.failed: list[BaseException] = []
        self._think_secs = think_secs
        self.over = threading.Event()
        self._threads = [
            threading.Thread(
                target=self._run, args=(Client(f"c{n}", port, history), random.Random(f"{seed}-{n}")), daemon=True
            )
            for n in range(clients)
        ]

    def start(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def finish(self, secs: float = 2 * PATIENCE_SECS) -> None:
        """Every client ends what it is at: what has a key is answered first."""
        self.over.set()
        for thread in self._threads:
            thread.join(secs)
            assert not thread.is_alive(), "a client hangs"
        if self.failed:
            raise self.failed[0]

    def _run(self, client: Client, rng: random.Random) -> None:
        sleepy = [f"sleepy-{client.name}-{n}" for n in range(3)]
        touched = dict.fromkeys(sleepy, 0.0)
        try:
            while not self.over.wait(self._think_secs * rng.expovariate(1.0)):
                ready = [name for name in sleepy if time.monotonic() - touched[name] > SLEEPY_SECS]
                if ready:
                    touched[ready[0]] = time.monotonic()
                    client.append(ready[0], rng.choice((SMALL, SEGMENT)))
                else:
                    self._one(client, rng)
        except BaseException as error:  # noqa: BLE001 - told by `finish`, in the test's own thread
            self.failed.append(error)
        finally:
            client.line.close()

    def _one(self, client: Client, rng: random.Random) -> None:
        era, draw = self.era, rng.random()
        shared, own = f"shared-{era}-{rng.randrange(3)}", f"own-{era}-{client.name}"
        if draw < 0.40:
            client.append(shared, rng.choices((SMALL, SEGMENT, LARGE), (6, 3, 2))[0], keyed=rng.random() < 0.8)
        elif draw < 0.58:
            client.read(shared)
        elif draw < 0.72:
            client.append(own, rng.choice((SMALL, SEGMENT)))
        elif draw < 0.79:
            client.delete(own)
        elif draw < 0.90:
            self.armed.append(client.arm(f"alarms-{era}-{client.name}", rng.choice((0, 0.05, 0.4))))
        else:
            client.append(f"new-{client.name}-{rng.getrandbits(48):x}")


def progress(history: History, count: int, wait: Callable[..., Any]) -> None:
    """Wait until `count` more calls are answered."""
    goal = history.answered() + count
    wait(lambda: history.answered() >= goal, f"{count} more calls are answered")
