"""The copies of a replica: what is known of each, and where its files are (PROTOCOLS section 7).

A copy is a directory: `meta`, and files by numbers that are never used twice: the base (1 MiB chunks of a SQLite file),
the log (bytes of its WAL). What lies in the log's file behind the length of the state is nothing. Nothing is kept
open; what is known of a copy at rest may be forgotten and is read again from its `meta`.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from typing import Any

from msgspec.structs import replace

from domicile.node.disk import Disk
from domicile.node.replica.journal_record import Based, BaseFile, Change, Extended, Folded, Gone, Relabelled
from domicile.node.replica.state import Held, Meta, State, apply, decode_meta, encode_meta, files_of
from domicile.node.sqlite.birth import IMAGE
from domicile.node.sqlite.checksum import LogHasher, base_hash, seed
from domicile.node.sqlite.wal import CHUNK_BYTES

DIGESTS_MAX = 16
STAGE, STAGE_LOG = "stage", "stage-log"


class CopyFiles:
    """Paths below the replicas' directory, and what is done with the files there. Blocking; raises OSError."""

    def __init__(self, disk: Disk, root: str) -> None:
        self.disk = disk
        self.root = root

    def directory(self, object_id: bytes) -> str:
        return f"{self.root}/{object_id.hex()}"

    def path(self, object_id: bytes, name: int | str) -> str:
        return f"{self.root}/{object_id.hex()}/{name}"

    def write_log(self, object_id: bytes, number: int, offset: int, data: bytes | memoryview) -> None:
        """Behind or below the journal: not synced."""
        path = self.path(object_id, number)
        try:
            self.disk.write_at(path, offset, bytes(data))
        except FileNotFoundError:
            self.disk.make_dir(self.directory(object_id))
            self.disk.write_at(path, offset, bytes(data))

    def read_log(self, object_id: bytes, held: Held, start: int, end: int) -> bytes:
        """Bytes [start, end), which the copy has."""
        if start >= end:
            return b""
        data = self.disk.read_at(self.path(object_id, held.log), start, end - start)
        if len(data) < end - start:
            raise OSError(f"{self.path(object_id, held.log)} is shorter than what the copy holds")
        return data

    def read_chunk(self, object_id: bytes, base: BaseFile, index: int) -> bytes:
        """One chunk of a base as it lies there; not verified."""
        if base.file == 0:
            return IMAGE if index == 0 else b""
        return self.disk.read_at(self.path(object_id, base.file), index * CHUNK_BYTES, CHUNK_BYTES)

    def load(self, object_id: bytes) -> Meta | None:
        """The state as stored; None when there is none that can be read."""
        path = self.path(object_id, "meta")
        return decode_meta(self.disk.read(path)) if self.disk.size(path) is not None else None

    def has_meta(self, object_id: bytes) -> bool:
        """Whether a state is stored, readable or not."""
        return self.disk.size(self.path(object_id, "meta")) is not None

    def store_beside(self, meta: Meta) -> str:
        """Write the state beside the stored one, unsynced: the path, for the sync pass and `swap_meta`."""
        self.disk.make_dir(self.directory(meta.object_id))
        path = self.path(meta.object_id, "meta.new")
        self.disk.write(path, encode_meta(meta), sync=False)
        return path

    def swap_meta(self, object_id: bytes) -> None:
        self.disk.rename(self.path(object_id, "meta.new"), self.path(object_id, "meta"))

    def remove_unnamed(self, object_id: bytes, state: State) -> None:
        """Remove numbered files that a durable state has no use for. Newer ones have greater numbers."""
        needed = files_of(state)
        for name in self.disk.list_dir(self.directory(object_id)):
            if name.isdecimal() and int(name) <= state.files and int(name) not in needed:
                self.disk.remove(self.path(object_id, name))

    def object_ids(self) -> list[bytes]:
        """Every object that has a directory here."""
        return [bytes.fromhex(name) for name in self.disk.list_dir(self.root) if len(name) == 64]


class Copy:
    """What is known of one object. `state` is the one behind the last record written; only the loop's thread is here.

    `busy`: something longer than a record changes it; what comes meanwhile waits in `waiting`. `doubted`: an owner's
    checksum differed from its own. `in_birth`: a base of nothing is staged; all it takes is a look-up. `unreadable`:
    something was held here, and its stored state cannot be read: it is not said to hold nothing.
    """

    __slots__ = (
        "_digests",
        "_files",
        "_hasher",
        "applied",
        "busy",
        "doubted",
        "in_birth",
        "object_id",
        "staging",
        "state",
        "unreadable",
        "used",
        "views",
        "views_gone",
        "waiting",
    )

    def __init__(self, files: CopyFiles, object_id: bytes, meta: Meta | None) -> None:
        self._files = files
        self.object_id = object_id
        self.state: State | None = meta.state if meta is not None else None
        self.applied = meta.applied if meta is not None else 0
        self.unreadable = meta is None and files.has_meta(object_id)
        self.busy = False
        self.doubted = False
        self.in_birth = False
        self.waiting: deque[Any] = deque()
        self.staging: asyncio.Task[None] | None = None
        self.used = 0.0
        self.views: set[Any] = set()
        self.views_gone: asyncio.Future[None] | None = None
        self._hasher: LogHasher | None = None
        self._digests: OrderedDict[int, bytes] = OrderedDict()

    @property
    def at_rest(self) -> bool:
        """Nothing goes on: it may be forgotten once its state is stored."""
        return not (self.busy or self.waiting or self.staging or self.views)

    def adopt(self, change: Change, sequence: int, frames: bytes | memoryview = b"") -> None:
        """A record was written: the state behind it. `frames`: those of an Extended, wherever they are."""
        self.state = apply(self.state, change)
        self.applied = sequence
        if isinstance(change, Based | Gone):
            self.unreadable = False
        if isinstance(change, Extended):
            if self._hasher is not None and self._hasher.length == change.offset:
                self._hasher.update(frames)
                self._remember(change.end, self._hasher.digest())
        elif isinstance(change, Relabelled):
            if self._hasher is not None and self._hasher.length > change.length:
                self._hasher = None
            for length in [length for length in self._digests if length > change.length]:
                del self._digests[length]
        elif isinstance(change, Folded | Based) or self.state is None or self.state.held is None:
            self._hasher = None
            self._digests.clear()
            self.doubted = False

    def folded(self) -> None:
        """The base is what the state calls it, durably."""
        assert self.state is not None
        self.state = replace(self.state, unfolded=None)

    def agreed(self, length: int) -> bytes:
        """The checksum at `length` for comparing with an owner's: nothing compares with a copy in doubt."""
        return b"" if self.doubted else self.digest(length)

    def digest(self, length: int) -> bytes:
        """The checksum at `length` of the log: 16 bytes; cheap at the ends of recent appends."""
        known = self._digests.get(length)
        if known is None:
            known = self._hashed_to(length)
            self._remember(length, known)
        return known

    def _hashed_to(self, length: int) -> bytes:
        assert self.state is not None
        held = self.state.held
        assert held is not None
        assert length <= held.length
        hasher = self._hasher
        if hasher is None or hasher.length > length:
            base = held.base
            hasher = LogHasher(seed(self.object_id.hex(), self.state.incarnation, base_hash(base.hashes, base.size)))
            if length == held.length:
                self._hasher = hasher
        hasher.update(self._files.read_log(self.object_id, held, hasher.length, length))
        return hasher.digest()

    def _remember(self, length: int, digest: bytes) -> None:
        self._digests[length] = digest
        if len(self._digests) > DIGESTS_MAX:
            self._digests.popitem(last=False)
