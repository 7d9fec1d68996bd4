"""Long calls, while nodes come and go under them."""

from __future__ import annotations

import asyncio
from collections import Counter as Tally

from domicile import Object
from domicile.errors import DomicileError

OBJECTS = 6
ROUNDS = 5
LONG_SECS = 0.15

running: Tally[str] = Tally()
overlaps: list[str] = []


class Slow(Object):
    def init(self):
        self.sql.exec("CREATE TABLE runs (at INTEGER PRIMARY KEY, n INTEGER NOT NULL, what TEXT NOT NULL)")

    async def long(self, n: int) -> int:
        running[self.name] += 1
        if running[self.name] > 1:
            overlaps.append(self.name)
        try:
            self.sql.exec("INSERT INTO runs(n, what) VALUES (?, 'start')", n)
            await asyncio.sleep(LONG_SECS)
            self.sql.exec("INSERT INTO runs(n, what) VALUES (?, 'end')", n)
        finally:
            running[self.name] -= 1
        return n

    def runs(self) -> list[list]:
        return [[row["n"], row["what"]] for row in self.sql.query("SELECT n, what FROM runs ORDER BY at")]


def test_a_long_call_has_ended_before_the_object_runs_elsewhere(cluster):
    """Field case 54: one object never runs two methods at a time on two nodes, and each answered call ran once."""
    running.clear()
    overlaps.clear()

    async def scenario(c):
        door = c.nodes[0]  # where callers go; never the node that is about to leave
        moved = 0
        answered: dict[str, list[int]] = {f"o{at}": [] for at in range(OBJECTS)}
        unsure: dict[str, list[int]] = {name: [] for name in answered}
        over = asyncio.Event()

        async def caller(name: str, first: int) -> None:
            n = first
            while not over.is_set():
                try:
                    answered[name].append(await door.call("Slow", name, "long", n))
                except DomicileError as error:
                    if error.outcome == "unknown":
                        unsure[name].append(n)
                n += 2

        callers = [asyncio.ensure_future(caller(name, first)) for name in answered for first in (1, 2)]
        for at in range(ROUNDS):
            before = sum(map(len, answered.values()))
            await c.until(
                lambda before=before: sum(map(len, answered.values())) >= before + OBJECTS, "calls are answered"
            )
            home = door  # where they landed
            moved += sum(home.home_of("Slow", name) for name in answered)
            door = c.others(home)[0]
            await c.remove(home)
            await c.add(f"m{at}")
        over.set()
        await asyncio.gather(*callers)

        assert overlaps == []
        assert moved >= ROUNDS
        for name, numbers in answered.items():
            assert numbers
            runs = await door.call("Slow", name, "runs")
            assert [what for _, what in runs] == ["start", "end"] * (len(runs) // 2)
            ran = Tally(n for n, what in runs if what == "end")
            assert all(count == 1 for count in ran.values())
            assert set(numbers) <= set(ran) <= set(numbers) | set(unsure[name])

    cluster(scenario, Slow)
