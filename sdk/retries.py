"""One exchange with a cluster: attempts and pauses until there is a result, an error worth raising, or no time left.

A generator that yields what is to be done, `Send` or `Pause`, and is told what came of it. The two clients only carry
it out, so there is one place that decides what is tried again.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

from domicile.errors import DomicileError, OutcomeUnknown
from domicile.requests import Lost, Reply, Request, judge

# An attempt waits this much longer than it asked the node to work, so that the node's own answer is what arrives.
ANSWER_GRACE_SECS = 1.0


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses between attempts: doubling from `first_secs` to `most_secs`, each cut by up to half at random."""

    first_secs: float = 0.05
    most_secs: float = 2.0

    def pause(self, attempt: int, retry_after: float | None, random: Callable[[], float]) -> float:
        """Seconds before attempt number `attempt` (the first retry is 1); never less than the node asked for."""
        longest: float = min(self.most_secs, self.first_secs * 2.0 ** min(attempt - 1, 30))
        jittered = longest * (1 - random() / 2)
        # All clients are told the same Retry-After: the jitter is added to it, lest they come back as one.
        return jittered if retry_after is None else max(0.0, retry_after) + jittered


@dataclass(frozen=True, slots=True)
class Send:
    """Send the request; tell the Reply, or Lost. `left_secs` is what the node may use."""

    request: Request
    left_secs: float


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait."""

    secs: float


Steps = Generator[Send | Pause, Reply | Lost | None, Any]


def exchange(
    request: Request, timeout_secs: float, clock: Callable[[], float], random: Callable[[], float], backoff: Backoff
) -> Steps:
    """Carry out a request within `timeout_secs`. `clock` is monotonic, in seconds.

    Raises the last attempt's error. If an earlier attempt may have written, a refusal of a later one does not take that
    back: then the error is OutcomeUnknown, caused by the refusal.
    """
    deadline = clock() + timeout_secs
    maybe_written = False
    attempt = 0
    while True:
        attempt += 1
        reply = yield Send(request, max(0.001, deadline - clock()))
        assert reply is not None
        try:
            return judge(request, reply)
        except DomicileError as error:
            failure = error
        pause = backoff.pause(attempt, failure.retry_after, random)
        maybe_written = maybe_written or (request.may_write and failure.outcome == "unknown")
        if not failure.retryable or clock() + pause >= deadline:
            raise _final(request, failure, maybe_written)
        yield Pause(pause)


def _final(request: Request, failure: DomicileError, maybe_written: bool) -> DomicileError:
    if not maybe_written or failure.outcome != "not_run":
        return failure
    unknown = OutcomeUnknown(f"an earlier attempt may have written; the last one: {failure.detail}", key=request.key)
    unknown.__cause__ = failure
    return unknown
