"""Bounds of a node and what happens at their edges: mailbox, time limits, residents, deadlines (section 6)."""

from __future__ import annotations

import asyncio
import random
import threading
import time

import pytest
from waiting import WAIT_SECS

import domicile
from domicile import Object
from domicile.errors import CallTimeout, DomicileError, NotServing, Overloaded
from domicile.node.errors import Ended


class Worker(Object):
    log_of_hooks: list[str] = []  # noqa: RUF012 - one list for all of them
    released = threading.Event()  # lets go of those that hold

    def init(self):
        self.sql.exec("CREATE TABLE rows (k TEXT PRIMARY KEY)")
        self.log_of_hooks.append(f"init {self.name}")

    def on_wake(self):
        self.log_of_hooks.append(f"wake {self.name}")

    def on_sleep(self):
        self.log_of_hooks.append(f"sleep {self.name}")

    def put(self, k: str) -> str:
        self.sql.exec("INSERT INTO rows VALUES (?)", k)
        return k

    def work(self, k: str, secs: float) -> str:
        self.put(k)
        until = time.monotonic() + secs
        while time.monotonic() < until:
            time.sleep(0.002)
        return k

    async def work_async(self, k: str, secs: float) -> str:
        self.put(k)
        await asyncio.sleep(secs)
        return k

    def hold(self) -> None:
        self.released.wait(9)  # a second before its time is over

    @domicile.read
    def keys(self) -> list[str]:
        return [row["k"] for row in self.sql.query("SELECT k FROM rows")]


def test_calls_at_the_edge_of_their_time(run):
    """Methods that end about when their time does, with clients that go away: an answer means a row, a time-out means
    none or one, and no mailbox is stuck afterwards (field case 105)."""
    objects = 10

    async def scenario(home):
        luck, outcomes = random.Random(105), {}

        async def call(i):
            k, name = f"k{i}", f"o{i % objects}"
            method = luck.choice(["work", "work_async"])
            work = asyncio.create_task(home.call("Worker", name, method, k, luck.uniform(0.02, 0.24)))
            if luck.random() < 0.2:
                await asyncio.sleep(luck.uniform(0, 0.3))
                work.cancel()
            try:
                outcomes[k] = await work
            except DomicileError as error:
                outcomes[k] = error
            except asyncio.CancelledError:
                outcomes[k] = "cancelled"

        await asyncio.gather(*(call(i) for i in range(200)))
        rows = {}
        for i in range(objects):
            for k in await home.call("Worker", f"o{i}", "keys"):
                assert k not in rows, "a call ran twice"
                rows[k] = i
        kinds = {str(v) if v == "cancelled" else type(v).__name__ for v in outcomes.values()}
        assert {"str", "CallTimeout"} <= kinds
        for k, outcome in outcomes.items():
            if outcome == k:
                assert k in rows
            elif isinstance(outcome, CallTimeout):
                assert k not in rows, "call_timeout says that it was rolled back"
        for i in range(objects):
            assert len(await asyncio.gather(*(home.call("Worker", f"o{i}", "put", f"p{j}") for j in range(20)))) == 20
            assert home.residency("Worker", f"o{i}").mailbox.waiting == 0
        assert not home.replaced

    run(scenario, Worker, object_call_secs=0.1, object_call_grace_ms=2000)


def test_a_mailbox_holds_128_and_drops_nobody(run):
    """Of 500 callers 128 wait inside, the others outside in the same order; nobody is dropped."""

    async def scenario(home):
        await home.call("Worker", "a", "keys")
        Worker.released.clear()
        hold = asyncio.create_task(home.call("Worker", "a", "hold"))
        residency = home.residency("Worker", "a")
        await home.until(lambda: residency.rounds._running, "it runs")
        calls = [asyncio.create_task(home.call("Worker", "a", "put", f"{i:03}")) for i in range(500)]
        deepest = 0
        while not all(call.done() for call in calls):
            deepest = max(deepest, residency.mailbox.depth)
            if residency.mailbox.waiting == 500:
                Worker.released.set()
            await asyncio.sleep(0)
        await hold

        assert deepest == 128
        assert [call.result() for call in calls] == [f"{i:03}" for i in range(500)]
        assert await home.call("Worker", "a", "keys") == [f"{i:03}" for i in range(500)]

    run(scenario, Worker)


def test_a_waiting_call_goes_by_its_own_deadline(run):
    """A caller whose deadline passes while it waits is told so, retryable, and its call never runs."""

    async def scenario(home):
        await home.call("Worker", "a", "keys")
        Worker.released.clear()
        hold = asyncio.create_task(home.call("Worker", "a", "hold"))
        await home.until(lambda: home.residency("Worker", "a").rounds._running, "it runs")
        patient = asyncio.create_task(home.call("Worker", "a", "put", "patient"))
        with pytest.raises(Overloaded) as refused:
            await home.call("Worker", "a", "put", "hasty", secs=0.1)
        Worker.released.set()
        await hold

        assert refused.value.retryable
        assert refused.value.outcome == "not_run"
        assert await patient == "patient"
        assert await home.call("Worker", "a", "keys") == ["patient"]

    run(scenario, Worker)


def test_a_call_waits_for_a_waking_object_no_longer_than_its_deadline(run):
    """The store does not answer: the caller is told by its deadline, nothing ran, and the object wakes all the same."""

    async def scenario(home):
        await home.call("Worker", "a", "put", "before")
        await home.restart(cold=True)
        home.bucket.delay_secs = 1.0
        patient = asyncio.create_task(home.call("Worker", "a", "keys"))
        with pytest.raises(NotServing) as refused:
            await home.call("Worker", "a", "put", "hasty", secs=0.1)
        home.bucket.delay_secs = 0.0

        assert refused.value.retryable
        assert refused.value.outcome == "not_run"
        assert await patient == ["before"]
        assert await home.call("Worker", "a", "keys") == ["before"]

    run(scenario, Worker)


def test_nobody_waits_to_have_an_ended_object_alone(run):
    """A deletion that comes to a residency which ended in the same moment looks for the object anew."""

    async def scenario(home):
        await home.call("Worker", "a", "put", "x")
        residency = home.residency("Worker", "a")
        residency.end(Ended("its row was lost"))
        with pytest.raises(Ended):
            await asyncio.wait_for(_alone(residency), 10)
        assert await home.call("Worker", "a", "keys") == ["x"]

    run(scenario, Worker)


async def _alone(residency):
    async with residency.mailbox.alone():
        pass


def test_a_client_that_goes_away_cancels_nothing(run):
    """A call that began is finished without its caller, and its write is there."""

    async def scenario(home):
        await home.call("Worker", "a", "keys")
        for method in ("work", "work_async"):
            client = asyncio.create_task(home.call("Worker", "a", method, method, 0.3))
            await home.until(lambda: home.residency("Worker", "a").rounds._running, "it runs")
            client.cancel()
            with pytest.raises(asyncio.CancelledError):
                await client
            await home.until(lambda: not home.residency("Worker", "a").rounds._running, "it has ended")

        async def there():
            return set(await home.call("Worker", "a", "keys")) == {"work", "work_async"}

        await home.until(there, "both ran to their end")

    run(scenario, Worker)


def test_idle_objects_sleep_and_busy_ones_do_not(run):
    """After `OBJECT_IDLE_SECS` without a call an object is released; one that is called stays; hooks alternate."""

    async def scenario(home):
        Worker.log_of_hooks.clear()
        await home.call("Worker", "idle", "put", "x")
        began = home.node.now()
        while home.awake("Worker", "idle"):
            await home.call("Worker", "busy", "keys")
            assert home.node.now() - began < WAIT_SECS
        assert home.awake("Worker", "busy")
        assert await home.call("Worker", "idle", "keys") == ["x"]
        await home.until(lambda: not len(home.node._residents), "all sleep")
        for name in ("idle", "busy"):
            hooks = [h.split()[0] for h in Worker.log_of_hooks if h.endswith(f" {name}")]
            assert hooks == ["init", "wake", "sleep", *(["wake", "sleep"] if name == "idle" else [])]

    run(scenario, Worker, object_idle_secs=0.3)


def test_calls_at_the_moment_of_sleep_are_all_answered(run):
    """Calls that come just when objects go to sleep wake them again; none is lost, none runs twice."""

    async def scenario(home):
        luck = random.Random(1)

        async def caller(name):
            for i in range(12):
                async with asyncio.timeout(WAIT_SECS):
                    assert await home.call("Worker", name, "put", f"{i}") == f"{i}"
                if luck.random() < 0.5 and home.awake("Worker", name):
                    await asyncio.gather(home.sleep_object("Worker", name), home.call("Worker", name, "keys"))

        names = [f"o{i}" for i in range(8)]
        await asyncio.gather(*map(caller, names))
        for name in names:
            assert len(await home.call("Worker", name, "keys")) == 12

    run(scenario, Worker, object_idle_secs=0.1)


def test_at_most_so_many_objects_are_awake(run):
    """Past `OBJECT_RESIDENTS` those used longest ago go to sleep, and come back when called."""

    async def scenario(home):
        for i in range(60):
            await home.call("Worker", f"o{i}", "put", "x")
        await home.until(lambda: len(home.node._residents) <= 10, "the surplus sleeps")
        assert home.awake("Worker", "o59")
        assert not home.awake("Worker", "o0")
        assert [await home.call("Worker", f"o{i}", "keys") for i in range(60)] == [["x"]] * 60
        await home.until(lambda: len(home.node._residents) <= 10, "the surplus sleeps")

    run(scenario, Worker, object_residents=10)


def test_concurrent_first_calls_wake_once(run):
    """A hundred first calls to a new object give one claim and one `init`."""

    async def scenario(home):
        Worker.log_of_hooks.clear()
        await asyncio.gather(*(home.call("Worker", "new", "put", f"{i}") for i in range(100)))
        assert Worker.log_of_hooks == ["init new", "wake new"]
        assert home.telemetry.claims.of("won").value == 1
        await home.restart(crash=True)
        await asyncio.gather(*(home.call("Worker", "new", "keys") for _ in range(100)))
        assert Worker.log_of_hooks == ["init new", "wake new", "wake new"]

    run(scenario, Worker)


def test_a_node_full_of_busy_objects_still_takes_new_ones(run):
    """When all that are awake are busy, one more is woken, served, and sleeps again; it is not sent away before its
    call has come."""

    async def scenario(home):
        await home.call("Worker", "busy", "keys")
        hold = asyncio.create_task(home.call("Worker", "busy", "work", "x", 0.5))
        await home.until(lambda: home.residency("Worker", "busy").rounds._running, "it is busy")
        names = [f"o{i}" for i in range(12)]
        assert await asyncio.gather(*(home.call("Worker", name, "put", name) for name in names)) == names
        assert await hold == "x"
        await home.until(lambda: len(home.node._residents) <= 1, "the surplus sleeps")

    run(scenario, Worker, object_residents=1)
