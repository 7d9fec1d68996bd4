"""How well a remote store behaves: latencies, lost messages, late effects, outages; one place for every remote twin.

A request to a store has two halves, its way there and its effect, and the way back. `Weather.request` draws both: what
the caller learns and what really happens are separate, as they are on a network.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from simworld.loop import SimFuture, SimLoop
from simworld.process import dead

T = TypeVar("T")


@dataclass
class Odds:
    """Shares of requests, 0 to 1, and times in seconds. The default is a calm day."""

    latency: float = 0.004
    slow: float = 0.0
    slow_secs: float = 2.0
    refused: float = 0.0
    request_lost: float = 0.0
    answer_lost: float = 0.0
    late: float = 0.0
    late_secs: float = 20.0
    timeout_secs: float = 3.0


CALM = Odds()


class Weather:
    """Draws the fate of each request. `outages` are windows [from, to) of virtual time in which nothing is answered."""

    def __init__(self, loop: SimLoop, rng: random.Random) -> None:
        self.loop = loop
        self.odds = CALM
        self.outages: list[tuple[float, float]] = []
        self._rng = rng

    def out(self) -> bool:
        """Whether an outage covers this moment."""
        now = self.loop.time()
        return any(start <= now < end for start, end in self.outages)

    async def request(self, effect: Callable[[], T], fail: Callable[[str, bool], Exception], *, writes: bool) -> T:
        """The result of `effect`, or what it raises, after a way there and back.

        `fail(detail, maybe)` makes the error of a request without an answer; with `maybe` the effect may have come, or
        may still come after the caller has learned this, or after its process died.
        """
        answer = self.loop.create_future()
        if not dead():
            self.loop.in_world(self._send, answer, effect, fail, writes)
        result: T = await answer
        return result

    def _send(
        self, answer: SimFuture, effect: Callable[[], T], fail: Callable[[str, bool], Exception], writes: bool
    ) -> None:
        odds, rng, later = self.odds, self._rng, self.loop.call_later
        if rng.random() < odds.refused:
            later(self._latency(), _give, answer, fail("refused", False))
        elif self.out() and rng.random() < 0.5:
            later(self._latency(), _give, answer, fail("not reachable", False))
        elif self.out() or rng.random() < odds.request_lost:
            later(odds.timeout_secs, _give, answer, fail("no answer: the request was lost", writes))
        elif writes and rng.random() < odds.late:
            later(odds.timeout_secs * (0.2 + rng.random()), _give, answer, fail("no answer yet", True))
            later(odds.timeout_secs * 0.1 + rng.random() * odds.late_secs, _quietly, effect)
        elif rng.random() < odds.answer_lost:
            later(odds.timeout_secs, _give, answer, fail("no answer: it was lost", writes))
            later(self._latency(), _quietly, effect)
        else:
            later(self._latency(), self._land, answer, effect)

    def _land(self, answer: SimFuture, effect: Callable[[], T]) -> None:
        result: T | Exception
        try:
            result = effect()
        except Exception as error:  # noqa: BLE001 - the store's refusal travels back as the answer
            result = error
        self.loop.call_later(self._latency(), _give, answer, result)

    def _latency(self) -> float:
        secs = self.odds.latency * (0.2 + self._rng.expovariate(1.0))
        if self.odds.slow and self._rng.random() < self.odds.slow:
            secs += self._rng.random() * self.odds.slow_secs
        return secs


def _quietly(effect: Callable[[], object]) -> None:
    with contextlib.suppress(Exception):  # the refusal has nobody to go to
        effect()


def _give(answer: SimFuture, result: object) -> None:
    if answer.done():
        return
    if isinstance(result, Exception):
        answer.set_exception(result)
    else:
        answer.set_result(result)
