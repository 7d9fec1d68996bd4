"""The start-up probe: a store that ignores conditions is refused before it can hand two nodes one object.

Run at start, before anything is served. `key` is random, given from outside, so that nodes that start together do not
disturb each other; nothing is left under it.
"""

from __future__ import annotations

from domicile.node.blobs.base import ABSENT, Blobs, Precondition, UnfitStoreError
from domicile.node.errors import PreconditionFailed

_ADVICE = (
    "Domicile's one-writer promise rests on conditional puts. Use a store that honours If-Match and If-None-Match, "
    "and reach it directly: some gateways and proxies drop these headers."
)


async def probe(blobs: Blobs, key: str) -> None:
    """Raises UnfitStoreError, which says what was ignored and what to do, and BlobUnavailable."""
    try:
        await _probe(blobs, key)
    finally:
        await blobs.delete(key)


async def _probe(blobs: Blobs, key: str) -> None:
    first = await _must_store(blobs, key, b"first", ABSENT)
    await _must_refuse(blobs, key, b"second", ABSENT, "If-None-Match: it overwrote a value that was there")
    second = await _must_store(blobs, key, b"third", first)
    await _must_refuse(blobs, key, b"fourth", first, "If-Match: it overwrote a value other than the one named")
    found = await blobs.get(key)
    if found.data != b"third" or found.tag != second:
        raise UnfitStoreError(f"the blob store does not give back what was stored last. {_ADVICE}")


async def _must_store(blobs: Blobs, key: str, data: bytes, condition: Precondition) -> str:
    try:
        return await blobs.put(key, data, condition)
    except PreconditionFailed as error:
        raise UnfitStoreError(f"the blob store refuses a put whose condition holds ({error}). {_ADVICE}") from error
    except UnfitStoreError as error:
        raise UnfitStoreError(f"{error}. {_ADVICE}") from error


async def _must_refuse(blobs: Blobs, key: str, data: bytes, condition: Precondition, ignored: str) -> None:
    try:
        await blobs.put(key, data, condition)
    except PreconditionFailed:
        return
    except UnfitStoreError as error:
        raise UnfitStoreError(f"{error}. {_ADVICE}") from error
    raise UnfitStoreError(f"the blob store ignores {ignored}. {_ADVICE}")
