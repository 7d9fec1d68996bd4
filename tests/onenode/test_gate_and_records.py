"""The gate: what an answer waits for, and what records of answers do (PROTOCOLS section 6)."""

from __future__ import annotations

import asyncio

import pytest

import domicile
from domicile import Object
from domicile.errors import (
    CallTimeout,
    KeyReused,
    MethodFailed,
    NotServing,
    OutcomeUnknown,
    Overloaded,
    StaleIncarnation,
)
from domicile.placement.records import FIRST_INCARNATION


class Ledger(Object):
    def init(self):
        self.sql.exec("CREATE TABLE l (n INTEGER NOT NULL)")
        self.sql.exec("INSERT INTO l VALUES (0)")

    def add(self, n: int = 1) -> int:
        return self.sql.one("UPDATE l SET n = n + ? RETURNING n", n)["n"]

    def add_and_fail(self) -> None:
        raise ValueError(f"it is {self.add()}")

    @domicile.read
    def look(self) -> int:
        return self.sql.one("SELECT n FROM l")["n"]

    def look_and_fail(self) -> None:
        raise ValueError(f"it is {self.look()}")

    def look_and_spin(self) -> None:
        self.look()
        while True:
            pass

    def nothing(self) -> int:
        return 7

    def rows(self) -> int:
        return self.sql.one("SELECT count(*) AS n FROM sqlite_schema")["n"]


@pytest.mark.parametrize(
    ("method", "error"),
    [
        ("look", None),
        ("look_and_fail", MethodFailed),
        ("look_and_spin", CallTimeout),
        ("replay", None),
        ("nothing", None),
    ],
)
def test_every_answer_waits_for_what_it_saw(run, method, error):
    """Reads, errors, time-outs and replays that saw an unlanded write leave when it has landed, not before."""

    async def scenario(home):
        await home.call("Ledger", "a", "look")
        home.bucket.down = True
        write = asyncio.create_task(home.call("Ledger", "a", "add", idempotency_key="k"))
        residency = home.residency("Ledger", "a")
        await home.until(lambda: residency.flights.behind, "a write is committed and has not landed")
        key = "k" if method == "replay" else None
        call = home.call("Ledger", "a", "add" if method == "replay" else method, idempotency_key=key)
        answer = asyncio.create_task(call)
        await home.a_while(0.8)
        assert not answer.done()
        assert not write.done()
        home.bucket.down = False
        if error is not None:
            with pytest.raises(error):
                await answer
        else:
            assert await answer == (7 if method == "nothing" else 1)
        assert await write == 1
        assert await home.call("Ledger", "a", "look") == 1

    run(scenario, Ledger, object_call_secs=0.2)


@pytest.mark.parametrize("method", ["look", "look_and_fail", "nothing"])
def test_what_waits_too_long_is_told_by_kind(run, method):
    """Past the gate a write is `outcome_unknown`, everything else `not_serving`, and neither tells what it saw."""

    async def scenario(home):
        await home.call("Ledger", "a", "look")
        home.bucket.down = True
        write, other = await asyncio.gather(
            home.call("Ledger", "a", "add"), home.call("Ledger", "a", method), return_exceptions=True
        )
        assert isinstance(write, OutcomeUnknown)
        assert isinstance(other, NotServing)
        assert other.retryable
        assert "it is" not in str(other)
        home.bucket.down = False
        await home.landed("Ledger", "a")
        assert await home.call("Ledger", "a", "look") == 1

    run(scenario, Ledger, object_ack_gate_ms=2500)


def test_a_replay_that_waits_too_long_does_not_say_that_nothing_stayed(run):
    """Its record is of a write that may last: past the gate it is `outcome_unknown`, and the key still runs it once."""

    async def scenario(home):
        await home.call("Ledger", "a", "look")
        home.bucket.down = True
        for _ in range(2):
            with pytest.raises(OutcomeUnknown):
                await home.call("Ledger", "a", "add", idempotency_key="k")
        home.bucket.down = False
        await home.landed("Ledger", "a")
        assert await home.call("Ledger", "a", "add", idempotency_key="k") == 1
        assert await home.call("Ledger", "a", "look") == 1

    run(scenario, Ledger, object_ack_gate_ms=1000)


def test_a_clean_object_answers_without_the_store(run):
    """While nothing is dirty or flying, reads and failing calls need no store at all."""

    async def scenario(home):
        await home.call("Ledger", "a", "add")
        home.bucket.down = True
        asked = home.bucket.asked
        assert await home.call("Ledger", "a", "look") == 1
        with pytest.raises(MethodFailed):
            await home.call("Ledger", "a", "add_and_fail")
        assert home.bucket.asked == asked

    run(scenario, Ledger)


def test_an_idempotency_key_runs_once_or_not_at_all(run):
    """A key gives the first answer again, over sleep, crash and restore; with other arguments or another method it is
    refused; a call that rolled back, or wrote nothing, leaves no record."""

    async def scenario(home):
        assert await home.call("Ledger", "a", "add", 5, idempotency_key="k") == 5
        for fault in ("none", "sleep", "crash", "cold"):
            if fault == "sleep":
                await home.sleep_object("Ledger", "a")
            elif fault != "none":
                await home.restart(crash=True, cold=fault == "cold")
            assert await home.call("Ledger", "a", "add", 5, idempotency_key="k") == 5
            with pytest.raises(KeyReused):
                await home.call("Ledger", "a", "add", 6, idempotency_key="k")
            with pytest.raises(KeyReused):
                await home.call("Ledger", "a", "rows", 5, idempotency_key="k")
        with pytest.raises(MethodFailed):
            await home.call("Ledger", "a", "add_and_fail", idempotency_key="f")
        assert await home.call("Ledger", "a", "add", 1, idempotency_key="f") == 6
        assert await home.call("Ledger", "a", "look", idempotency_key="r") == 6
        assert await home.call("Ledger", "a", "add", 1, idempotency_key="r") == 7
        many = await asyncio.gather(*(home.call("Ledger", "a", "add", 1, idempotency_key="m") for _ in range(50)))
        assert set(many) == {8}

    run(scenario, Ledger)


def test_records_expire(run):
    """A record lives `OBJECT_IDEMPOTENCY_SECS`; after that the key is new, and old records shrink away."""

    async def scenario(home):
        for i in range(30):
            await home.call("Ledger", "a", "add", idempotency_key=f"k{i}")
        home.watch.ahead_ms += 61_000
        assert await home.call("Ledger", "a", "add", idempotency_key="k0") == 31
        for i in range(20):
            await home.call("Ledger", "a", "add", idempotency_key=f"new{i}")
        db = home.residency("Ledger", "a").engine.db
        assert db.read("SELECT count(*) FROM _domicile_idempotency") == [(21,)]

    run(scenario, Ledger, object_idempotency_secs=60)


def test_records_end_with_their_incarnation(run):
    """A key of a deleted object is new to the next life."""

    async def scenario(home):
        await home.call("Ledger", "a", "add", 5, idempotency_key="k")
        await home.node.delete(home.key("Ledger", "a"), None, None)
        assert await home.call("Ledger", "a", "add", 6, idempotency_key="k") == 6

    run(scenario, Ledger)


def test_a_call_may_insist_on_an_incarnation(run):
    """`If-Match` of another life is refused, not run; of the present one it runs, asleep or awake."""

    async def scenario(home):
        assert await home.call("Ledger", "a", "add", if_match=FIRST_INCARNATION) == 1
        epoch = await home.node.delete(home.key("Ledger", "a"), None, None)
        with pytest.raises(StaleIncarnation) as stale:
            await home.call("Ledger", "a", "add", if_match=FIRST_INCARNATION)
        assert stale.value.outcome == "not_run"
        assert await home.call("Ledger", "a", "add", if_match=epoch) == 1
        await home.sleep_object("Ledger", "a")
        assert await home.call("Ledger", "a", "add", if_match=epoch) == 2
        with pytest.raises(StaleIncarnation):
            await home.node.delete(home.key("Ledger", "a"), FIRST_INCARNATION, None)
        await home.node.delete(home.key("Ledger", "a"), epoch, None)

    run(scenario, Ledger)


def test_calls_that_wait_for_a_deleted_object_learn_it(run):
    """Calls waiting behind a deletion get `no_such_object`, or the next life's answer; none hangs, none sees the
    old."""

    async def scenario(home):
        await home.call("Ledger", "a", "add", 1000)
        spin = asyncio.create_task(home.call("Ledger", "a", "look_and_spin"))
        await home.until(lambda: home.residency("Ledger", "a").rounds._running, "it runs")
        deletion = asyncio.create_task(home.node.delete(home.key("Ledger", "a"), None, None))
        await home.a_while(0.05)
        calls = [asyncio.create_task(home.call("Ledger", "a", "add")) for _ in range(20)]
        async with asyncio.timeout(20):
            await deletion
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
            with pytest.raises(CallTimeout):
                await spin
        codes = {getattr(outcome, "code", "ok") for outcome in outcomes}
        assert codes <= {"no_such_object", "ok"}
        assert all(outcome <= 20 for outcome in outcomes if isinstance(outcome, int))
        assert await home.call("Ledger", "a", "look") == sum(isinstance(outcome, int) for outcome in outcomes)

    run(scenario, Ledger, object_call_secs=0.4)


def test_an_outage_of_the_store_does_not_fill_the_disk(run):
    """What waits for the store is bounded: beyond that calls are refused, retryable and not run, alarms wait, and all
    goes on when the store is back (field cases 6 and 24)."""

    class Writer(Object):
        def init(self):
            self.sql.exec("CREATE TABLE t (id INTEGER PRIMARY KEY, b BLOB)")

        def put(self, i: int) -> int:
            self.sql.exec("INSERT OR REPLACE INTO t VALUES (?, randomblob(100000))", i % 4)
            return i

        def beat(self) -> None:
            self.set_alarm(0.01)

        def on_alarm(self) -> None:
            self.put(0)
            self.set_alarm(0.01)

        def still(self) -> bool:
            return self.clear_alarm()

    async def scenario(home):
        await home.call("Writer", "a", "put", 0)
        await home.call("Writer", "beats", "beat")
        home.bucket.down = True
        outcomes = [
            outcome
            for _ in range(12)
            for outcome in await asyncio.gather(
                *(home.call("Writer", "a", "put", i) for i in range(10)), return_exceptions=True
            )
        ]
        refused = [outcome for outcome in outcomes if isinstance(outcome, Overloaded)]
        assert len(refused) > 60
        assert all(outcome.outcome == "not_run" and outcome.retryable for outcome in refused)
        assert {type(outcome) for outcome in outcomes} == {Overloaded, OutcomeUnknown}
        residency = home.residency("Writer", "beats")
        await home.until(lambda: residency.flights.choked, "its handlers wait too")
        for name in ("a", "beats"):
            assert home.residency("Writer", name).log.length < 4 << 20
        mark = residency.log.mark
        await home.a_while(0.3)
        assert residency.log.mark == mark
        home.bucket.down = False
        await home.landed("Writer", "a")
        assert await home.call("Writer", "a", "put", 1) == 1
        await home.until(lambda: residency.log.mark > mark, "the handlers go on")
        assert await home.call("Writer", "beats", "still")

    run(scenario, Writer, object_ack_gate_ms=2500, object_db_max_mb=1)
