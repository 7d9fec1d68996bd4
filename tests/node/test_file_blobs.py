"""The directory store under crashes, rot, full disks and other processes."""

from __future__ import annotations

import asyncio
import fcntl
import multiprocessing
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from domicile.node.blobs import paths, register
from domicile.node.blobs.base import ABSENT
from domicile.node.blobs.file import LOCK_WAIT_SECS, FileBlobs
from domicile.node.blobs.pool import Pool
from domicile.node.clock import SystemClock
from domicile.node.errors import BlobMissing, BlobUnavailable, Corrupt, PreconditionFailed

T = TypeVar("T")
REGISTER = "data/o/manifest" + paths.REGISTER
SLOTS_AT = 4096
CAPACITY = 8192


def run(root: Path, scenario: Callable[[FileBlobs], Awaitable[T]], clock: SystemClock | None = None) -> T:
    async def whole() -> T:
        blobs = FileBlobs(str(root), clock or SystemClock())
        try:
            return await scenario(blobs)
        finally:
            await blobs.close()

    return asyncio.run(whole())


async def written(blobs: FileBlobs, values: int) -> str:
    """The register `o/manifest` with so many values put one after the other; the last one's tag."""
    tag = await blobs.put("o/manifest", b"value 1", ABSENT)
    for n in range(2, values + 1):
        tag = await blobs.put("o/manifest", b"value %d" % n, tag)
    return tag


ASCII = st.text(st.characters(min_codepoint=0, max_codepoint=127), min_size=1, max_size=300)


@given(st.lists(ASCII, min_size=2, max_size=2))
def test_every_key_has_a_path_of_its_own(keys: list[str]) -> None:
    """Any two ASCII keys have paths that differ even when case is folded, stay inside, and lead back to the key."""
    made = [paths.path_of(key) for key in keys]
    assert [paths.key_of(path) for path in made] == keys
    assert (made[0].lower() == made[1].lower()) == (keys[0] == keys[1])
    for path in made:
        for part in path.split("/"):
            assert part not in ("", ".", "..")
            assert "\0" not in part
            assert len(part) + len(paths.BLOB) <= 255
            assert not part.endswith(paths.SUFFIXES)


@given(key=ASCII, cut=st.integers(0, 300))
def test_a_prefix_s_folder_holds_its_keys(key: str, cut: int) -> None:
    """Whatever prefix of a key is listed, the folder that is walked has the key's path in it."""
    folder = paths.folder_of(key[:cut])
    assert not folder or (paths.path_of(key) + "/").startswith(folder + "/")


@pytest.mark.parametrize("key", ["", "ü", "x" * 1025])
def test_no_key_beyond_the_contract(key: str, tmp_path: Path) -> None:
    """Empty, non-ASCII and over-long keys are refused before anything is touched."""

    async def scenario(blobs: FileBlobs) -> None:
        with pytest.raises(ValueError, match="blob key"):
            await blobs.put(key, b"x")

    run(tmp_path, scenario)


def test_golden_register(tmp_path: Path) -> None:
    """Register files are stored: what is written today is read for ever."""

    async def scenario(blobs: FileBlobs) -> None:
        await written(blobs, 2)

    run(tmp_path, scenario)
    data = (tmp_path / REGISTER).read_bytes()
    assert len(data) == SLOTS_AT + 2 * CAPACITY
    assert data[:16] == b"DOMREG1\n" + CAPACITY.to_bytes(8, "little")
    assert data[SLOTS_AT : SLOTS_AT + 8] == (2).to_bytes(8, "little")
    assert data[SLOTS_AT + 48 : SLOTS_AT + 55] == b"value 2"
    assert blake3(data).hexdigest() == "aa37da18e6443531424dc0397c7f410d9b0c27dce1c013bd40513e29a4a5dd97"


@pytest.mark.parametrize("values", [2, 3])
@settings(max_examples=40, deadline=None)
@given(keep=st.integers(0, 60), fill=st.sampled_from([b"\0", b"\xff", b"v"]))
def test_a_torn_put_leaves_the_value_before(
    values: int, keep: int, fill: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A slot of which only some bytes reached the disk, its mark unwritten, is not there: the value before it is."""
    root = tmp_path_factory.mktemp("torn")
    run(root, lambda blobs: written(blobs, values - 1))
    before = bytearray((root / REGISTER).read_bytes())
    run(root, lambda blobs: again(blobs, values))
    after = (root / REGISTER).read_bytes()
    at = SLOTS_AT + values % 2 * CAPACITY
    torn = after[at : at + keep] + fill * (60 - keep)
    if torn[:55] == after[at : at + 55]:
        return  # all of it arrived
    before[at : at + 60] = torn
    (root / REGISTER).write_bytes(before)

    async def scenario(blobs: FileBlobs) -> None:
        found = await blobs.get("o/manifest")
        assert found.data == b"value %d" % (values - 1)
        await blobs.put("o/manifest", b"next", found.tag)
        assert (await blobs.get("o/manifest")).data == b"next"

    run(root, scenario)


async def again(blobs: FileBlobs, value: int) -> None:
    await blobs.put("o/manifest", b"value %d" % value, (await blobs.get("o/manifest")).tag)


@pytest.mark.parametrize("values", [1, 2, 3])
def test_a_rotten_register_is_never_an_older_value(values: int, tmp_path: Path) -> None:
    """A flipped bit in the newest value is Corrupt, with the key named; in an older one it does not matter."""
    run(tmp_path, lambda blobs: written(blobs, values))
    whole = (tmp_path / REGISTER).read_bytes()
    newest = SLOTS_AT + values % 2 * CAPACITY
    older = SLOTS_AT + (values + 1) % 2 * CAPACITY

    async def read(blobs: FileBlobs) -> bytes:
        return (await blobs.get("o/manifest")).data

    for at in (newest, newest + 9, newest + 20, newest + 50, 3, 12):
        broken = bytearray(whole)
        broken[at] ^= 0x10
        (tmp_path / REGISTER).write_bytes(broken)
        with pytest.raises(Corrupt, match="o/manifest"):
            run(tmp_path, read)
    for at in (older + 1, older + 50):
        broken = bytearray(whole)
        broken[at] ^= 0x10
        (tmp_path / REGISTER).write_bytes(broken)
        assert run(tmp_path, read) == b"value %d" % values


def test_a_register_that_outgrew_its_slots_still_notices_rot(tmp_path: Path) -> None:
    """A value put into larger slots is marked like any other: a flipped bit in it is Corrupt."""

    async def scenario(blobs: FileBlobs) -> None:
        await blobs.put("o/manifest", bytes(30_000), await blobs.put("o/manifest", b"small", ABSENT))
        assert (await blobs.get("o/manifest")).data == bytes(30_000)
        with (tmp_path / REGISTER).open("r+b") as file:
            file.seek(SLOTS_AT + 1000)
            file.write(b"\1")
        with pytest.raises(Corrupt, match="o/manifest"):
            await blobs.get("o/manifest")

    run(tmp_path, scenario)


def test_a_first_put_cut_short_is_absent(tmp_path: Path) -> None:
    """A register that a crash left before its first value was whole is no value, unlisted, and can be born anew."""
    whole = register.blank(b"value 1", 1)
    (tmp_path / "data/o").mkdir(parents=True)

    async def scenario(blobs: FileBlobs) -> None:
        with pytest.raises(BlobMissing):
            await blobs.get("o/manifest")
        assert [listed async for listed in blobs.list("")] == []
        with pytest.raises(PreconditionFailed):
            await blobs.put("o/manifest", b"x", "tag")
        await blobs.put("o/manifest", b"born", ABSENT)
        assert (await blobs.get("o/manifest")).data == b"born"
        await blobs.delete("o/manifest")

    for length in (0, 8, 16, 600, 4096, len(whole) - CAPACITY + 20):
        (tmp_path / "data/o").mkdir(exist_ok=True)
        (tmp_path / REGISTER).write_bytes(whole[:length])
        run(tmp_path, scenario)


def test_leftovers_of_the_dead_are_swept_and_those_of_the_living_kept(tmp_path: Path) -> None:
    """Opening removes half-written files of crashed processes; a store that is open elsewhere loses nothing."""
    (tmp_path / "temp/0").mkdir(parents=True)
    (tmp_path / "temp/0/7").write_bytes(b"half a chunk")

    async def scenario(blobs: FileBlobs) -> None:
        assert [path.name for path in (tmp_path / "temp").iterdir()] == ["0"]
        assert list((tmp_path / "temp/0").iterdir()) == []
        (tmp_path / "temp/0/1").write_bytes(b"being written")
        other = FileBlobs(str(tmp_path), SystemClock())
        assert (tmp_path / "temp/0/1").exists()
        assert sorted(path.name for path in (tmp_path / "temp").iterdir()) == ["0", "1"]
        await other.close()

    run(tmp_path, scenario)
    assert list((tmp_path / "temp").iterdir()) == []


def test_a_full_disk_shows_nothing_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When space runs out in the middle of a put it is BlobUnavailable, the old value stands, and no file is left."""

    async def scenario(blobs: FileBlobs) -> None:
        await blobs.put("chunk", b"old")
        tag = await blobs.put("o/manifest", b"old", ABSENT)
        before = sorted(tmp_path.rglob("*"))
        real = os.write

        def fills_up(fd: int, data: memoryview) -> int:
            if len(data) < 6000:
                raise OSError(28, "No space left on device")
            return real(fd, data[:5000])

        monkeypatch.setattr(os, "write", fills_up)
        for key, value, condition in (
            ("chunk", bytes(20000), None),
            ("new/chunk", bytes(20000), None),
            ("new/manifest", bytes(20000), ABSENT),
            ("o/manifest", bytes(20000), tag),
        ):
            with pytest.raises(BlobUnavailable, match="No space left"):
                await blobs.put(key, value, condition)
        monkeypatch.undo()
        assert [path for path in sorted(tmp_path.rglob("*")) if path.is_file() and "locks" not in path.parts] == [
            path for path in before if path.is_file() and "locks" not in path.parts
        ]
        assert (await blobs.get("chunk")).data == b"old"
        assert (await blobs.get("o/manifest")).data == b"old"
        with pytest.raises(BlobMissing):
            await blobs.get("new/manifest")
        await blobs.put("o/manifest", bytes(20000), tag)

    run(tmp_path, scenario)


def test_a_put_over_a_register_needs_no_space(tmp_path: Path) -> None:
    """The space of the next value is taken when the register is made: the file does not grow with a put that fits."""

    async def scenario(blobs: FileBlobs) -> None:
        tag = await blobs.put("o/manifest", bytes(4000), ABSENT)
        before = os.stat(tmp_path / REGISTER)
        await blobs.put("o/manifest", os.urandom(8000), tag)
        after = os.stat(tmp_path / REGISTER)
        assert (before.st_ino, before.st_size, before.st_blocks) == (after.st_ino, after.st_size, after.st_blocks)

    run(tmp_path, scenario)


class JumpingClock(SystemClock):
    """A clock that a wait moves on at once."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, secs: float) -> None:
        self.now += secs
        await asyncio.sleep(0)


def test_what_is_not_there_is_missed_without_a_lock(tmp_path: Path) -> None:
    """A birth asks for a manifest that was never put: no file is made or locked for that."""

    async def scenario(blobs: FileBlobs) -> None:
        with pytest.raises(BlobMissing):
            await blobs.get("o/manifest")

    run(tmp_path, scenario)
    assert not list((tmp_path / "locks").iterdir())


def test_a_pool_that_closes_finishes_what_waits() -> None:
    """More calls than threads, and close behind them: each has its result, in the order they came with one thread."""
    order: list[int] = []

    async def scenario(pool: Pool) -> None:
        futures = [pool.start(lambda n=n: order.append(n)) for n in range(100)]  # type: ignore[misc]
        pool.close()
        await asyncio.gather(*futures)

    asyncio.run(scenario(Pool(1, "test")))
    assert order == list(range(100))
    asyncio.run(scenario(Pool(3, "test")))
    assert sorted(order[100:]) == list(range(100))


def test_a_lock_held_for_ever_is_unavailable(tmp_path: Path) -> None:
    """A process that stops with a key's lock in hand costs the others that key for a bounded wait, and no thread."""

    async def scenario(blobs: FileBlobs) -> None:
        await blobs.put("o/manifest", b"x", ABSENT)
        (lock,) = (tmp_path / "locks").iterdir()
        with lock.open() as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            with pytest.raises(BlobUnavailable, match=f"holds its lock for {LOCK_WAIT_SECS:g} s"):
                await blobs.put("o/manifest", b"y")
            await blobs.put("other", b"z")
        assert (await blobs.get("o/manifest")).data == b"x"

    run(tmp_path, scenario, JumpingClock())


def count_up(root: str, times: int) -> None:
    """In another process: add one to the register `count`, by compare-and-swap, so many times."""

    async def scenario(blobs: FileBlobs) -> None:
        done = 0
        while done < times:
            found = await blobs.get("count")
            try:
                await blobs.put("count", b"%d" % (int(found.data) + 1), found.tag)
                done += 1
            except PreconditionFailed:
                continue

    run(Path(root), scenario)


def test_processes_do_not_lose_each_other_s_puts(tmp_path: Path) -> None:
    """Several processes that count by compare-and-swap on one directory lose no step."""
    run(tmp_path, lambda blobs: blobs.put("count", b"0", ABSENT))
    spawn = multiprocessing.get_context("fork")
    counters = [spawn.Process(target=count_up, args=(str(tmp_path), 60)) for _ in range(3)]
    for counter in counters:
        counter.start()
    for counter in counters:
        counter.join(60)
        assert counter.exitcode == 0

    async def scenario(blobs: FileBlobs) -> bytes:
        return (await blobs.get("count")).data

    assert run(tmp_path, scenario) == b"180"


def test_a_cancelled_put_happens_or_does_not(tmp_path: Path) -> None:
    """A put whose caller went away is stored whole or not at all, and the key works on."""

    async def scenario(blobs: FileBlobs) -> None:
        tag = await blobs.put("k", b"old", ABSENT)
        for n in range(20):
            task = asyncio.ensure_future(blobs.put("k", b"new %d" % n, tag))
            for _ in range(n % 4):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            found = await blobs.get("k")
            assert found.data == b"new %d" % n or found.tag == tag
            tag = found.tag
        assert await blobs.put("k", b"end", tag)

    run(tmp_path, scenario)


def test_put_beside_delete_finds_its_folder(tmp_path: Path) -> None:
    """Deletes that remove emptied folders and puts into them do not make each other fail."""

    async def scenario(blobs: FileBlobs) -> None:
        async def churn(name: str) -> None:
            for _ in range(15):
                await blobs.put(f"o/deep/er/{name}", b"x", ABSENT if name == "a" else None)
                await blobs.delete(f"o/deep/er/{name}")

        await asyncio.gather(*(churn(name) for name in "abcd"))
        assert list((tmp_path / "data").iterdir()) == []

    run(tmp_path, scenario)
