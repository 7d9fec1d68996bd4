"""The blob store: keys to immutable bytes, and one register per object by compare-and-swap (PROTOCOLS section 7).

Keys are ASCII, `/` separated, at most 1,024 bytes. A tag names one stored value of one key and is opaque.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final, Protocol

from domicile.node.errors import BlobError


class UnfitStoreError(BlobError):
    """The store cannot do what single-writer safety rests on: conditional puts. Says what to do."""


class Absent:
    """The precondition that nothing is stored under the key."""


ABSENT: Final = Absent()
Precondition = str | Absent | None


@dataclass(frozen=True, slots=True)
class Blob:
    """What `get` found: the bytes, and the tag a later put can be conditioned on."""

    data: bytes
    tag: str


@dataclass(frozen=True, slots=True)
class Listed:
    """One key of a listing; size in bytes."""

    key: str
    size: int


class Blobs(Protocol):
    """What a store offers. Every method raises BlobUnavailable when the store gives no usable answer."""

    async def get(self, key: str) -> Blob:
        """Raises BlobMissing."""
        ...

    async def put(self, key: str, data: bytes, condition: Precondition = None) -> str:
        """Durable when it returns; gives the new tag.

        A condition is the tag the present value must have, or ABSENT. Raises PreconditionFailed when it does not hold.
        A conditional put is sent once: a lost answer is BlobUnavailable with `maybe=True`, for the caller to re-read.
        An unconditional put may be repeated inside.
        """
        ...

    async def delete(self, key: str) -> None:
        """No matter if it is not there."""
        ...

    def list(self, prefix: str) -> AsyncIterator[Listed]:
        """Keys that start with `prefix`, in order."""
        ...

    async def close(self) -> None: ...
