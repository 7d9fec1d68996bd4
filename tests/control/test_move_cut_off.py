"""A node of the old region that hears of nothing while its project moves (PROTOCOLS section 10)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec
from cut_off import CutOff
from moves import PROJECT, REGIONS, begin

from domicile import Object
from domicile.errors import DomicileError
from domicile.node.values import Call
from domicile.placement.records import Held, LeaseRow, ObjectKey, Released
from domicile.placement.store import Committed, Condition, Conflict, Event, Grant, Mutation, Put, Resync


class Ledger(Object):
    def init(self):
        self.kv.put("n", 0)

    def add(self) -> int:
        self.kv.put("n", self.look() + 1)
        return self.look()

    def look(self) -> int:
        return self.kv.get("n", 0)


class Cut(CutOff):
    """Its watches tell nothing, too, once it is `deaf`; lease rows that were written are kept."""

    def __init__(self, store: Any, now: Any) -> None:
        super().__init__(store)
        self._now, self.deaf = now, False
        self.written: list[tuple[float, int, LeaseRow]] = []  # when, version, row

    async def write(
        self, conditions: Sequence[Condition], mutations: Sequence[Mutation], grant: Grant | None = None
    ) -> Committed | Conflict:
        outcome = await super().write(conditions, mutations, grant)
        if isinstance(outcome, Committed):
            for put in mutations:
                if isinstance(put, Put) and "/leases/" in put.key:
                    self.written.append((self._now(), outcome.version, msgspec.json.decode(put.value, type=LeaseRow)))
        return outcome

    async def watch(self, prefix: str, after: int) -> AsyncIterator[Event | Resync]:
        async for event in super().watch(prefix, after):
            if self.deaf:
                await asyncio.Event().wait()
            yield event


class Load:
    """Calls through one node, to objects that it has and to ones that nobody has: each answer with who gave it."""

    def __init__(self, one: Any, names: list[str]) -> None:
        self._one, self._names, self._over = one, names, False
        self.answered: dict[str, int] = {}
        self.own: list[float] = []  # when the calls began that the node itself answered
        self.refused: set[str] = set()
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        at, calls = 0, set()
        while not self._over:
            name = self._names[at % len(self._names)] if at % 3 else f"new{at}"
            calls.add(asyncio.create_task(self._write(name, f"k{at}")))
            at += 1
            await asyncio.sleep(0.02)
        await asyncio.gather(*calls)

    async def _write(self, name: str, key: str) -> None:
        while True:
            node = self._one.node
            began = node.now()
            try:
                answer = await node.call(Call(ObjectKey(PROJECT, "Ledger", name), "add", b"[]", began + 20.0, key))
                break
            except DomicileError as error:
                self.refused.add(error.code)
                await asyncio.sleep(error.retry_after or 0.1)
        self.answered[name] = max(self.answered.get(name, 0), json.loads(answer.body))
        if answer.node in (None, "", node.node_id):
            self.own.append(began)

    async def end(self) -> None:
        self._over = True
        await self._task


def test_a_node_cut_off_for_the_whole_move_claims_and_answers_nothing_too_late(control: Any) -> None:
    """Control is away for it and its watches tell nothing, from before the move until after it, while it is called all
    the time: it claims nothing once the gate is closed, answers nothing itself that came after its last residency was
    released, and what it answered before is in b, each write once."""

    async def scenario(plane: Any) -> None:
        group, b = plane.regions["a"], plane.regions["b"].nodes[0]
        own, store = Cut(group.store, group.watch.monotonic), group.store
        group.store, group.control = own, Cut(store, group.watch.monotonic)
        deaf, away = await group.add("deaf"), group.control
        group.store, group.control = store, None
        names = [f"o{at}" for at in range(10)]
        for name in names:
            await deaf.call("Ledger", name, "add")
        assert all(deaf.home_of("Ledger", name) for name in names)
        own.deaf = away.away = True
        load = Load(deaf, names)
        await plane.until(lambda: len(load.own) > 20, "it answers")
        handle = await begin(plane, "b")
        gates, closed = (await plane.world.region("a")).gates, 0
        key = (await plane.world.region("a")).keys.gate_project(PROJECT)

        async def shut() -> int:
            seen = await gates.get(key)
            return 0 if seen.row.open else int(seen.version)

        await plane.until(shut, "the gate is closed")
        closed = await shut()
        assert (await handle.result())["moved"]
        served = len(load.answered)
        await plane.until(lambda: len(load.answered) > served + 5, "its callers are answered from b")
        await load.end()
        assert deaf.node._gates.followed.rows[key].row.open, "all that it knows is of before"
        claimed = [version for _, version, row in own.written if isinstance(row.state, Held)]
        assert claimed
        assert max(claimed) < closed
        released = max(when for when, _, row in own.written if isinstance(row.state, Released))
        assert max(load.own) < released
        assert not [name for name in load.answered if deaf.home_of("Ledger", name)]
        for name, count in load.answered.items():
            assert await b.call("Ledger", name, "look") == count, name

    control(scenario, Ledger, regions=REGIONS)
