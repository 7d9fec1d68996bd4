"""Objects that call objects: cycles, depth, what an outgoing call waits for (PROTOCOLS section 6)."""

from __future__ import annotations

import asyncio
import contextlib
import threading

import pytest

from domicile import Object
from domicile.errors import CallCycle, CallTimeout, ChainTooDeep, MethodFailed, NotServing, OutcomeUnknown

AT_ONCE_SECS = 8.0  # long before the ten seconds of a time limit


class Node(Object):
    """Walks a path of names; `start` says from where."""

    def init(self):
        self.sql.exec("CREATE TABLE heard (what TEXT)")
        self.sql.exec("CREATE TABLE path (name TEXT)")

    def walk(self, path: list[str]) -> int:
        return 1 + self.object(Node, path[0]).walk(path[1:]) if path else 0

    async def walk_async(self, path: list[str]) -> int:
        return 1 + await self.object(Node, path[0]).walk_async(path[1:]) if path else 0

    def walk_later(self, path: list[str]) -> None:
        self.set_alarm(0, payload=path)

    def on_alarm(self, alarm) -> None:
        try:
            self.walk(alarm.payload)
        except CallCycle as error:
            self.hear(error.code)

    def hear(self, what: str) -> None:
        self.sql.exec("INSERT INTO heard VALUES (?)", what)

    def heard(self) -> list[str]:
        return [row["what"] for row in self.sql.query("SELECT what FROM heard ORDER BY rowid")]

    def write_then_tell(self, other: str) -> int:
        self.hear("wrote")
        return self.object(Node, other).hear_count()

    def hear_count(self) -> int:
        self.hear("told")
        return len(self.heard())

    def catch(self, other: str) -> str:
        try:
            self.object(Node, other).refuse()
        except MethodFailed as error:
            self.hear("caught")
            return error.extra["type"]
        return "?"

    def refuse(self) -> None:
        self.hear("never")
        raise LookupError("no")


class Waking(Node):
    """Starts its walk when it wakes."""

    async_wake = False

    def on_wake(self):
        if self.name.startswith("w"):
            self.object("Waking", "b").come_back(self.name)

    def come_back(self, name: str) -> None:
        self.object("Waking", name).heard()


class Born(Node):
    """Starts its walk at its birth."""

    def init(self):
        super().init()
        if self.name.startswith("i"):
            self.object("Born", "b").come_back(self.name)

    def come_back(self, name: str) -> None:
        self.object("Born", name).heard()


@pytest.mark.parametrize("method", ["walk", "walk_async"])
def test_a_cycle_from_a_method_is_refused_at_once(run, method):
    """Self-call, there and back, a ring of five: refused by name, and all of them go on (field case 62)."""

    async def scenario(home):
        for path in (["a"], ["b", "a"], ["b", "c", "d", "e", "a"]):
            async with asyncio.timeout(AT_ONCE_SECS):
                with pytest.raises(CallCycle, match="demo/Node/a"):
                    await home.call("Node", "a", method, path)
            for name in {"a", *path}:
                assert await home.call("Node", name, method, []) == 0

    run(scenario, Node)


def test_a_cycle_from_an_alarm_is_refused_at_once(run):
    """The same when an alarm's handler begins the chain (field case 62)."""

    async def scenario(home):
        for n, path in enumerate((["a"], ["b", "a"], ["b", "c", "d", "e", "a"]), 1):
            await home.call("Node", "a", "walk_later", path)

            async def refused(n=n):
                return await home.call("Node", "a", "heard") == ["call_cycle"] * n

            await home.until(refused, "the handler heard of the cycle")
            for name in {"a", *path}:
                assert await home.call("Node", name, "walk", []) == 0

    run(scenario, Node)


@pytest.mark.parametrize(("cls", "name"), [("Waking", "w"), ("Born", "i")])
def test_a_cycle_from_a_hook_is_refused_at_once(run, cls, name):
    """The same when `on_wake` or `init` begins the chain; a hook that does not raise lets both go on (field case
    62)."""

    async def scenario(home):
        async with asyncio.timeout(AT_ONCE_SECS):
            with pytest.raises(CallCycle, match=f"demo/{cls}/{name}"):
                await home.call(cls, name, "heard")
            assert await home.call(cls, "b", "heard") == []
            with pytest.raises(CallCycle):
                await home.call(cls, name, "heard")
            assert await home.call(cls, "c", "heard") == []

    run(scenario, Waking, Born)


def test_a_chain_may_be_32_deep(run):
    """32 objects in a row answer, the 33rd is refused by name."""

    async def scenario(home):
        names = [f"n{i}" for i in range(40)]
        assert await home.call("Node", names[0], "walk_async", names[1:32]) == 31
        assert await home.call("Node", names[0], "walk", names[1:32]) == 31
        with pytest.raises(ChainTooDeep) as refused:
            await home.call("Node", names[0], "walk_async", names[1:34])
        assert len(refused.value.extra["chain"]) == 32
        assert await home.call("Node", names[20], "walk", []) == 0

    run(scenario, Node)


def test_two_objects_calling_each_other_end_by_the_time_limit(run):
    """Separate chains that wait for each other are no cycle: the limit ends them, and both objects go on (field case
    62)."""
    barrier = threading.Barrier(2)

    class Crossed(Object):
        def meet(self, other: str) -> None:
            barrier.wait(20)
            self.object("Crossed", other).idle()

        def idle(self) -> int:
            return 1

    async def scenario(home):
        outcomes = await asyncio.gather(
            home.call("Crossed", "a", "meet", "b"), home.call("Crossed", "b", "meet", "a"), return_exceptions=True
        )
        assert any(isinstance(outcome, CallTimeout) for outcome in outcomes), outcomes
        assert await home.call("Crossed", "a", "idle") == await home.call("Crossed", "b", "idle") == 1

    run(scenario, Crossed, object_call_secs=0.5)


def test_an_outgoing_call_waits_for_earlier_writes_to_land(run):
    """Nothing that a crash could take back reaches another object; what the caller itself wrote is not committed."""

    async def scenario(home):
        await home.call("Node", "a", "heard")
        await home.call("Node", "b", "heard")
        home.bucket.down = True
        write = asyncio.create_task(home.call("Node", "a", "hear", "first"))
        residency = home.residency("Node", "a")
        await home.until(lambda: residency.flights.behind, "it is committed and not landed")
        tell = asyncio.create_task(home.call("Node", "a", "write_then_tell", "b"))
        await home.until(lambda: residency.rounds._running, "it runs")
        await home.a_while(0.2)
        assert not tell.done()
        assert home.residency("Node", "b").log.mark == home.residency("Node", "b").flights.landed, "b heard nothing"
        home.bucket.down = False
        await write

        assert await tell == 1
        assert await home.call("Node", "b", "heard") == ["told"]
        assert await home.call("Node", "a", "heard") == ["first", "wrote"]

    run(scenario, Node)


def test_an_outgoing_call_gives_up_with_the_gate(run):
    """When earlier writes do not land the outgoing call fails, and with it the method that does not catch that."""

    async def scenario(home):
        await home.call("Node", "a", "heard")
        await home.call("Node", "b", "heard")
        home.bucket.down = True
        first, told = await asyncio.gather(
            home.call("Node", "a", "hear", "first"),
            home.call("Node", "a", "write_then_tell", "b"),
            return_exceptions=True,
        )
        assert isinstance(first, OutcomeUnknown)
        assert isinstance(told, NotServing)
        home.bucket.down = False
        await home.landed("Node", "a")
        assert await home.call("Node", "a", "heard") == ["first"]
        assert await home.call("Node", "b", "heard") == []

    run(scenario, Node, object_ack_gate_ms=2500)


def test_a_refusal_of_the_callee_can_be_caught(run):
    """The callee is rolled back, the caller goes on and keeps what it wrote."""

    async def scenario(home):
        assert await home.call("Node", "a", "catch", "b") == "LookupError"
        assert await home.call("Node", "a", "heard") == ["caught"]
        assert await home.call("Node", "b", "heard") == []

    run(scenario, Node)


def test_an_outgoing_call_right_after_a_rotation_does_not_wait_for_itself(run):
    """The landing an outgoing call waits for may need the folded base read; the waiting method does not stand in its
    way."""

    class Heavy(Node):
        def fill(self, start: int) -> None:
            for i in range(start, start + 40):
                self.sql.exec("INSERT INTO path VALUES (?)", f"{i}" * 4000)

        async def tell_async(self, other: str) -> int:
            return await self.object("Heavy", other).hear_count()

        def tell(self, other: str) -> int:
            return self.object("Heavy", other).hear_count()

    async def scenario(home):
        def lose_the_store() -> None:
            home.bucket.down = True

        home.failpoints._actions["rotate.after-checkpoint"] = lose_the_store
        await home.call("Heavy", "b", "heard")
        for told, method in enumerate(("tell", "tell_async"), 1):
            residency, at = None, 0
            while not home.bucket.down:  # until a rotation has folded what has not reached the store
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(home.call("Heavy", "a", "fill", at := at + 40), 0.3)
            residency = home.residency("Heavy", "a")
            both = asyncio.gather(home.call("Heavy", "a", "fill", 9000), home.call("Heavy", "a", method, "b"))
            await home.until(lambda residency=residency: residency.rounds._running, "it waits")
            await home.a_while(0.1)
            home.bucket.down = False
            async with asyncio.timeout(20):
                assert (await both)[1] == told
            await home.landed("Heavy", "a")

    run(scenario, Heavy, object_wal_rotate_kb=128, object_wal_rotate_fraction=0.001)


@pytest.mark.parametrize("outcome", ["ended", "stuck"])
def test_a_round_that_is_cut_off_answers_everybody_and_runs_nobody_twice(run, outcome):
    """Calls that shared a round with one that does not come back are answered; what was committed of them is not run
    again."""

    class Cut(Node):
        def linger(self, other: str) -> None:
            self.object("Cut", other).heard()
            for _ in range(3000):
                try:
                    event.wait(0.01)
                    if event.is_set():
                        return
                except BaseException:  # noqa: BLE001 - what the test is about
                    continue

    event = threading.Event()

    async def scenario(home):
        await home.call("Cut", "b", "heard")
        await home.call("Cut", "a", "heard")
        calls = [home.call("Cut", "a", "hear", "once"), home.call("Cut", "a", "linger", "b")]
        both = asyncio.gather(*calls, return_exceptions=True)
        residency = home.residency("Cut", "a")
        await home.until(lambda: residency.engine.db.length > residency.log.length - 1, "begun")
        await home.a_while(0.2)
        if outcome == "ended":
            residency.end(RuntimeError("the lease is lost"))
        async with asyncio.timeout(20):
            first, second = await both
        event.set()

        assert isinstance(second, OutcomeUnknown if outcome == "ended" else CallTimeout)
        assert isinstance(first, OutcomeUnknown)
        assert await home.call("Cut", "a", "heard") == ["once"]

    run(scenario, Cut, object_call_secs=0.5 if outcome == "stuck" else 10, object_call_grace_ms=300)
