"""Chunks: keys, hashes, the rule of reuse, the cache, and fetching a base."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from domicile.node import chunks
from domicile.node.blobs.base import Blob, Listed, Precondition
from domicile.node.chunk_cache import ChunkCache
from domicile.node.chunks import Base, ChunkRef, Segment
from domicile.node.disk import SystemDisk
from domicile.node.errors import BlobMissing, BlobUnavailable, Corrupt
from domicile.node.sqlite.wal import CHUNK_BYTES
from domicile.placement.records import Epoch, Generation

ID = "ab" * 32
LIFE = Epoch(1, 4)
OLD, NEW = Generation(Epoch(1, 5), 2), Generation(Epoch(2, 9), 0)


def hash_of(data: bytes) -> bytes:
    return blake3(data).digest()


def test_golden_keys() -> None:
    """Keys are stored: these never change."""
    ref = ChunkRef(b"\xcd" * 32, OLD)
    segment = Segment(Epoch(2, 9), OLD, 4152, 8272, b"\xef" * 32)
    assert chunks.manifest_key(ID) == "manifests/" + ID
    assert chunks.chunk_key(ID, LIFE, ref) == f"{ID}/1.4/1.5.2/{'cd' * 32}"
    assert chunks.segment_key(ID, LIFE, segment) == f"{ID}/1.4/1.5.2/2.9-4152-8272-{'ef' * 32}"
    assert chunks.chunk_key(ID, LIFE, ref).startswith(chunks.incarnation_prefix(ID, LIFE))
    assert chunks.incarnation_prefix(ID, LIFE).startswith(chunks.object_prefix(ID))


HASHES = st.lists(st.sampled_from([bytes([n]) * 32 for n in range(6)]), max_size=8)


@given(wanted=HASHES, had=HASHES, before=HASHES)
def test_a_key_is_reused_only_if_the_replaced_manifest_names_it(
    wanted: list[bytes], had: list[bytes], before: list[bytes]
) -> None:
    """Chunks the replaced manifest has keep their key; any other gets one of the new generation, once had or not."""
    first = chunks.next_refs(before, (), Generation(Epoch(1, 1), 0))
    replaced = chunks.next_refs(had, first, OLD)
    refs = chunks.next_refs(wanted, replaced, NEW)
    assert [ref.hash for ref in refs] == wanted
    for ref in refs:
        assert (ref in replaced) == (ref.hash in had)
        assert ref in replaced or ref.generation == NEW


def test_hashing_reads_only_what_is_asked() -> None:
    """Each chunk is read once, at its offset, the last one short; `which` narrows it."""
    data = bytes(CHUNK_BYTES) + b"\1" * CHUNK_BYTES + b"\2" * 5
    reads = []

    def read(offset: int, length: int) -> bytes:
        reads.append((offset, length))
        return data[offset : offset + length]

    hashes = chunks.hash_chunks(read, len(data))
    assert hashes == {i: hash_of(data[i * CHUNK_BYTES : (i + 1) * CHUNK_BYTES]) for i in range(3)}
    reads.clear()
    assert chunks.hash_chunks(read, len(data), {2}) == {2: hashes[2]}
    assert reads == [(2 * CHUNK_BYTES, 5)]
    assert chunks.hash_chunks(read, 0) == {}


def test_a_short_read_is_no_chunk() -> None:
    """A file shorter than said is noticed, never hashed as if it were whole."""
    with pytest.raises(AssertionError, match="read 3 bytes"):
        chunks.hash_chunks(lambda _offset, _length: b"abc", 10)


def cache_at(path: Path, bytes_max: int = 1000) -> ChunkCache:
    return ChunkCache(SystemDisk(), str(path), bytes_max)


def test_the_cache_keeps_within_its_bound_what_was_used_last(tmp_path: Path) -> None:
    """Over its bound the cache drops what was used longest ago."""
    cache = cache_at(tmp_path / "cache")
    values = [bytes([n]) * 300 for n in range(4)]
    for value in values[:3]:
        cache.put(hash_of(value), value)
    assert cache.get(hash_of(values[0])) == values[0]
    cache.put(hash_of(values[3]), values[3])
    assert [cache.get(hash_of(value)) is not None for value in values] == [True, False, True, True]
    assert cache.bytes == 900 == sum(path.stat().st_size for path in (tmp_path / "cache").iterdir())
    cache.put(hash_of(b"\7" * 1001), b"\7" * 1001)
    assert cache.bytes == 900


def test_a_rotten_cache_file_is_a_miss(tmp_path: Path) -> None:
    """A file whose content is not its name's is dropped, never given out."""
    cache = cache_at(tmp_path)
    cache.put(hash_of(b"good"), b"good")
    (tmp_path / hash_of(b"good").hex()).write_bytes(b"gone")
    assert cache.get(hash_of(b"good")) is None
    assert (cache.rotten, cache.misses, cache.bytes, list(tmp_path.iterdir())) == (1, 1, 0, [])
    cache.put(hash_of(b"good"), b"good")
    (tmp_path / hash_of(b"good").hex()).unlink()
    assert cache.get(hash_of(b"good")) is None


def test_the_cache_is_found_again(tmp_path: Path) -> None:
    """A new start finds the chunks, drops what a crash left half-written, and keeps to a smaller bound."""
    cache = cache_at(tmp_path)
    for n in range(3):
        cache.put(hash_of(bytes([n]) * 300), bytes([n]) * 300)
    (tmp_path / (hash_of(b"x").hex() + ".new")).write_bytes(b"half")
    again = cache_at(tmp_path)
    assert again.bytes == 900
    assert again.get(hash_of(b"\1" * 300)) == b"\1" * 300
    assert len(list(tmp_path.iterdir())) == 3
    assert cache_at(tmp_path, 600).bytes == 600
    assert len(list(tmp_path.iterdir())) == 2


def test_a_full_disk_costs_only_a_later_fetch(tmp_path: Path) -> None:
    """A cache that cannot write says so in its counter and goes on."""

    class FullDisk(SystemDisk):
        def replace(self, path: str, data: bytes, *, sync: bool) -> None:
            raise OSError(28, "no space left on device")

    cache = ChunkCache(FullDisk(), str(tmp_path), 1000)
    cache.put(hash_of(b"a"), b"a")
    assert (cache.get(hash_of(b"a")), cache.refused, cache.bytes) == (None, 1, 0)


class Held:
    """A store whose gets wait for the test, so that what runs beside what can be counted."""

    def __init__(self, values: dict[str, bytes]) -> None:
        self.values = values
        self.running = self.most = self.gets = 0

    async def get(self, key: str) -> Blob:
        self.gets += 1
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            for _ in range(3):
                await asyncio.sleep(0)
        finally:
            self.running -= 1
        if key not in self.values:
            raise BlobMissing(key)
        return Blob(self.values[key], "tag")

    async def put(self, key: str, data: bytes, condition: Precondition = None) -> str:
        raise BlobUnavailable("read only")

    async def delete(self, key: str) -> None:
        raise BlobUnavailable("read only")

    async def list(self, prefix: str) -> AsyncIterator[Listed]:
        for key in sorted(self.values):
            yield Listed(key, len(self.values[key]))

    async def close(self) -> None:
        return None


@pytest.fixture(scope="module")
def base() -> tuple[Base, list[bytes]]:
    parts = [bytes([n]) * CHUNK_BYTES for n in range(11)] + [b"end" * 100]
    refs = tuple(ChunkRef(hash_of(part), OLD) for part in parts)
    return Base(ID, LIFE, refs, 11 * CHUNK_BYTES + 300), parts


def store_of(base: tuple[Base, list[bytes]]) -> Held:
    return Held({chunks.chunk_key(ID, LIFE, ref): part for ref, part in zip(base[0].refs, base[1], strict=True)})


async def fetched(store: Held, cache: ChunkCache | None, base: Base, which: set[int] | None = None) -> dict[int, bytes]:
    placed: dict[int, bytes] = {}
    await chunks.fetch_base(store, cache, base, placed.__setitem__, which)
    return placed


def test_a_base_is_fetched_in_parallel_within_a_bound(base: tuple[Base, list[bytes]], tmp_path: Path) -> None:
    """All chunks arrive, several at once and never more than the bound; a second lay asks the store for none."""
    store, cache = store_of(base), cache_at(tmp_path, 64 << 20)
    expected = dict(enumerate(base[1]))
    assert asyncio.run(fetched(store, cache, base[0])) == expected
    assert (store.gets, store.most) == (12, chunks.FETCHES_PARALLEL)
    assert asyncio.run(fetched(store, cache, base[0])) == expected
    assert store.gets == 12


def test_only_what_lacks_is_fetched(base: tuple[Base, list[bytes]]) -> None:
    """`which` names the chunks to fetch; an empty base fetches none."""
    store = store_of(base)
    assert asyncio.run(fetched(store, None, base[0], {3, 11})) == {3: base[1][3], 11: base[1][11]}
    assert asyncio.run(fetched(store, None, base[0], set())) == {}
    assert asyncio.run(fetched(store, None, Base(ID, LIFE, (), 0))) == {}
    assert store.gets == 2


@pytest.mark.parametrize("damage", ["missing", "flipped", "short"])
def test_a_chunk_that_is_not_what_it_should_be_is_never_served_around(
    damage: str, base: tuple[Base, list[bytes]], tmp_path: Path
) -> None:
    """A missing or wrong chunk ends the fetch with its object and key named, and does not enter the cache."""
    store, cache = store_of(base), cache_at(tmp_path, 64 << 20)
    key = chunks.chunk_key(ID, LIFE, base[0].refs[5])
    good = store.values.pop(key)
    if damage != "missing":
        store.values[key] = good[:-1] + (b"\xff" if damage == "flipped" else b"")
    with pytest.raises(BlobMissing if damage == "missing" else Corrupt) as caught:
        asyncio.run(fetched(store, cache, base[0]))
    assert ID in str(caught.value)
    assert key in str(caught.value)
    assert cache.get(base[0].refs[5].hash) is None
    assert store.running == 0
