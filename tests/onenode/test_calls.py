"""Calls to one node: serialized, answered when durable, and all that a caller can be told."""

from __future__ import annotations

import asyncio
import gc
import time

import counting
import pytest

from domicile.errors import CallCycle, CallTimeout, MethodFailed, NotServing, OutcomeUnknown


class Counter(counting.Counter):
    def fail(self):
        self.sql.exec("UPDATE c SET n = n + 1000")
        raise ValueError("no")

    async def slow_increment(self) -> int:
        await asyncio.sleep(0)
        return self.increment()

    def spin(self):
        self.sql.exec("UPDATE c SET n = n + 1000")
        while True:
            pass

    def nap(self):
        self.sql.exec("UPDATE c SET n = n + 1000")
        time.sleep(2.5)

    def swallow(self):
        self.sql.exec("UPDATE c SET n = n + 1000")
        until = time.monotonic() + 4
        while time.monotonic() < until:
            try:
                while time.monotonic() < until:
                    time.sleep(0.005)
            except BaseException:  # noqa: BLE001 - what the test is about
                continue

    async def forever(self):
        self.sql.exec("UPDATE c SET n = n + 1000")
        await asyncio.sleep(3600)

    def ask(self, name: str) -> int:
        return self.object(Counter, name).read()

    async def ask_async(self, name: str) -> int:
        return await self.object(Counter, name).read()

    def ring(self, names: list[str]) -> int:
        return self.object(Counter, names[0]).ring(names[1:]) if names else 0


def test_64_concurrent_callers_get_each_number_once(run):
    """Calls to one object never interleave, whoever runs them."""

    async def scenario(home):
        methods = ["increment", "slow_increment"]
        numbers = await asyncio.gather(*(home.call("Counter", "a", methods[i % 2]) for i in range(64)))

        assert sorted(numbers) == list(range(1, 65))
        assert await home.call("Counter", "a", "read") == 64

    run(scenario, Counter)


def test_a_failing_method_leaves_nothing(run):
    """An error rolls the whole call back and says what it was."""

    async def scenario(home):
        await home.call("Counter", "a", "increment")
        with pytest.raises(MethodFailed) as failed:
            await home.call("Counter", "a", "fail")

        assert failed.value.extra["type"] == "ValueError"
        assert await home.call("Counter", "a", "read") == 1

    run(scenario, Counter)


@pytest.mark.parametrize("method", ["spin", "nap", "swallow", "forever"])
def test_a_method_out_of_time_is_undone_and_the_object_goes_on(run, method):
    """Looping, sleeping in C, swallowing every exception, waiting for ever: `call_timeout`, and nothing of it stays."""

    async def scenario(home):
        await home.call("Counter", "a", "increment")
        late = asyncio.create_task(home.call("Counter", "a", method))
        await home.until(lambda: home.node._residents.find(home.key("Counter", "a").id).rounds._running, "it runs")
        behind = asyncio.create_task(home.call("Counter", "a", "read"))
        with pytest.raises(CallTimeout):
            await late

        assert await behind == 1
        assert await home.call("Counter", "b", "increment") == 1
        assert await home.call("Counter", "a", "increment") == 2
        assert not home.replaced

    run(scenario, Counter, object_call_secs=0.4, object_call_grace_ms=300)


def test_calls_between_objects_and_cycles(run):
    """Objects call each other; a chain that comes back is refused by name, from wherever it starts."""

    async def scenario(home):
        await home.call("Counter", "b", "increment")

        assert await home.call("Counter", "a", "ask", "b") == 1
        assert await home.call("Counter", "a", "ask_async", "b") == 1
        for ring in (["a"], ["b", "a"], ["b", "c", "d", "e", "a"]):
            with pytest.raises(CallCycle, match="demo/Counter/a"):
                await home.call("Counter", "a", "ring", ring)
        assert await home.call("Counter", "a", "ask", "b") == 1

    run(scenario, Counter)


def test_a_write_is_answered_only_when_the_store_has_it(run):
    """With the store down a write is `outcome_unknown` after the gate, a read of what it left is `not_serving`; both
    come right by themselves when the store returns (field case 19)."""

    async def scenario(home):
        await home.call("Counter", "a", "increment")
        await home.call("Counter", "b", "increment")
        home.bucket.down = True
        with pytest.raises(OutcomeUnknown):
            await home.call("Counter", "a", "increment")
        with pytest.raises(NotServing):
            await home.call("Counter", "a", "read")
        assert await home.call("Counter", "b", "read") == 1
        home.bucket.down = False

        residency = home.node._residents.find(home.key("Counter", "a").id)
        await home.until(lambda: not residency.leg.behind, "it catches up")
        assert await home.call("Counter", "a", "read") == 2

    run(scenario, Counter, object_ack_gate_ms=2500)


def test_lost_answers_of_the_store_cost_nothing(run):
    """A put whose answer was lost is found again by its id."""

    async def scenario(home):
        for n in range(1, 11):
            home.bucket.lose_answers = 1
            assert await home.call("Counter", "a", "increment") == n
        await home.sleep_object("Counter", "a")

        assert await home.call("Counter", "a", "read") == 10

    run(scenario, Counter)


def test_the_same_key_runs_once(run):
    """A retry under the same idempotency key gets the first answer, after a restart as well."""

    async def scenario(home):
        first = await home.call("Counter", "a", "increment", idempotency_key="k")
        again = await home.call("Counter", "a", "increment", idempotency_key="k")
        await home.stop()
        await home.start()

        assert first == again == await home.call("Counter", "a", "increment", idempotency_key="k") == 1
        assert await home.call("Counter", "a", "increment") == 2

    run(scenario, Counter)


def test_a_call_leaves_nothing_to_collect(run):
    """What a call made is freed by the time it is answered: a node under load stops for no long collection."""

    async def scenario(home):
        for method in ("increment", "slow_increment", "read"):
            await home.call("Counter", "a", method)
            gc.collect()
            gc.disable()
            try:
                for _ in range(100):
                    await home.call("Counter", "a", method)
                left = gc.collect()
            finally:
                gc.enable()
            assert left < 100, f"{left} objects after 100 calls of {method}"

    run(scenario, Counter)
