"""The checksum of a position: golden vectors, and a running hasher that is never disturbed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from domicile.node.sqlite.checksum import LogHasher, base_hash, checksum, seed
from domicile.placement.records import FIRST_INCARNATION, Epoch

ID = "ab" * 32
SEED = seed(ID, Epoch(3, 9), base_hash([b"\1" * 32, b"\2" * 32], 1_500_000))


def test_seed_bytes() -> None:
    """A seed is the object's id, its incarnation and the base's hash, 80 bytes."""
    assert SEED[:48] == b"\xab" * 32 + (3).to_bytes(8, "big") + (9).to_bytes(8, "big")
    assert SEED[48:].hex() == "9ffab62b6158c484b6c40df68e592e181799d2c92b4b4e597e583387fc5a4f78"


def test_golden_checksums() -> None:
    """Checksums are stored and sent: these never change."""
    birth = seed(ID, FIRST_INCARNATION, base_hash((), 0))
    assert checksum(birth, b"").hex() == "c822c7c5f5b40397a46f74dc69fb6262"
    assert checksum(birth, b"log").hex() == "480b1478d4c3809150ac3be5e59622ee"
    assert checksum(SEED, bytes(range(256)) * 33).hex() == "60664c7a475c406640694c825e010be6"


def test_every_part_of_the_seed_counts() -> None:
    """Another object, incarnation, chunk list or size gives another checksum of the same log."""
    base = base_hash([b"\1" * 32], 5)
    seeds = [
        seed(ID, Epoch(1, 1), base),
        seed("cd" * 32, Epoch(1, 1), base),
        seed(ID, Epoch(1, 2), base),
        seed(ID, Epoch(1, 1), base_hash([b"\2" * 32], 5)),
        seed(ID, Epoch(1, 1), base_hash([b"\1" * 32], 6)),
    ]
    assert len({checksum(one, b"log") for one in seeds}) == len(seeds)


@given(st.lists(st.binary(max_size=5000), max_size=8))
def test_running_equals_at_once(pieces: list[bytes]) -> None:
    """However the log arrives, and however often it is asked, each length has the checksum of those bytes."""
    hasher, log = LogHasher(SEED), b""
    for piece in pieces:
        hasher.update(piece)
        log += piece
        assert hasher.digest() == hasher.digest() == checksum(SEED, log)
        assert hasher.length == len(log)


def test_a_copy_goes_its_own_way() -> None:
    """A copied hasher and its original do not feel each other's updates."""
    hasher = LogHasher(SEED)
    hasher.update(b"common")
    twin = hasher.copy()
    twin.update(memoryview(b"+twin"))
    assert (hasher.digest(), hasher.length) == (checksum(SEED, b"common"), 6)
    assert (twin.digest(), twin.length) == (checksum(SEED, b"common+twin"), 11)
