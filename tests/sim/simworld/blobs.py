"""The blob store's twin: true compare-and-swap in memory, behind the weather; it outlives every node.

A tag is the hash of the bytes, as S3's is: the same bytes put again have the same tag.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field

from blake3 import blake3

from domicile.node.blobs.base import Absent, Blob, Listed, Precondition
from domicile.node.errors import BlobMissing, BlobUnavailable, PreconditionFailed
from simworld.loop import SimLoop
from simworld.weather import Weather


@dataclass(frozen=True)
class Moment:
    """A register took a value, or a key beside it was deleted: what the whole store held then."""

    at: float
    key: str
    data: bytes
    store: Mapping[str, bytes] = field(repr=False)


class Past(Mapping[str, bytes]):
    """What was stored after the first `changes` changes. `values`: by key, (the change that made it, what it made)."""

    def __init__(self, values: dict[str, list[tuple[int, bytes | None]]], changes: int) -> None:
        self._values = values
        self._changes = changes

    def __getitem__(self, key: str) -> bytes:
        for change, data in reversed(self._values.get(key, ())):
            if change <= self._changes:
                if data is None:
                    break
                return data
        raise KeyError(key)

    def __iter__(self) -> Iterator[str]:
        return (key for key in self._values if key in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


class _View:
    """The store as one machine reaches it: a `domicile.node.blobs.base.Blobs`."""

    def __init__(self, server: SimBlobs, weather: Weather) -> None:
        self.server = server
        self.weather = weather

    async def get(self, key: str) -> Blob:
        return await self.weather.request(lambda: self.server._get(key), _fail, writes=False)

    async def put(self, key: str, data: bytes, condition: Precondition = None) -> str:
        kept = bytes(data)
        return await self.weather.request(lambda: self.server._put(key, kept, condition), _fail, writes=True)

    async def delete(self, key: str) -> None:
        await self.weather.request(lambda: self.server._delete(key), _fail, writes=True)

    async def list(self, prefix: str) -> AsyncIterator[Listed]:
        listed = await self.weather.request(lambda: self.server._list(prefix), _fail, writes=False)
        for one in listed:
            yield one

    async def close(self) -> None:
        """Nothing to let go."""


class SimBlobs(_View):
    """The store itself. `moments` has every value a conditional put ever stored.

    The register of an object is the key that ends with the first part of the object's other keys.
    """

    def __init__(self, loop: SimLoop, rng: random.Random) -> None:
        super().__init__(self, Weather(loop, rng))
        self.moments: list[Moment] = []
        self._loop = loop
        self._stored: dict[str, bytes] = {}
        self._changes = 0
        self._values: dict[str, list[tuple[int, bytes | None]]] = {}
        self._registers: dict[str, str] = {}

    def through(self, weather: Weather) -> _View:
        """The same store, as one machine reaches it."""
        return _View(self, weather)

    # by hand

    def stored(self) -> dict[str, bytes]:
        """Everything there now."""
        return dict(self._stored)

    def flip(self, key: str, bit: int) -> None:
        """Rot in the store."""
        data = bytearray(self._stored[key])
        data[bit // 8] ^= 1 << (bit % 8)
        self._keep(key, bytes(data))

    def lose(self, key: str) -> None:
        """The store forgets a key."""
        self._keep(key, None)

    def _get(self, key: str) -> Blob:
        data = self._stored.get(key)
        if data is None:
            raise BlobMissing(key)
        return Blob(data, tag_of(data))

    def _put(self, key: str, data: bytes, condition: Precondition) -> str:
        present = self._stored.get(key)
        if isinstance(condition, Absent):
            if present is not None:
                raise PreconditionFailed(key)
        elif condition is not None and (present is None or tag_of(present) != condition):
            raise PreconditionFailed(key)
        self._keep(key, data)
        if condition is not None:
            self._registers[key.rsplit("/", 1)[-1]] = key
            self._remember(key)
        return tag_of(data)

    def _delete(self, key: str) -> None:
        if key not in self._stored:
            return
        self._keep(key, None)
        if register := self._registers.get(key.split("/", 1)[0]):
            self._remember(register)

    def _keep(self, key: str, data: bytes | None) -> None:
        self._changes += 1
        self._values.setdefault(key, []).append((self._changes, data))
        if data is None:
            del self._stored[key]
        else:
            self._stored[key] = data

    def _remember(self, register: str) -> None:
        if (data := self._stored.get(register)) is not None:
            self.moments.append(Moment(self._loop.time(), register, data, Past(self._values, self._changes)))

    def _list(self, prefix: str) -> tuple[Listed, ...]:
        return tuple(Listed(key, len(data)) for key, data in sorted(self._stored.items()) if key.startswith(prefix))


def tag_of(data: bytes) -> str:
    """The tag the store gives these bytes."""
    return blake3(data).hexdigest(length=16)


def _fail(detail: str, maybe: bool) -> BlobUnavailable:
    return BlobUnavailable(detail, maybe=maybe)
