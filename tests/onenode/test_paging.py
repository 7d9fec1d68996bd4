"""A large base laid in pages: answers before it is whole, right ones, whatever happens meanwhile (PROTOCOLS 5)."""

from __future__ import annotations

import asyncio
import os
import random

import pytest

import domicile
from domicile import Object
from domicile.errors import CallTimeout, NotServing
from domicile.node import sidecar as sidecars
from domicile.node.chunks import chunk_key
from domicile.node.disk import SystemDisk
from domicile.node.takeover import own_copy, paging

MIB = 1 << 20
ROWS = 160  # of 64 KiB: ten chunks
LAST, RANG = 5_000, 10_000
ROW_BYTES = MIB // 16
SMALL = {"object_paged_mb": 1, "object_wal_rotate_kb": 1024}


class Tome(Object):
    """Rows of random bytes; `sums` says what each must be."""

    def init(self):
        self.sql.exec("CREATE TABLE t (id INTEGER PRIMARY KEY, b BLOB)")

    def fill(self, start: int, many: int, seed: int) -> None:
        luck = random.Random(seed)
        for i in range(start, start + many):
            self.sql.exec("INSERT OR REPLACE INTO t VALUES (?, ?)", i, luck.randbytes(ROW_BYTES))

    def put(self, i: int, seed: int) -> None:
        self.sql.exec("INSERT OR REPLACE INTO t VALUES (?, ?)", i, random.Random(seed).randbytes(ROW_BYTES))

    def add(self, i: int, text: str) -> None:
        self.sql.exec("INSERT OR REPLACE INTO t VALUES (?, ?)", i, text.encode())

    @domicile.read
    def head(self, i: int) -> str | None:
        row = self.sql.one("SELECT substr(b, 1, 8) AS h FROM t WHERE id = ?", i)
        return None if row is None else row["h"].hex()

    async def head_async(self, i: int) -> str:
        return self.sql.one("SELECT substr(b, 1, 8) AS h FROM t WHERE id = ?", i)["h"].hex()

    def put_then_read(self, i: int, there: int) -> None:
        """Writes, swallows what the read raises, and returns as if all were well."""
        self.add(i, "half a call")
        try:
            self.head(there)
        except NotServing:
            return

    @domicile.read
    def sums(self) -> dict[str, int]:
        return {str(row["id"]): hash_of(row["b"]) for row in self.sql.query("SELECT id, b FROM t")}

    @domicile.read
    def check(self) -> str:
        return self.sql.one("PRAGMA integrity_check")["integrity_check"]

    def ring(self, secs: float) -> None:
        self.set_alarm(secs)

    def on_alarm(self) -> None:
        self.add(RANG, "rang")


def hash_of(data: bytes) -> int:
    return int.from_bytes(data[:6], "big") ^ len(data)


def row_of(seed: int) -> bytes:
    return random.Random(seed).randbytes(ROW_BYTES)


async def shelved(home):
    """An object of ten chunks and a little log, in the store alone. Gives its manifest."""
    for start in range(0, ROWS, 40):
        await home.call("Tome", "a", "fill", start, 40, start)
    await home.landed("Tome", "a")
    await home.call("Tome", "a", "add", LAST, "the last")
    await home.landed("Tome", "a")
    manifest = await home.manifest("Tome", "a")
    assert manifest.base_size > ROWS * ROW_BYTES * 0.7
    await home.restart(cold=True)
    home.bucket.gets.clear()
    return manifest


def keys_of(manifest):
    return [chunk_key(manifest.object_id, manifest.incarnation, ref) for ref in manifest.base]


def chunks_got(home, manifest):
    return [key for key in home.bucket.gets if key in keys_of(manifest)]


def paged(home):
    found = home.residency("Tome", "a").engine.paged
    assert found is not None
    return found


def files(home):
    return home.residency("Tome", "a").engine.files


def held_back(home, manifest, late=slice(1, None)):
    """Let those chunks (all but the first) not come before the event that this gives is set."""
    gate, get, late = asyncio.Event(), home.bucket.get, keys_of(manifest)[late]

    async def slow(key):
        if key in late:
            await gate.wait()
        return await get(key)

    home.bucket.get = slow
    return gate


async def whole(home):
    await home.until(lambda: paged(home).settled, "the base is whole")


async def is_right(home, rows):
    """The object has these rows, and is sound."""
    assert await home.call("Tome", "a", "sums") == {str(i): hash_of(data) for i, data in rows.items()}
    assert await home.call("Tome", "a", "check") == "ok"


async def all_rows(home):
    """What `shelved` put there."""
    rows = {LAST: b"the last"}
    for start in range(0, ROWS, 40):
        luck = random.Random(start)
        rows |= {i: luck.randbytes(ROW_BYTES) for i in range(start, start + 40)}
    return rows


def test_the_first_answer_comes_long_before_the_base_is_whole(run):
    """It takes the chunks it touches; the rest comes by itself, each chunk once."""

    async def scenario(home):
        manifest = await shelved(home)
        home.bucket.delay_secs = 0.1  # of each request
        assert await home.call("Tome", "a", "head", 150) == (await all_rows(home))[150][:8].hex()
        assert 1 < len(chunks_got(home, manifest)) < len(manifest.base)
        assert not paged(home).whole
        home.bucket.delay_secs = 0.0
        await whole(home)
        assert sorted(chunks_got(home, manifest)) == sorted(set(keys_of(manifest)))
        await is_right(home, await all_rows(home))

    run(scenario, Tome, **SMALL)


@pytest.mark.parametrize("seed", range(3))
def test_answers_are_right_while_the_base_fills(run, seed):
    """Random reads and writes beside a slow fill see what a whole file would show, and so does whoever comes later."""

    async def scenario(home):
        luck = random.Random(seed)
        await shelved(home)
        rows = await all_rows(home)
        home.bucket.delay_secs = 0.02
        for turn in range(60):
            i = luck.randrange(ROWS)
            if luck.random() < 0.4:
                await home.call("Tome", "a", "put", i, turn)
                rows[i] = row_of(turn)
            else:
                assert await home.call("Tome", "a", "head", i) == rows[i][:8].hex()
        home.bucket.delay_secs = 0.0
        await whole(home)
        await is_right(home, rows)
        await home.landed("Tome", "a")
        await home.restart(cold=True)
        await is_right(home, rows)

    run(scenario, Tome, **SMALL)


def test_a_whole_base_is_a_copy(run):
    """From the sidecar that says so on, a crash costs no chunk: the node's own file is laid."""

    async def scenario(home):
        await shelved(home)
        await home.call("Tome", "a", "head", 0)
        await whole(home)
        await home.call("Tome", "a", "add", 6000, "after")
        assert isinstance(sidecar_at(files(home)).state, sidecars.Laid)
        await home.restart(crash=True)
        home.bucket.gets.clear()
        await is_right(home, await all_rows(home) | {6000: b"after"})
        assert home.residency("Tome", "a").engine.paged is None

    run(scenario, Tome, **SMALL)


def sidecar_at(where):
    with open(where.sidecar, "rb") as file:
        return sidecars.decode(file.read())


def test_a_crash_voids_a_base_that_is_not_whole(run):
    """It looks whole on the disk, and is no copy: the next wake lays it anew, with all that was answered."""

    async def scenario(home):
        manifest = await shelved(home)
        gate = held_back(home, manifest)
        await home.call("Tome", "a", "add", 6000, "answered")
        where = files(home)
        assert isinstance(sidecar_at(where).state, sidecars.Paging)
        assert os.stat(where.base).st_size == manifest.base_size
        await home.crash()
        assert own_copy.find(SystemDisk(), where, manifest.incarnation) is None
        gate.set()
        await home.start()
        await is_right(home, await all_rows(home) | {6000: b"answered"})
        await whole(home)

    run(scenario, Tome, **SMALL)


def test_a_release_before_the_base_is_whole_leaves_nothing_here(run):
    """The manifest covers it: released clean, the partial file goes, and the next wake has it all."""

    async def scenario(home):
        manifest = await shelved(home)
        gate = held_back(home, manifest)
        await home.call("Tome", "a", "add", 6000, "answered")
        where = files(home)
        await home.sleep_object("Tome", "a")
        assert not os.path.exists(where.directory)
        gate.set()
        await is_right(home, await all_rows(home) | {6000: b"answered"})
        await whole(home)
        await home.sleep_object("Tome", "a")
        home.bucket.gets.clear()
        await is_right(home, await all_rows(home) | {6000: b"answered"})
        assert home.bucket.gets == []

    run(scenario, Tome, **SMALL)


@pytest.fixture
def impatient(monkeypatch):
    """What the store has lost is looked for again soon."""
    monkeypatch.setattr(paging, "LOST_RETRY_SECS", 0.2)


@pytest.mark.parametrize("how", ["missing", "rotten"])
def test_a_chunk_that_is_lost_is_named_by_the_calls_that_need_it(run, how, impatient):
    """Those fail, whole, with its key; others go on; once it is back, everything does. Log and metric tell it once."""

    async def scenario(home):
        manifest = await shelved(home)
        lost = keys_of(manifest)[7]
        data = (await home.bucket.quiet.get(lost)).data
        await home.bucket.quiet.delete(lost)
        if how == "rotten":
            await home.bucket.quiet.put(lost, data[:-1] + b"?")
        with pytest.raises(NotServing, match=lost) as caught:
            await home.call("Tome", "a", "sums")
        assert caught.value.outcome == "ran"
        assert await home.call("Tome", "a", "head", LAST) == b"the last"[:8].hex()
        needing = [i for i in range(ROWS) if not await has(home, i)]
        assert 0 < len(needing) < ROWS // 2
        with pytest.raises(NotServing, match=lost):  # the error was swallowed, the call is lost all the same
            await home.call("Tome", "a", "put_then_read", 6000, needing[0])
        assert await home.call("Tome", "a", "head", 6000) is None
        read = home.telemetry.bases_lost.read
        await home.until(lambda: read() == 1, "the loss is told")
        assert lost in home.log.getvalue()
        looks = home.bucket.gets.count(lost)
        await home.until(lambda: home.bucket.gets.count(lost) > looks + 1, "it looks again")
        await home.bucket.quiet.put(lost, data)
        await whole(home)
        assert read() == 0
        assert home.log.getvalue().count("base.lost") == 1
        await is_right(home, await all_rows(home))

    run(scenario, Tome, **SMALL)


async def has(home, i):
    try:
        return await home.call("Tome", "a", "head", i)
    except NotServing:
        return False


def test_a_store_that_goes_away_fails_only_what_needs_it(run):
    """Calls that need a chunk say that the store does not answer; the residency stays, and goes on when it is back."""

    async def scenario(home):
        manifest = await shelved(home)
        gate = held_back(home, manifest)
        assert await home.call("Tome", "a", "head", 0) is not None
        residency = home.residency("Tome", "a")
        home.bucket.down = True
        gate.set()
        with pytest.raises(NotServing, match=r"chunk \d+ .*the blob store does not answer"):
            await home.call("Tome", "a", "sums")
        assert await home.call("Tome", "a", "head", 0) is not None
        home.bucket.down = False
        await whole(home)
        assert home.residency("Tome", "a") is residency
        await is_right(home, await all_rows(home))

    run(scenario, Tome, **SMALL)


def test_a_call_that_waits_for_a_page_ends_in_its_time(run):
    """It is a call_timeout, its thread comes back, and the next call runs."""

    async def scenario(home):
        manifest = await shelved(home)
        gate = held_back(home, manifest)
        with pytest.raises(CallTimeout):
            await home.call("Tome", "a", "put_then_read", 6000, 150)
        assert home.telemetry.stuck_threads.value == 0
        assert await home.call("Tome", "a", "head", 6000) is None
        assert await home.call("Tome", "a", "head", 0) is not None
        gate.set()
        await whole(home)
        await is_right(home, await all_rows(home))

    run(scenario, Tome, object_call_secs=0.5, **SMALL)


def test_an_alarm_waits_for_the_base(run):
    """None rings before the base is whole; then it does, also one that was set meanwhile."""

    async def scenario(home):
        manifest = await shelved(home)
        gate = held_back(home, manifest)
        await home.call("Tome", "a", "ring", 0.01)
        assert (await home.mirror("Tome", "a")).due_ms is not None
        await home.a_while(0.3)
        assert await home.call("Tome", "a", "head", RANG) is None
        gate.set()
        await home.until(lambda: has(home, RANG), "it rang")
        assert paged(home).whole

    run(scenario, Tome, **SMALL)


def test_an_alarm_of_long_ago_is_known_at_once(run):
    """A release of a base that is not whole carries the alarm's row on, and the alarm rings in the next residency."""

    async def scenario(home):
        await home.call("Tome", "a", "ring", 3600)
        due_ms = (await home.mirror("Tome", "a")).due_ms
        manifest = await shelved(home)
        gate = held_back(home, manifest)
        await home.call("Tome", "a", "add", 6000, "x")
        await home.sleep_object("Tome", "a")
        assert (await home.mirror("Tome", "a")).due_ms == due_ms
        gate.set()
        home.watch.ahead_ms = 3_601_000
        await home.until(lambda: has(home, RANG), "it rang")

    run(scenario, Tome, **SMALL)


def test_an_async_method_waits_for_the_base(run):
    """Its SQL runs on the loop, which fetches: it begins once the base is whole, and the loop is never blocked."""

    async def scenario(home):
        manifest = await shelved(home)
        gate = held_back(home, manifest)
        await home.call("Tome", "a", "head", 0)
        reading = asyncio.create_task(home.call("Tome", "a", "head_async", 150))
        await home.a_while(0.2)
        assert not reading.done()
        gate.set()
        assert await reading == (await all_rows(home))[150][:8].hex()

    run(scenario, Tome, **SMALL)


def test_an_async_method_does_not_wait_for_ever(run, impatient):
    """What cannot be had in the time of a call is told by name."""

    async def scenario(home):
        manifest = await shelved(home)
        lost = keys_of(manifest)[7]
        data = (await home.bucket.quiet.get(lost)).data
        await home.bucket.quiet.delete(lost)
        with pytest.raises(NotServing, match=lost):
            await home.call("Tome", "a", "head_async", 0)
        assert await home.call("Tome", "a", "head", 0) is not None
        await home.bucket.quiet.put(lost, data)
        await whole(home)
        assert await home.call("Tome", "a", "head_async", 0) is not None

    run(scenario, Tome, object_call_secs=0.5, **SMALL)


def test_a_rotation_that_is_due_waits_for_the_base(run):
    """The log grows past its limit meanwhile; the fill's end rotates, and the store has it all."""

    async def scenario(home):
        manifest = await shelved(home)
        gate = held_back(home, manifest, late=slice(4, 5))
        rows = await all_rows(home)
        for i in range(300, 340):
            await home.call("Tome", "a", "put", i, i)
            rows[i] = row_of(i)
        residency = home.residency("Tome", "a")
        await home.until(lambda: not residency.leg.behind, "all landed")
        assert residency.log.rotations == 0
        assert residency.log.length > 2 * MIB
        gate.set()
        await whole(home)
        await home.call("Tome", "a", "put", 340, 340)  # one that would put more than the log is put off to this landing
        rows[340] = row_of(340)
        await home.until(lambda: residency.log.rotations == 1, "it rotated")
        await home.landed("Tome", "a")
        await is_right(home, rows)
        await home.restart(cold=True)
        await is_right(home, rows)

    run(scenario, Tome, **SMALL)


def test_a_deletion_does_not_wait_for_the_base(run):
    """The object goes, its partial file too, and the name starts anew."""

    async def scenario(home):
        manifest = await shelved(home)
        held_back(home, manifest)
        await home.call("Tome", "a", "head", 0)
        where = files(home)
        await home.node.delete(home.key("Tome", "a"), None, None)
        await home.until(lambda: not os.path.exists(where.base), "the files are gone")
        await home.call("Tome", "a", "add", 1, "new")
        await is_right(home, {1: b"new"})

    run(scenario, Tome, **SMALL)


def test_a_small_base_is_laid_whole(run):
    """Up to `OBJECT_PAGED_MB` nothing of this happens."""

    async def scenario(home):
        manifest = await shelved(home)
        home.bucket.gets.clear()
        await is_right(home, await all_rows(home))
        assert home.residency("Tome", "a").engine.paged is None
        assert len(chunks_got(home, manifest)) == len(manifest.base)

    run(scenario, Tome, object_paged_mb=64, object_wal_rotate_kb=1024)
