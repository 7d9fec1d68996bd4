"""Alarms on a whole node: set, fired, failed, kept over sleep, crash and restore (PROTOCOLS section 9)."""

from __future__ import annotations

import asyncio

import pytest

from domicile import Object
from domicile.errors import MethodFailed, NotServing, OutcomeUnknown
from domicile.placement.store import StoreUnavailable

SECOND_MS = 1000


class Bell(Object):
    """Writes down each ring; `do` in the payload says what else the handler does."""

    def init(self):
        self.sql.exec("CREATE TABLE rings (name TEXT, payload TEXT, at INTEGER)")

    def arm(self, when: float, name: str = "default", payload: dict | None = None) -> None:
        self.set_alarm(when, name=name, payload=payload)

    def arm_cron(self, cron: str) -> None:
        self.set_alarm(cron=cron, name="cron")

    def arm_and_fail(self) -> None:
        self.set_alarm(0)
        raise ValueError("no")

    def disarm(self, name: str = "default") -> bool:
        return self.clear_alarm(name)

    def on_alarm(self, alarm) -> None:
        do = alarm.payload or {}
        self.sql.exec("INSERT INTO rings VALUES (?, ?, ?)", alarm.name, str(do.get("text")), self.now())
        if do.get("every"):
            self.set_alarm(do["every"], name=alarm.name, payload=do)
        if do.get("fail"):
            raise ValueError("the handler fails")
        while do.get("spin"):
            pass

    def rings(self) -> list[dict]:
        return self.sql.query("SELECT name, payload, at FROM rings ORDER BY rowid")

    def table(self) -> list[dict]:
        return [{"name": a.name, "due": a.due_ms, "attempts": a.attempts, "failed": a.failed} for a in self.alarms()]


async def rung(home, name, times, cls="Bell"):
    async def enough():
        return len(await home.call(cls, name, "rings")) >= times

    await home.until(enough, f"{name} rang {times} times")
    return await home.call(cls, name, "rings")


def test_named_alarms_fire_in_order_with_their_payloads(run):
    """Any number of named alarms; each fires once, the earliest first, with what it was given."""

    async def scenario(home):
        for n, when in enumerate((3.0, 1.0, 2.0)):
            await home.call("Bell", "a", "arm", when, f"n{n}", {"text": f"p{n}"})
        await home.call("Bell", "a", "arm", 1.0, "gone")
        await home.call("Bell", "a", "arm", 60, "n1x")
        assert await home.call("Bell", "a", "disarm", "gone")
        rings = await rung(home, "a", 3)

        assert [(r["name"], r["payload"]) for r in rings] == [("n1", "p1"), ("n2", "p2"), ("n0", "p0")]
        assert [a["name"] for a in await home.call("Bell", "a", "table")] == ["n1x"]

    run(scenario, Bell)


def test_an_arm_that_was_rolled_back_fires_nothing(run):
    """A call that fails leaves no alarm behind, in storage or in the mirror."""

    async def scenario(home):
        await home.call("Bell", "a", "rings")
        with pytest.raises(MethodFailed):
            await home.call("Bell", "a", "arm_and_fail")
        await home.a_while(0.2)

        assert await home.call("Bell", "a", "rings") == await home.call("Bell", "a", "table") == []
        assert (await home.mirror("Bell", "a")).row is None

    run(scenario, Bell)


@pytest.mark.parametrize("fault", ["restart", "crash", "cold", "sleep"])
def test_a_repeating_alarm_goes_on_after_every_kind_of_stop(run, fault):
    """An object that arms itself anew in its handler keeps its beat over restart, crash, cold restore and sleep (field
    case 67)."""

    async def scenario(home):
        await home.call("Bell", "a", "arm", 0.05, "tick", {"every": 0.05})
        for _ in range(2):
            before = len(await rung(home, "a", 3))
            if fault == "sleep":
                await home.sleep_object("Bell", "a")
                await home.until(lambda: home.awake("Bell", "a"), "its alarm wakes it")
            else:
                await home.restart(crash=fault != "restart", cold=fault == "cold")
            await rung(home, "a", before + 4)

    run(scenario, Bell, object_sweep_secs=0.2)


def test_a_failing_handler_backs_off_and_stays_visible(run):
    """Six attempts, 2 s doubling between them; then the alarm is failed, listed, and rings no more. What a failed
    attempt wrote is gone."""

    async def scenario(home):
        since = home.watch.wall_ms()
        await home.call("Bell", "a", "arm", 0, "bad", {"fail": True})
        for attempt in range(1, 6):

            async def attempted(attempt=attempt):
                return (await home.call("Bell", "a", "table"))[0]["attempts"] == attempt

            await home.until(attempted, f"attempt {attempt}")
            (row,) = await home.call("Bell", "a", "table")
            now, backoff_ms = home.watch.wall_ms(), 2000 << (attempt - 1)
            assert since + backoff_ms <= row["due"] <= now + backoff_ms
            home.watch.ahead_ms += row["due"] - now + 1
            since = row["due"]

        async def failed():
            return (await home.call("Bell", "a", "table"))[0]["failed"]

        await home.until(failed, "it is given up")
        home.watch.ahead_ms += 7200 * SECOND_MS
        await home.a_while(0.3)
        (row,) = await home.call("Bell", "a", "table")
        assert row["attempts"] == 6
        assert await home.call("Bell", "a", "rings") == []

        async def unmirrored():
            return (await home.mirror("Bell", "a")).row is None

        await home.until(unmirrored, "nothing wakes it any more")

    run(scenario, Bell, object_sweep_secs=0.1)


def test_a_handler_out_of_time_counts_as_failed(run):
    """An endless handler is stopped at the time limit, although no call waits; the object goes on and the alarm backs
    off."""

    async def scenario(home):
        await home.call("Bell", "a", "arm", 0.05, "spin", {"spin": True})
        await home.until(lambda: "alarm.failed" in home.log.getvalue(), "the handler was stopped")
        (row,) = await home.call("Bell", "a", "table")
        assert row["attempts"] == 1
        assert not home.replaced

    run(scenario, Bell, object_call_secs=0.3)


def test_an_object_that_cannot_wake_does_not_spin(run):
    """When `on_wake` fails, a due alarm backs off like one whose handler fails."""

    class Broken(Bell):
        def on_wake(self):
            if self.sql.one("SELECT count(*) AS n FROM rings")["n"]:
                raise ValueError("cannot wake")

    async def scenario(home):
        await home.call("Broken", "a", "arm", 0)
        await rung(home, "a", 1, "Broken")
        await home.call("Broken", "a", "arm", 0.3)
        await home.sleep_object("Broken", "a")
        await home.until(lambda: "alarm.failed" in home.log.getvalue(), "the wake failed")
        await home.a_while(0.5)
        assert home.log.getvalue().count("alarm.failed") == 1

    run(scenario, Broken)


def test_cron_fires_missed_times_once(run):
    """A schedule that was missed for hours fires once, and then at its next time."""

    async def scenario(home):
        await home.call("Bell", "a", "arm_cron", "* * * * *")
        home.watch.ahead_ms += 3 * 3600 * SECOND_MS
        await rung(home, "a", 1)
        await home.a_while(0.3)
        rings = await home.call("Bell", "a", "rings")
        (row,) = await home.call("Bell", "a", "table")

        assert len(rings) in (1, 2)  # two if a minute began just now
        assert 0 < row["due"] - home.watch.wall_ms() <= 60 * SECOND_MS

    run(scenario, Bell, object_sweep_secs=0.1)


def test_the_mirror_is_never_later_than_storage(run):
    """Earlier is mirrored before the answer; later and cleared are not written until the row is due or the object
    sleeps."""

    async def scenario(home):
        async def mirrored():
            return (await home.mirror("Bell", "a")).due_ms

        async def stored():
            return [a["due"] for a in await home.call("Bell", "a", "table")]

        await home.call("Bell", "a", "arm", 100)
        assert [await mirrored()] == await stored()
        first = await mirrored()
        await home.call("Bell", "a", "arm", 50)
        earlier = await mirrored()
        assert [earlier] == await stored()
        assert earlier < first
        for n in range(20):
            await home.call("Bell", "a", "arm", 200 + n)
        assert await mirrored() == earlier
        await home.sleep_object("Bell", "a")
        assert [await mirrored()] == await stored()
        await home.call("Bell", "a", "disarm")
        assert await mirrored() is not None
        await home.sleep_object("Bell", "a")
        assert await mirrored() is None

    run(scenario, Bell)


def test_an_alarm_is_not_lost_with_the_handler_s_flight(run):
    """A crash before the handler's write has landed leaves the alarm armed: it fires again, and its write is there
    once."""

    async def scenario(home):
        await home.call("Bell", "a", "arm", 0.2)
        home.bucket.down = True
        residency = home.residency("Bell", "a")
        mark = residency.log.mark
        await home.until(lambda: residency.log.mark > mark, "the handler ran")
        await home.crash()
        home.wipe()
        home.bucket.down = False
        await home.start()
        await home.until(lambda: home.awake("Bell", "a"), "the sweep wakes it")
        await rung(home, "a", 1)
        await home.a_while(0.2)
        assert len(await home.call("Bell", "a", "rings")) == 1

    run(scenario, Bell, object_sweep_secs=0.2)


def test_a_handler_s_writes_pass_the_gate(run):
    """What a handler wrote is shown to nobody before it has landed."""

    async def scenario(home):
        await home.call("Bell", "a", "arm", 0.2)
        home.bucket.down = True
        residency = home.residency("Bell", "a")
        mark = residency.log.mark
        await home.until(lambda: residency.log.mark > mark, "the handler ran")
        with pytest.raises(NotServing):
            await home.call("Bell", "a", "rings")
        home.bucket.down = False
        await home.landed("Bell", "a")
        assert len(await rung(home, "a", 1)) == 1

    run(scenario, Bell, object_ack_gate_ms=2500)


def test_a_sleeper_is_woken_on_time(run):
    """A node that put an object to sleep wakes it for its alarm, long before any sweep."""

    async def scenario(home):
        await home.call("Bell", "a", "arm", 0.5)
        (due,) = (a["due"] for a in await home.call("Bell", "a", "table"))
        await home.sleep_object("Bell", "a")
        assert not home.awake("Bell", "a")
        await home.until(lambda: home.awake("Bell", "a"), "it is woken")
        (ring,) = await rung(home, "a", 1)
        assert 0 <= ring["at"] - due < 10_000, "no sweep woke it"

    run(scenario, Bell, object_sweep_secs=3600)


def test_the_mirror_failing_is_told(run):
    """An alarm that the mirror does not get is `outcome_unknown` after three tries, and is mirrored later by itself."""

    async def scenario(home):
        await home.call("Bell", "a", "rings")
        write = home.store.write

        async def refuse(conditions, mutations, grant=None):
            if any("/alarm-of/" in getattr(m, "key", "") for m in mutations):
                raise StoreUnavailable("no leader")
            return await write(conditions, mutations, grant)

        home.store.write = refuse
        with pytest.raises(OutcomeUnknown):
            await home.call("Bell", "a", "arm", 100)
        home.store.write = write

        async def mirrored():
            return (await home.mirror("Bell", "a")).row is not None

        await home.until(mirrored, "it is mirrored in the background")

    run(scenario, Bell)


def test_an_object_whose_caller_waits_for_the_mirror_is_not_put_to_sleep(run):
    """Past `OBJECT_RESIDENTS` room is made by objects nobody waits for: an alarm's answer is not cut off."""

    async def scenario(home):
        await home.call("Bell", "a", "rings")
        write, go_on = home.store.write, asyncio.Event()

        async def slowly(conditions, mutations, grant=None):
            if any("/alarm-of/" in getattr(m, "key", "") for m in mutations):
                await go_on.wait()
            return await write(conditions, mutations, grant)

        home.store.write = slowly
        arm = asyncio.create_task(home.call("Bell", "a", "arm", 100))
        residency = home.residency("Bell", "a")
        await home.until(lambda: residency.due._mirroring and residency.flights.landed, "it waits for the mirror alone")
        await home.call("Bell", "b", "rings")
        await home.call("Bell", "c", "rings")
        await home.a_while(0.2)  # the surplus could sleep
        go_on.set()
        await arm
        home.store.write = write
        await home.until(lambda: len(home.node._residents) <= 1, "the surplus sleeps")

    run(scenario, Bell, object_residents=1, object_idle_secs=0.2)
