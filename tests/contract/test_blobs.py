"""One suite for every blob store: the directory, and S3 as moto's server speaks it."""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from s3_server import S3Server

from domicile.node.blobs.base import ABSENT, Blobs, Listed
from domicile.node.blobs.file import FileBlobs
from domicile.node.blobs.probe import probe
from domicile.node.blobs.retries import Retries
from domicile.node.blobs.s3 import S3Blobs, S3Config
from domicile.node.clock import SystemClock
from domicile.node.errors import BlobMissing, PreconditionFailed

# moto's Flask and botocore call functions that newer Pythons mean to take away; neither is ours to change.
pytestmark = [
    pytest.mark.filterwarnings(r"ignore:datetime\.datetime\.utcnow:DeprecationWarning:(botocore|moto)"),
]

T = TypeVar("T")
Run = Callable[[Callable[[Blobs], Awaitable[T]]], T]


@pytest.fixture(scope="module")
def moto() -> Iterator[str]:
    """The address of an S3 server on a free port."""
    server = S3Server()
    yield server.url
    server.stop()


@pytest.fixture(params=["file", "s3"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Run[T]:
    """Runs a scenario against an empty store, in an event loop of its own; several times is the same store."""
    if request.param == "file":

        async def opened() -> Blobs:
            return FileBlobs(str(tmp_path / "blobs"), SystemClock())

    else:
        endpoint = request.getfixturevalue("moto")
        bucket = "b" + str(abs(hash(request.node.name)))
        make = urllib.request.Request(f"{endpoint}/{bucket}", method="PUT")
        urllib.request.urlopen(make).close()
        config = S3Config(bucket, "some/prefix/", endpoint, access_key="k", secret_key="s", page_keys=20)

        async def opened() -> Blobs:
            return await S3Blobs.open(config, Retries(SystemClock(), lambda: 0.5))

    async def whole(scenario: Callable[[Blobs], Awaitable[T]]) -> T:
        blobs = await opened()
        try:
            return await scenario(blobs)
        finally:
            await blobs.close()

    return lambda scenario: asyncio.run(whole(scenario))


async def keys(blobs: Blobs, prefix: str) -> list[str]:
    return [listed.key async for listed in blobs.list(prefix)]


def test_what_was_put_is_read(run: Run[None]) -> None:
    """A value comes back byte for byte, an absent key is BlobMissing, and the latest put wins."""

    async def scenario(blobs: Blobs) -> None:
        with pytest.raises(BlobMissing, match="a/b"):
            await blobs.get("a/b")
        for value in (b"", b"one", bytes(range(256)) * 300, b"three"):
            tag = await blobs.put("a/b", value)
            found = await blobs.get("a/b")
            assert (found.data, found.tag) == (value, tag)

    run(scenario)


def test_values_survive_a_close(run: Run[None]) -> None:
    """What was put is there when the store is opened again, and its tag is still good for a condition."""
    tags: dict[str, str] = {}

    async def before(blobs: Blobs) -> None:
        tags["plain"] = await blobs.put("plain", b"1")
        tags["register"] = await blobs.put("register", b"2", ABSENT)
        tags["register"] = await blobs.put("register", b"3", tags["register"])

    async def after(blobs: Blobs) -> None:
        assert (await blobs.get("plain")).tag == tags["plain"]
        assert await blobs.put("register", b"4", tags["register"])
        assert (await blobs.get("register")).data == b"4"

    run(before)
    run(after)


@pytest.mark.parametrize("size", [0, 1, 4095, 8 << 10, (64 << 10) - 1, 64 << 10, 1 << 20, 5 << 20])
def test_values_of_any_size(size: int, run: Run[None]) -> None:
    """Empty to several MiB, put freely and under conditions, growing and shrinking."""

    async def scenario(blobs: Blobs) -> None:
        value = (b"0123456789abcdef" * (size // 16 + 1))[:size]
        await blobs.put("free", value)
        assert (await blobs.get("free")).data == value
        tag = await blobs.put("held", b"small", ABSENT)
        tag = await blobs.put("held", value, tag)
        assert (await blobs.get("held")).data == value
        tag = await blobs.put("held", b"small again", tag)
        found = await blobs.get("held")
        assert (found.data, found.tag) == (b"small again", tag)
        first = await blobs.put("born", value, ABSENT)
        assert (await blobs.get("born")).tag == first

    run(scenario)


def test_a_condition_that_does_not_hold_stores_nothing(run: Run[None]) -> None:
    """ABSENT where something is, a stale tag, a tag where nothing is: PreconditionFailed and the old value."""

    async def scenario(blobs: Blobs) -> None:
        first = await blobs.put("k", b"first", ABSENT)
        with pytest.raises(PreconditionFailed):
            await blobs.put("k", b"wrong", ABSENT)
        second = await blobs.put("k", b"second", first)
        with pytest.raises(PreconditionFailed):
            await blobs.put("k", b"wrong", first)
        assert (await blobs.get("k")).data == b"second"
        assert (await blobs.get("k")).tag == second
        with pytest.raises(PreconditionFailed):
            await blobs.put("other", b"wrong", second)
        with pytest.raises(BlobMissing):
            await blobs.get("other")

    run(scenario)


def test_conditions_hold_across_every_kind_of_put(run: Run[None]) -> None:
    """Free puts and conditional ones meet on one key: each sees what the other stored."""

    async def scenario(blobs: Blobs) -> None:
        free = await blobs.put("k", b"free")
        with pytest.raises(PreconditionFailed):
            await blobs.put("k", b"wrong", ABSENT)
        held = await blobs.put("k", b"held", free)
        again = await blobs.put("k", b"free again")
        with pytest.raises(PreconditionFailed):
            await blobs.put("k", b"wrong", held)
        assert (await blobs.get("k")).data == b"free again"
        await blobs.put("k", b"held again", again)
        await blobs.delete("k")
        assert await blobs.put("k", b"new life", ABSENT)
        assert (await blobs.get("k")).data == b"new life"

    run(scenario)


def test_one_of_many_wins(run: Run[None]) -> None:
    """Of N puts at once on one tag exactly one is stored, and it is the one that says so; round after round."""

    async def scenario(blobs: Blobs) -> None:
        tag: str | None = None
        for lap in range(4):
            condition = tag or ABSENT
            puts = (blobs.put("k", b"%d by %d" % (lap, n), condition) for n in range(8))
            answers = await asyncio.gather(*puts, return_exceptions=True)
            won = [n for n, answer in enumerate(answers) if isinstance(answer, str)]
            assert len(won) == 1
            assert all(isinstance(answer, str | PreconditionFailed) for answer in answers)
            found = await blobs.get("k")
            tag = found.tag
            assert found.data == b"%d by %d" % (lap, won[0])
            assert tag == answers[won[0]]

    run(scenario)


def test_different_keys_at_once(run: Run[None]) -> None:
    """Puts on many keys at once all arrive, each under its own key."""

    async def scenario(blobs: Blobs) -> None:
        names = [f"{n:02}/manifest" for n in range(40)]
        tags = await asyncio.gather(*(blobs.put(name, name.encode(), ABSENT) for name in names))
        found = await asyncio.gather(*(blobs.get(name) for name in names))
        assert [blob.data.decode() for blob in found] == names
        assert [blob.tag for blob in found] == tags

    run(scenario)


WEIRD = [
    "plain",
    "Plain",
    "PLAIN",
    "with space",
    "per%cent",
    "per%25cent",
    "a/b",
    "a",
    "a/b/c",
    "a.b",
    "a-b/c",
    "dots/..hidden",
    "dots/..%2f..%2fup",
    "trailing.",
    "tilde~/x",
    "%~",
    "%b",
    "x%b/y",
    "x%r",
    "quote'\"<>&?#[]|*\\",
    "long/" + "l" * 255 + "/x",
    "long/" + "L" * 255,
    "0" * 1000,
]


def test_weird_keys_stay_apart(run: Run[None]) -> None:
    """Keys that differ in case, escapes, dots or length, or begin each other, never touch each other's values."""

    async def scenario(blobs: Blobs) -> None:
        for key in WEIRD:
            await blobs.put(key, b"free " + key.encode())
        for key in WEIRD:
            assert (await blobs.get(key)).data == b"free " + key.encode()
        assert await keys(blobs, "") == sorted(WEIRD)
        for key in WEIRD[::2]:
            await blobs.delete(key)
        assert await keys(blobs, "") == sorted(set(WEIRD) - set(WEIRD[::2]))

    run(scenario)


def test_lists_are_in_order_by_prefix(run: Run[None]) -> None:
    """Keys come in the order of their bytes, with their sizes, whatever the prefix cuts through."""
    stored = {"a/1": 1, "a/10": 2, "a/2": 3, "a-b": 4, "a": 5, "ab/x/y": 6, "ab/x": 7, "b": 0}

    async def scenario(blobs: Blobs) -> None:
        for key, size in stored.items():
            await blobs.put(key, b"x" * size, ABSENT if size % 2 else None)
        for prefix in ("", "a", "a/", "a/1", "ab/", "ab/x", "ab/x/", "b", "c", "a/1/"):
            found = [listed async for listed in blobs.list(prefix)]
            assert found == [Listed(key, stored[key]) for key in sorted(stored) if key.startswith(prefix)]

    run(scenario)


def test_long_lists_are_whole(run: Run[None]) -> None:
    """More keys than one page of any store are all listed, once."""

    async def scenario(blobs: Blobs) -> None:
        names = [f"o/{n:03}" for n in range(103)]
        for at in range(0, len(names), 64):
            await asyncio.gather(*(blobs.put(name, b"") for name in names[at : at + 64]))
        assert await keys(blobs, "o/") == names

    run(scenario)


def test_delete_is_repeatable(run: Run[None]) -> None:
    """A deleted key is missing and unlisted; deleting what is not there is no error; its neighbours stay."""

    async def scenario(blobs: Blobs) -> None:
        tag = await blobs.put("o/1/manifest", b"x", ABSENT)
        await blobs.put("o/2", b"y")
        for _ in range(2):
            await blobs.delete("o/1/manifest")
        with pytest.raises(BlobMissing):
            await blobs.get("o/1/manifest")
        with pytest.raises(PreconditionFailed):
            await blobs.put("o/1/manifest", b"x", tag)
        assert await keys(blobs, "o/") == ["o/2"]

    run(scenario)


def test_the_probe_accepts_it_and_leaves_nothing(run: Run[None]) -> None:
    """Every store this project ships with passes its own start-up probe, which cleans up after itself."""

    async def scenario(blobs: Blobs) -> None:
        await probe(blobs, "probe/123")
        assert await keys(blobs, "") == []

    run(scenario)
