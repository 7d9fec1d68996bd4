"""The sidecar: golden bytes, and that garbage is no candidate rather than an error."""

from __future__ import annotations

import msgspec
import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from domicile.node import sidecar as sidecars
from domicile.node.chunks import ChunkRef
from domicile.node.sidecar import Clean, Laid, Landed, Paging, Rotating, Sidecar, State, Taken
from domicile.placement.records import Epoch, Generation


def made(state: State) -> Sidecar:
    return Sidecar(
        object_id="ab" * 32,
        scope="acme",
        cls="Lot",
        name="42/ü",
        incarnation=Epoch(0, 0),
        generation=Generation(Epoch(1, 7), 2),
        start=4152,
        length=8272,
        checksum=b"\5" * 16,
        epoch=Epoch(1, 9),
        boot_id="4c0e63a0-0000-4000-8000-000000000001",
        state=state,
        base=(ChunkRef(b"\2" * 32, Generation(Epoch(1, 7), 1)),),
        base_size=40960,
        landed=Landed(b"manifest bytes", "tag"),
    )


STATES = [Laid(), Clean(), Rotating(8272, Generation(Epoch(1, 9), 3)), Paging(b"\xff\3"), Taken()]
VERSIONS = [1, 1, 1, 2, 3]
GOLDEN = [
    "6ebb3a37591820401a1c3d2c7246d7fe85829832cf3c4021fd8f7ace5bb00cc8",
    "2b9dac9da81181d2cd7213f357e81864b96f838a3af8822b4d593009cd95025f",
    "2e919000445e71f32f46b3c8ef1ff7bf00fa389dc2a90f303ab184009f323479",
    "4c1c98429632d6eed5a5a52fe49de2a984ff3d8ec66ba26e3a30219ace9cbcc2",
    "a11fa724112c52765a4c2a5690b687acaabc8c95d276dd536b8ef70f2659fee8",
]


@pytest.mark.parametrize(
    ("state", "version", "golden"),
    list(zip(STATES, VERSIONS, GOLDEN, strict=True)),
    ids=["laid", "released", "rotating", "paging", "taken"],
)
def test_golden_sidecars(state: State, version: int, golden: str) -> None:
    """Sidecars lie on disks across releases: what is written today is read for ever."""
    data = sidecars.encode(made(state))
    assert data[:5] == b"DOMS" + bytes([version])
    assert blake3(data).hexdigest() == golden
    assert sidecars.decode(data) == made(state)


def test_no_base_and_an_empty_base_differ() -> None:
    """Nobody recorded the chunks (None) is not the birth image (empty)."""
    for base in (None, ()):
        bare = msgspec.structs.replace(made(Laid()), base=base, base_size=0, landed=None)
        again = sidecars.decode(sidecars.encode(bare))
        assert again == bare
        assert again is not None
        assert (again.base is None) == (base is None)


@given(at=st.integers(0, 10**4), bit=st.integers(0, 7), cut=st.booleans())
def test_a_damaged_sidecar_is_no_candidate(at: int, bit: int, cut: bool) -> None:
    """A flipped bit or a torn end anywhere gives None."""
    data = bytearray(sidecars.encode(made(STATES[2])))
    at %= len(data)
    if cut:
        del data[at:]
    else:
        data[at] ^= 1 << bit
    assert sidecars.decode(bytes(data)) is None


@given(st.binary(max_size=200))
def test_garbage_is_no_sidecar(garbage: bytes) -> None:
    """Whatever lies there, sealed or not, a node goes on."""
    assert sidecars.decode(garbage) is None
    for version in (1, 2, 3, 4):
        body = b"DOMS" + bytes([version]) + garbage
        assert sidecars.decode(body + blake3(body).digest()) is None
