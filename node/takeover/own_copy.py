"""This node's own file of an object as a candidate at a lay (PROTOCOLS section 5, steps 3 and 5).

A file counts only with a readable sidecar of this incarnation. Its length is found by walking the log's checksums. What
was not synced before the machine went down may be gone: a file of another boot counts only if its chunks hash to its
generation's list, and not at all if a takeover laid it and no rotation came since.
"""

from __future__ import annotations

from dataclasses import dataclass

from blake3 import blake3

from domicile.node import sidecar as sidecars
from domicile.node.disk import Disk
from domicile.node.log import BaseShape
from domicile.node.sidecar import Clean, Paging, Rotating, Sidecar, Taken
from domicile.node.sqlite import wal
from domicile.node.sqlite.birth import IMAGE
from domicile.node.sqlite.checksum import checksum
from domicile.node.sqlite.wal import CHUNK_BYTES
from domicile.placement.records import Generation, Incarnation, Position, Released


@dataclass(frozen=True, slots=True)
class Files:
    """Where an object's files are."""

    directory: str

    @property
    def base(self) -> str:
        return self.directory + "/db"

    @property
    def log(self) -> str:
        return self.directory + "/db-wal"

    @property
    def sidecar(self) -> str:
        return self.directory + "/sidecar"


@dataclass(frozen=True, slots=True)
class OwnCopy:
    """A usable copy on this node's disk: its position, what it grows from, and its committed log's bytes."""

    position: Position
    start: int
    shape: BaseShape
    log: bytes
    sidecar: Sidecar

    def checksum_at(self, object_id: str, length: int) -> bytes:
        """The checksum of the log's first `length` bytes."""
        return checksum(self.shape.seed(object_id, self.position.incarnation), self.log[:length])


def find(disk: Disk, files: Files, incarnation: Incarnation) -> OwnCopy | None:
    """The copy left by an earlier residency of this node, or None: there is none that proves what it is."""
    sidecar = _sidecar(disk, files)
    if sidecar is None or sidecar.incarnation != incarnation or not disk.size(files.base):
        return None  # an empty base is what a power cut leaves of one that was never synced
    if isinstance(sidecar.state, Paging):
        return None  # it looks whole, and has holes
    if isinstance(sidecar.state, Taken) and not _same_boot(disk, sidecar):
        return None  # another log may be there in its place, one that was removed
    log = _log(disk, files)
    walk = wal.walk(log)
    log = log[: walk.length]
    if isinstance(sidecar.state, Rotating):
        return _in_rotation(disk, files, sidecar, log)
    if walk.length < sidecar.length:
        return None
    if not _same_boot(disk, sidecar) and _shape_on_disk(disk, files) != _recorded(sidecar):
        return None
    position = Position(incarnation, sidecar.generation, walk.length)
    return OwnCopy(position, sidecar.start, _recorded(sidecar) or _shape_on_disk(disk, files), log, sidecar)


def find_released(disk: Disk, files: Files, released: Released) -> OwnCopy | None:
    """The copy at exactly the released position and checksum, or None (section 5, "Clean release")."""
    sidecar = _sidecar(disk, files)
    if sidecar is None or not isinstance(sidecar.state, Clean) or sidecar.base is None:
        return None
    at = Position(sidecar.incarnation, sidecar.generation, sidecar.length)
    if at != released.position or sidecar.checksum != released.checksum:
        return None
    if not _same_boot(disk, sidecar):
        copy = find(disk, files, at.incarnation)
        if copy is None or copy.position != at:
            return None
        return copy if copy.checksum_at(sidecar.object_id, at.length) == released.checksum else None
    if (disk.size(files.log) or 0) != at.length or disk.size(files.base) is None:
        return None
    shape = _recorded(sidecar)
    assert shape is not None
    return OwnCopy(at, sidecar.start, shape, b"", sidecar)


def _in_rotation(disk: Disk, files: Files, sidecar: Sidecar, log: bytes) -> OwnCopy | None:
    """Found with the rotation's mark: one generation or the next, if it can be told which (section 7, "Rotation")."""
    state = sidecar.state
    assert isinstance(state, Rotating)
    if not _same_boot(disk, sidecar):
        return None
    if len(log) == state.at and log:
        shape = _recorded(sidecar)
        if shape is None:
            return None
        position = Position(sidecar.incarnation, sidecar.generation, state.at)
        return OwnCopy(position, sidecar.start, shape, log, sidecar)
    if disk.size(files.log):
        return None
    return _at_zero(disk, files, sidecar, state.to)


def _at_zero(disk: Disk, files: Files, sidecar: Sidecar, generation: Generation) -> OwnCopy:
    position = Position(sidecar.incarnation, generation, 0)
    return OwnCopy(position, 0, _shape_on_disk(disk, files), b"", sidecar)


def _sidecar(disk: Disk, files: Files) -> Sidecar | None:
    try:
        return sidecars.decode(disk.read(files.sidecar))
    except FileNotFoundError:
        return None


def _log(disk: Disk, files: Files) -> bytes:
    try:
        return disk.read(files.log)
    except FileNotFoundError:
        return b""


def _same_boot(disk: Disk, sidecar: Sidecar) -> bool:
    return sidecar.boot_id == disk.boot_id()


def _recorded(sidecar: Sidecar) -> BaseShape | None:
    if sidecar.base is None:
        return None
    return BaseShape(tuple(ref.hash for ref in sidecar.base), sidecar.base_size)


def _shape_on_disk(disk: Disk, files: Files) -> BaseShape:
    """What the base on disk is, by reading all of it; only before it is opened."""
    data = disk.read(files.base)
    if data == IMAGE:
        return BaseShape()
    chunks = range(0, len(data), CHUNK_BYTES)
    return BaseShape(tuple(blake3(data[at : at + CHUNK_BYTES]).digest() for at in chunks), len(data))
