"""An object that changes its home again and again under calls: they wait for the move, never for a timer."""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import time

import msgspec
from counting import Counter

from domicile.errors import NotHome
from domicile.node.control.messages import DrainAnswer, DrainRequest

MOVES = int(os.environ.get("DOMICILE_MOVES", "100"))
CALL_EVERY_SECS = 0.05
REST_SECS = 0.15  # at most, between a move and the next: they come at any phase of the calls
BEYOND_SECS = 0.1
TICKS_SECS = (0.5, 1.0, 2.0)  # what a forgotten waiter would be found by: the client's, the nodes', the case's own


class Spans:
    """Begin and end of each of many, by the clock."""

    def __init__(self) -> None:
        self.spans: list[tuple[float, float]] = []

    def add(self, began: float) -> None:
        self.spans.append((began, time.monotonic()))

    @property
    def took(self) -> list[float]:
        return sorted(end - began for began, end in self.spans)

    def beyond(self, others: Spans) -> list[float]:
        """What each took outside of all the others."""
        return sorted(
            end - began - sum(max(0.0, min(end, till) - max(began, since)) for since, till in others.spans)
            for began, end in self.spans
        )


def at(ordered: list[float], share: float) -> float:
    return ordered[int(share * (len(ordered) - 1))]


class Calls(Spans):
    """Through any node at a steady rate, whatever became of the ones before."""

    def __init__(self, cluster, rng: random.Random) -> None:
        super().__init__()
        self._cluster = cluster
        self._rng = rng
        self.numbers: list[int] = []

    async def one(self, node) -> None:
        began = time.monotonic()
        while True:
            try:
                self.numbers.append(await node.call("Counter", "a", "increment"))
            except NotHome as error:  # it moved twice under one call: clients ask again then
                await asyncio.sleep(error.retry_after or 0)
            else:
                return self.add(began)

    async def rest(self, rng: random.Random) -> None:
        await asyncio.sleep(rng.random() * REST_SECS)

    async def until(self, over: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as group:
            while not over.is_set():
                group.create_task(self.one(self._rng.choice(self._cluster.nodes)))
                await asyncio.sleep(CALL_EVERY_SECS)


async def drain(one, *, undo: bool = False) -> int:
    body = msgspec.msgpack.encode(DrainRequest(undo=undo))
    return msgspec.msgpack.decode(await one.node.handler.ask("drain-node", body), type=DrainAnswer).left


async def move(cluster, calls: Calls, rng: random.Random) -> None:
    """The home releases the object and takes nothing; another node wakes it, and answers."""
    home = cluster.home("Counter", "a")
    assert await drain(home) == 0
    await calls.one(rng.choice(cluster.others(home)))
    await drain(home, undo=True)


def test_a_call_in_the_middle_of_a_move_waits_for_the_move_alone(cluster):
    """Field case 117: a hundred moves under 20 calls a second. Whatever a call takes beyond the moves it met is as
    short as ever, moves themselves wait for no timer, and none of the calls is lost or run twice."""

    async def scenario(c):
        rng, moves, over = random.Random(1), Spans(), asyncio.Event()
        calls = Calls(c, rng)
        await calls.one(c.nodes[0])
        load = asyncio.create_task(calls.until(over))
        try:
            for _ in range(MOVES):
                began = time.monotonic()
                await move(c, calls, rng)
                moves.add(began)
                await calls.rest(rng)
        finally:
            over.set()
            await load
        took, beyond = moves.took, calls.beyond(moves)
        print(
            f"\n{MOVES} moves: median {statistics.median(took):.3f} s, p95 {at(took, 0.95):.3f}, max {took[-1]:.3f};"
            f" {len(beyond)} calls: p50 {at(calls.took, 0.5):.3f}, p99 {at(calls.took, 0.99):.3f}, max"
            f" {calls.took[-1]:.3f}; beyond the moves p99 {at(beyond, 0.99):.3f}, max {beyond[-1]:.3f}"
        )
        assert sorted(calls.numbers) == list(range(1, len(beyond) + 1))
        assert at(beyond, 0.99) <= BEYOND_SECS + statistics.median(took)
        assert at(took, 0.95) <= 4 * statistics.median(took) + BEYOND_SECS
        for tick in TICKS_SECS:
            assert sum(tick <= one < 1.2 * tick for one in [*took, *beyond]) <= 2, f"they gather at {tick} s"

    cluster(scenario, Counter)
