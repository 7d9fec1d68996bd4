"""The checksum of a position: blake3(seed ‖ log[0:L]), 16 bytes (PROTOCOLS section 5).

The seed names the object, its incarnation and its base, so that a relabel changes no checksum and a rotation does.
"""

from __future__ import annotations

from collections.abc import Iterable

from blake3 import blake3

from domicile.placement.records import Incarnation

CHECKSUM_BYTES = 16


class LogHasher:
    """A running checksum of one log, from its first byte on. `length` is what was fed so far, in bytes."""

    __slots__ = ("_state", "length")

    def __init__(self, seed: bytes) -> None:
        self._state = blake3(seed)
        self.length = 0

    def update(self, data: bytes | memoryview) -> None:
        self._state.update(data)
        self.length += len(data)

    def digest(self) -> bytes:
        """16 bytes; the hasher goes on undisturbed."""
        return self._state.digest(length=CHECKSUM_BYTES)

    def copy(self) -> LogHasher:
        twin = LogHasher.__new__(LogHasher)
        twin._state = self._state.copy()
        twin.length = self.length
        return twin


def seed(object_id: str, incarnation: Incarnation, base: bytes) -> bytes:
    """80 bytes: the object's id, its incarnation and `base_hash` of its base."""
    assert len(object_id) == 64
    assert len(base) == 32
    return bytes.fromhex(object_id) + incarnation.pack() + base


def base_hash(hashes: Iterable[bytes], size: int) -> bytes:
    """32 bytes for a base: its size in bytes and its chunks' hashes, in order. No chunks, size 0: the birth image."""
    return blake3(size.to_bytes(8, "big") + b"".join(hashes)).digest()


def checksum(seed: bytes, log: bytes | memoryview) -> bytes:
    """The checksum of a whole log at once."""
    hasher = LogHasher(seed)
    hasher.update(log)
    return hasher.digest()
