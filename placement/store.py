"""The placement store: a small, strictly consistent map of keys to bytes (PROTOCOLS section 2).

It knows nothing of objects. `version` is store-wide and strictly grows with every write. A lost response is never
guessed: it surfaces as `StoreUnavailable` with `maybe=True`, and re-reading proves what has happened, never what will
not. Every provider passes the one conformance suite in `tests/contract`. A provider may be used from any event loop of
the process (heartbeats run on a thread of their own).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import NewType, Protocol

import msgspec

CONDITIONS_MAX = 128
MUTATIONS_MAX = 128
SCAN_MAX = 1000
SCAN_BYTES_MAX = 4 << 20

Grant = NewType("Grant", str)


class PlacementError(Exception):
    """What a store can fail with."""


class StoreUnavailable(PlacementError):
    """The store did not answer. `maybe`: the write may have happened, or may still be on its way."""

    def __init__(self, detail: str, *, maybe: bool = False) -> None:
        super().__init__(detail)
        self.maybe = maybe


class StoreInUse(StoreUnavailable):
    """Another process, or another opener in this one, has the embedded store open."""


class ScanExpired(PlacementError):
    """The token's snapshot is gone; start the scan again."""


class GrantGone(PlacementError):
    """The grant ran out or was revoked, and its rows with it."""


class Record(msgspec.Struct, frozen=True, gc=False):
    """One key as read: `version` of its last write, `created` the version at which it came to be.

    Kept by the hundred thousand, and out of sight of the garbage collector: it refers to nothing that could refer back.
    """

    key: str
    value: bytes
    version: int
    created: int


@dataclass(frozen=True, slots=True)
class At:
    """Condition: the key is at exactly this version; 0 means absent."""

    key: str
    version: int


@dataclass(frozen=True, slots=True)
class Since:
    """Condition: the key has been there, without a break, since this version created it."""

    key: str
    created: int


@dataclass(frozen=True, slots=True)
class Put:
    """Mutation: write the key."""

    key: str
    value: bytes


@dataclass(frozen=True, slots=True)
class Delete:
    """Mutation: remove the key; no matter if it is not there."""

    key: str


Condition = At | Since
Mutation = Put | Delete


def check_write(conditions: Sequence[Condition], mutations: Sequence[Mutation]) -> None:
    """What every provider refuses before it sends a write.

    Raises ValueError: more than 128 of either, a key written twice in one write, a key that is no key.
    """
    if len(conditions) > CONDITIONS_MAX or len(mutations) > MUTATIONS_MAX:
        raise ValueError(f"a write takes up to {CONDITIONS_MAX} conditions and {MUTATIONS_MAX} mutations")
    keys = [mutation.key for mutation in mutations]
    if len(set(keys)) != len(keys):
        raise ValueError("a write may change a key only once")
    check_keys([*keys, *(condition.key for condition in conditions)])


def check_keys(keys: Sequence[str]) -> None:
    """Raises ValueError for a key that is empty, has a NUL, or cannot be encoded as UTF-8."""
    for key in keys:
        if not key or "\0" in key:
            raise ValueError(f"{key!r} is not a key: text of at least one character, without NUL")
        key.encode()


def holds(condition: Condition, record: Record | None) -> bool:
    """Whether `condition` is true of its key's present record."""
    if isinstance(condition, At):
        return condition.version == (record.version if record else 0)
    return record is not None and record.created == condition.created


@dataclass(frozen=True, slots=True)
class Committed:
    """The write stands, at this version: the version of every row it wrote."""

    version: int


@dataclass(frozen=True, slots=True)
class Conflict:
    """A condition did not hold, nothing was written. `current` has the conditions' keys; None is absent."""

    current: dict[str, Record | None]


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a scan. All pages of a scan show the store at `version`; `token` is None on the last."""

    records: tuple[Record, ...]
    version: int
    token: str | None


@dataclass(frozen=True, slots=True)
class Event:
    """A key changed at `version`; `record` is None when it went away."""

    key: str
    version: int
    record: Record | None


@dataclass(frozen=True, slots=True)
class Resync:
    """The past up to `version` is compacted: read everything anew, then go on watching from there."""

    version: int


class Store(Protocol):
    """What a provider offers. Keys are text without NUL, values bytes."""

    async def read(self, keys: Sequence[str]) -> dict[str, Record]:
        """All keys from one snapshot; an absent key is absent."""
        ...

    async def write(
        self, conditions: Sequence[Condition], mutations: Sequence[Mutation], grant: Grant | None = None
    ) -> Committed | Conflict:
        """All or nothing, up to 128 of each, each key written at most once. Rows put under a grant vanish with it.

        A row put again without a grant stays. A write that changes nothing is Committed at some version of the store
        that is not newer than the next write's. Conditions are checked before the grant.
        Raises StoreUnavailable (`maybe` tells), GrantGone, ValueError past the bounds.
        """
        ...

    async def scan(self, prefix: str, limit: int = SCAN_MAX, token: str | None = None) -> Page:
        """Keys that start with `prefix`, in order of their UTF-8 bytes; at most `limit` and 4 MiB of them a page.

        A token continues the scan that gave it and shows the same snapshot. A single row may be larger than 4 MiB.
        Raises ScanExpired, ValueError for a limit outside 1 to 1,000 or a text that is no token.
        """
        ...

    def watch(self, prefix: str, after: int) -> AsyncIterator[Event | Resync]:
        """Every change after `after`, in order, without a gap; resumes by itself, ends when the store is closed.

        A Resync tells the caller to read everything anew; the events after it follow in the same iteration.
        """
        ...

    async def grant(self, ttl_secs: float) -> Grant:
        """Rows put under it vanish `ttl_secs` after the last `keep`, not earlier; providers may be later."""
        ...

    async def keep(self, grant: Grant) -> None:
        """Start the grant's time anew. Raises GrantGone."""
        ...

    async def revoke(self, grant: Grant) -> None:
        """Its rows vanish; no matter if the grant is gone already."""
        ...

    async def release(self) -> None:
        """The loop this is awaited on will use the store no more, and may be closed; others go on."""
        ...

    async def close(self) -> None: ...
