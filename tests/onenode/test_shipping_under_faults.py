"""What was committed reaches the store whole, whatever the store and the process do meanwhile."""

from __future__ import annotations

import asyncio
import random
import shutil

import pytest
from rows import Rows

import domicile
from domicile.errors import NotHome, NotServing, OutcomeUnknown
from domicile.node.chunks import MANIFESTS


class Probe(Rows):
    def put(self, i: int, size: int) -> int:
        self.sql.exec("INSERT OR REPLACE INTO t VALUES (?, randomblob(?))", i, size)
        return i

    @domicile.read
    def ids(self) -> list[int]:
        return [row["id"] for row in self.sql.query("SELECT id FROM t ORDER BY id")]


async def assert_same_after_cold_restore(home, name):
    """Restored from the bucket alone the object is what it was."""
    before = await home.call("Probe", name, "digest")
    await home.restart(crash=True, cold=True)
    assert await home.call("Probe", name, "digest") == before
    assert await home.call("Probe", name, "check") == "ok"


def test_tiny_writes_after_a_rotation_are_shipped(run):
    """After the log was folded each tiny write moves manifest and watermark, none is taken for nothing (field case
    1)."""

    async def scenario(home):
        await asyncio.gather(*(home.call("Probe", "a", "put", i, 4000) for i in range(200)))
        while not (await home.landed("Probe", "a")).manifest.base:  # a due rotation may be put off once
            await home.call("Probe", "a", "put", 8000, 4000)
        last = (await home.manifest("Probe", "a")).position
        for i in range(21):
            await home.call("Probe", "a", "put", 9000 + i, 10)
            now = (await home.manifest("Probe", "a")).position
            assert now > last
            last = now
        await assert_same_after_cold_restore(home, "a")

    run(scenario, Probe, object_wal_rotate_kb=256)


def test_nothing_is_folded_that_has_not_shipped(run):
    """While the store is away the log passes its limit twice and is kept; a crash before it returns loses no answered
    write and leaves a database that restores (field case 2)."""

    async def scenario(home):
        await asyncio.gather(*(home.call("Probe", "a", "put", i, 2000) for i in range(50)))
        generation = (await home.landed("Probe", "a")).manifest.generation
        home.bucket.down = True
        outcomes = await asyncio.gather(
            *(home.call("Probe", "a", "put", 1000 + i, 4000) for i in range(200)), return_exceptions=True
        )
        residency = home.residency("Probe", "a")
        assert all(isinstance(outcome, OutcomeUnknown) for outcome in outcomes)
        assert residency.log.length > 2 * 256 * 1024
        assert residency.log.generation == generation
        await home.crash()
        home.bucket.down = False
        await home.start()
        for i in range(50):
            await home.call("Probe", "a", "put", 5000 + i, 2000)
        ids = set(await home.call("Probe", "a", "ids"))

        assert ids >= {*range(50), *range(5000, 5050)}
        await assert_same_after_cold_restore(home, "a")
        assert set(await home.call("Probe", "a", "ids")) == ids

    run(scenario, Probe, object_wal_rotate_kb=256, object_ack_gate_ms=2500)


def test_blips_of_the_store_leave_no_gap(run):
    """Outages at random moments under continuous writes, with crashes among them: the chain in the bucket has no gap,
    and all that was answered is there (field case 19)."""

    async def scenario(home):
        luck, answered, unknown = random.Random(19), set(), set()
        numbers = iter(range(1_000_000))

        async def write():
            i = next(numbers)
            try:
                answered.add(await home.call("Probe", "a", "put", i, 500))
            except (OutcomeUnknown, NotServing, NotHome):
                unknown.add(i)
                await home.a_while(0.01)  # as a client backs off

        async def writer(stop):
            while not stop.is_set():
                await write()

        for round_ in range(10):
            stop = asyncio.Event()
            writers = [asyncio.create_task(writer(stop)) for _ in range(3)]
            await asyncio.sleep(luck.uniform(0.01, 0.06))
            home.bucket.down = True
            await asyncio.sleep(luck.uniform(0.02, 0.2))
            if round_ % 3 == 0:
                await home.crash()
            home.bucket.down = False
            stop.set()
            await asyncio.gather(*writers)
            if round_ % 3 == 0:
                home.wipe() if round_ % 2 else None
                await home.start()
            await write()
            if home.awake("Probe", "a"):
                await home.landed("Probe", "a")
            await home.manifest("Probe", "a")
            ids = set(await home.call("Probe", "a", "ids"))
            assert answered <= ids <= answered | unknown
        await assert_same_after_cold_restore(home, "a")

    run(scenario, Probe, object_ack_gate_ms=2500, object_wal_rotate_kb=64)


def test_a_store_that_refuses_most_requests_is_not_hammered(run):
    """With 70 % of its requests refused the node backs off, all objects go on, and afterwards nothing is missing
    (field case 24)."""

    async def scenario(home):
        names = [f"o{i}" for i in range(40)]
        await asyncio.gather(*(home.call("Probe", name, "put", 0, 100) for name in names))
        answered = {name: {0} for name in names}
        home.bucket.failing, home.bucket.asked = 0.7, 0
        began = home.node.now()

        async def write(name):
            for i in range(1, 5):
                try:
                    answered[name].add(await home.call("Probe", name, "put", i, 100))
                except OutcomeUnknown:
                    continue

        await asyncio.gather(*(write(name) for name in names))
        per_object_and_second = home.bucket.asked / len(names) / (home.node.now() - began)
        assert per_object_and_second < 40
        home.bucket.failing = 0.0
        for name in names:
            if home.awake("Probe", name):
                await home.landed("Probe", name)
            assert set(await home.call("Probe", name, "ids")) >= answered[name]
            await home.manifest("Probe", name)
        assert sum(map(len, answered.values())) > len(names)
        await home.restart(crash=True, cold=True)
        for name in names:
            assert set(await home.call("Probe", name, "ids")) >= answered[name]

    run(scenario, Probe, object_ack_gate_ms=1500)


def test_the_log_since_the_last_base_is_bounded(run):
    """A restore costs the same after three times the writes: base, and at most `OBJECT_MAX_SEGMENTS` pieces (field
    case 18)."""

    async def scenario(home):
        costs = []
        for writes in (400, 1200):
            for i in range(0, writes, 4):
                await asyncio.gather(*(home.call("Probe", "a", "put", (i + j) % 50, 1500) for j in range(4)))
            await home.landed("Probe", "a")
            manifest = await home.manifest("Probe", "a")
            assert len(manifest.segments) <= 16
            assert manifest.length <= 2 * 128 * 1024 + 256 * 1024
            await home.restart(crash=True, cold=True)
            home.bucket.gets.clear()
            assert await home.call("Probe", "a", "check") == "ok"
            costs.append(len(home.bucket.gets))
        assert max(costs) <= 16 + 4

    run(scenario, Probe, object_wal_rotate_kb=128, object_max_segments=16)


def test_a_slow_restore_goes_on_without_its_caller(run):
    """A caller that gives up does not make the restore begin again: the next one finds it further, or done (field
    case 18)."""

    async def scenario(home):
        for i in range(30):
            await home.call("Probe", "a", "put", i, 20_000)
        await home.landed("Probe", "a")
        segments = len((await home.manifest("Probe", "a")).segments)
        assert segments > 10
        await home.restart(crash=True, cold=True)
        home.bucket.gets.clear()
        home.bucket.delay_secs = 0.2  # eight pieces are fetched at once
        for _ in range(5):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(home.call("Probe", "a", "ids"), 0.1)
        ids = await home.call("Probe", "a", "ids")

        assert ids == list(range(30))
        assert len(home.bucket.gets) == len(set(home.bucket.gets)), "nothing was fetched twice"

    run(scenario, Probe, object_wal_rotate_kb=8192)


def test_reads_beside_rotations_and_crashes(run):
    """Short reads timed to overlap rotations, and crashes among them: every restart works without help and nothing
    differs (field case 7)."""

    async def scenario(home):
        luck, at = random.Random(7), 0
        for round_ in range(40):
            puts = [home.call("Probe", "a", "put", (at + i) % 60, 50_000) for i in range(5)]
            reads = [home.call("Probe", "a", "digest") for _ in range(3)]
            at += 5
            await asyncio.gather(*puts, *reads)
            if round_ % 8 == 3:
                await asyncio.sleep(luck.uniform(0, 0.02))
                await home.restart(crash=True)
                assert await home.call("Probe", "a", "check") == "ok"
        leg = await home.landed("Probe", "a")
        assert leg.manifest.generation.counter + len(leg.manifest.base) > 0
        await assert_same_after_cold_restore(home, "a")

    run(scenario, Probe, object_wal_rotate_kb=256)


@pytest.mark.parametrize("damage", ["cut", "zeros", "garbage", "appended"])
def test_a_torn_log_is_cut_before_it_is_appended_to(run, damage):
    """A log torn at its end is taken over up to its last whole commit; what is answered later is found in exactly that
    file after the next crash (field case 15)."""

    async def scenario(home):
        for i in range(60):
            await home.call("Probe", "a", "put", i, 300)
        home.bucket.down = True
        for i in range(60, 66):
            with pytest.raises(OutcomeUnknown):
                await home.call("Probe", "a", "put", i, 300)
        log = home.residency("Probe", "a").engine.files.log
        await home.crash()
        tear(log, damage)
        home.bucket.down = False
        await home.start()
        for i in range(100, 200):
            await home.call("Probe", "a", "put", i, 300)
        assert home.telemetry.activations.of("own").value == 1
        ids = await home.call("Probe", "a", "ids")
        before = await home.call("Probe", "a", "digest")
        await home.crash()

        assert set(ids) >= {*range(60), *range(100, 200)}
        shutil.copytree(home.root / "blobs", home.root / "kept")
        for key in set(home.bucket.puts):
            if not key.startswith(MANIFESTS):
                await home.bucket.delete(key)
        await home.start()
        assert await home.call("Probe", "a", "digest") == before
        assert await home.call("Probe", "a", "check") == "ok"
        await home.crash()
        for path in (home.root / "kept" / "data").rglob("*"):
            there = home.root / "blobs" / "data" / path.relative_to(home.root / "kept" / "data")
            if path.is_file() and not there.exists():
                there.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, there)
        home.wipe()
        await home.start()
        assert await home.call("Probe", "a", "digest") == before

    run(scenario, Probe, object_ack_gate_ms=2500)


def tear(path, damage, size=2000):
    """Spoil the last `size` bytes of a file."""
    with open(path, "r+b") as file:
        end = file.seek(0, 2)
        if damage == "appended":
            file.write(random.Random(1).randbytes(5000))
        elif damage == "cut":
            file.truncate(end - size)
        else:
            file.seek(end - size)
            file.write(bytes(size) if damage == "zeros" else random.Random(1).randbytes(size))


@pytest.mark.parametrize("damage", ["cut", "zeros", "garbage"])
@pytest.mark.parametrize("file", ["log", "sidecar", "base"])
def test_a_file_spoilt_below_what_the_store_has_is_not_used(run, file, damage):
    """Whatever of the node's own files is spoilt, the object is what was answered, never the damage (field case
    15)."""

    async def scenario(home):
        for i in range(30):
            await home.call("Probe", "a", "put", i, 300)
        before = await home.call("Probe", "a", "digest")
        files = home.residency("Probe", "a").engine.files
        await home.crash()
        tear(getattr(files, file), damage, 9000 if file == "log" else 100)
        await home.start()

        assert await home.call("Probe", "a", "digest") == before
        assert await home.call("Probe", "a", "check") == "ok"
        await home.call("Probe", "a", "put", 1000, 10)
        await assert_same_after_cold_restore(home, "a")

    run(scenario, Probe)
