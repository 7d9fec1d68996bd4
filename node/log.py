"""The committed write-ahead log of one residency, as flights and takeovers see it (PROTOCOLS sections 5 and 7).

SQLite writes the bytes; this names them: which generation they belong to, where it began, what base they grow from, and
the running checksum at any length already hashed.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from domicile.node.disk import Disk, OpenFile
from domicile.node.manifest import Manifest
from domicile.node.sqlite.checksum import LogHasher, base_hash, seed
from domicile.node.sqlite.wal import FRAME_HEADER, LOG_HEADER, PAGE_BYTES
from domicile.placement.records import Generation, Incarnation, Position

DIGESTS_MAX = 64
FRAME_BYTES = FRAME_HEADER + PAGE_BYTES


@dataclass(frozen=True, slots=True)
class BaseShape:
    """The file a generation's log grows from: its chunks' hashes, its size in bytes. No chunks: the birth image."""

    hashes: tuple[bytes, ...] = ()
    size: int = 0

    @classmethod
    def of(cls, manifest: Manifest) -> BaseShape:
        return cls(tuple(ref.hash for ref in manifest.base), manifest.base_size)

    def seed(self, object_id: str, incarnation: Incarnation) -> bytes:
        """The seed of every checksum of a log that grows from this base."""
        return seed(object_id, incarnation, base_hash(self.hashes, self.size))


class Log:
    """One residency's log: generations one after the other, all counted by one mark that never falls."""

    def __init__(self, disk: Disk, path: str, object_id: str, position: Position, base: BaseShape, start: int) -> None:
        self._disk = disk
        self._path = path
        self.object_id = object_id
        self.incarnation: Incarnation = position.incarnation
        self.generation: Generation = position.generation
        self.length = position.length
        self.start = start
        self.base = base
        self.rotations = 0
        self._origin = 0
        self._hasher = LogHasher(base.seed(object_id, self.incarnation))
        self._digests: OrderedDict[int, bytes] = OrderedDict()
        self._held: bytes | None = None
        self._file: OpenFile | None = None
        self._closed = False

    def rotate(self, base: BaseShape, next_generation: Generation) -> None:
        """The log was folded into `base`: `next_generation` begins, empty."""
        assert next_generation > self.generation
        self._origin += self.length
        self.length = self.start = 0
        self.generation = next_generation
        self.base = base
        self.rotations += 1
        self._hasher = LogHasher(base.seed(self.object_id, self.incarnation))
        self._digests.clear()

    @property
    def mark(self) -> int:
        """Bytes of log since the residency began, across rotations; the laid length counts."""
        return self._origin + self.length

    def mark_at(self, length: int) -> int:
        """The mark of a length of the present generation."""
        return self._origin + length

    @property
    def position(self) -> Position:
        return Position(self.incarnation, self.generation, self.length)

    def read(self, start: int, end: int) -> bytes:
        """Committed bytes [start, end) of the present generation's log."""
        if self._held is not None:
            return self._held[start:end]
        data = self._read(start, end - start)
        assert len(data) == end - start, f"{self._path}: the log is shorter than what was committed"
        return data

    def frames(self, start: int, end: int) -> bytes:
        """The same, of what is about to be shipped: the checksum at its end costs no second look."""
        data = self.read(start, end)
        if self._hasher.length == start:
            self._hasher.update(data)
            self._remember(end, self._hasher.digest())
        return data

    def _read(self, start: int, length: int) -> bytes:
        if self._closed:
            return self._disk.read_at(self._path, start, length)
        if self._file is None:
            self._file = self._disk.open_file(self._path)
        return self._file.read(start, length)

    def rest(self) -> None:
        """Keep no file open: nothing is read for a while."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def close(self) -> None:
        """Never keep one open again."""
        self._closed = True
        self.rest()

    def hold(self, data: bytes | None) -> None:
        """While a fold takes the log's bytes out of the file, they are read from `data`, all of them; None: no more."""
        self._held = data

    @staticmethod
    def whole(length: int) -> int:
        """The greatest length of whole frames that is not above `length`."""
        return LOG_HEADER + (length - LOG_HEADER) // FRAME_BYTES * FRAME_BYTES if length > LOG_HEADER else 0

    def checksum(self, length: int) -> bytes:
        """The checksum at `length`, 16 bytes. Cheap at the ends of recent flights, and at the end of the log."""
        known = self._digests.get(length)
        if known is not None:
            return known
        hasher = self._hasher
        if hasher.length > length:
            hasher = LogHasher(self.base.seed(self.object_id, self.incarnation))
        hasher.update(self.read(hasher.length, length))
        digest = hasher.digest()
        self._remember(length, digest)
        return digest

    def _remember(self, length: int, digest: bytes) -> None:
        self._digests[length] = digest
        if len(self._digests) > DIGESTS_MAX:
            self._digests.popitem(last=False)
