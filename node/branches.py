"""A lost branch: a copy that returned after an object was served without it, and the two databases in it (section 10).

All copies of an object are prefixes of one log, and a later generation holds all before it, so the state that was
served lies inside the branch: at a length of its log; or, where the branch folded that log, at the fold, since nothing
is folded that the manifest does not have. Pure but for `diff`'s in-memory SQLite.
"""

from __future__ import annotations

from dataclasses import dataclass

from blake3 import blake3

from domicile.node.errors import Corrupt
from domicile.node.log import BaseShape
from domicile.node.sqlite import wal
from domicile.node.sqlite.birth import IMAGE
from domicile.node.sqlite.checksum import checksum
from domicile.node.sqlite.row_diff import JOURNAL_MODE_AT, ROLLBACK
from domicile.node.sqlite.wal import CHUNK_BYTES
from domicile.placement.records import Position


@dataclass(frozen=True, slots=True)
class Branch:
    """A whole copy in memory: `base` (bytes of a database), `log` up to the position."""

    object_id: str
    position: Position
    base: bytes
    log: bytes


@dataclass(frozen=True, slots=True)
class Databases:
    """Two states of an object as SQLite files that any SQLite opens: what was served, what had been answered."""

    served: bytes
    lost: bytes


def verified(branch: Branch, shape: BaseShape, digest: bytes) -> Branch:
    """The branch, if its bytes are what its copy said they are. Raises Corrupt."""
    found = shape_of(branch.base)
    if found.hashes != shape.hashes or found.size != shape.size:
        raise Corrupt(f"object {branch.object_id}: the base of the lost branch has other content")
    if len(branch.log) != branch.position.length:
        raise Corrupt(f"object {branch.object_id}: the log of the lost branch is cut short")
    if checksum(shape.seed(branch.object_id, branch.position.incarnation), branch.log) != digest:
        raise Corrupt(f"object {branch.object_id}: the log of the lost branch does not have its checksum")
    return branch


def shape_of(base: bytes) -> BaseShape:
    """Its chunks' hashes and its size; of the birth image none."""
    if base == IMAGE:
        return BaseShape()
    chunks = range(0, len(base), CHUNK_BYTES)
    return BaseShape(tuple(blake3(base[at : at + CHUNK_BYTES]).digest() for at in chunks), len(base))


def databases(branch: Branch, served: Position, digest: bytes) -> Databases:
    """What was served, and the branch. `digest`: the checksum of the served log, b"" where it is not known.

    Raises Corrupt when what was served is not in this branch.
    """
    length = _served_length(branch, served, digest)
    return Databases(as_file(branch.base, branch.log[:length]), as_file(branch.base, branch.log))


def _served_length(branch: Branch, served: Position, digest: bytes) -> int:
    if branch.position.incarnation != served.incarnation or branch.position <= served:
        raise Corrupt(f"object {branch.object_id}: a copy at {branch.position} is no branch of {served}")
    seed = shape_of(branch.base).seed(branch.object_id, served.incarnation)
    within = len(branch.log) >= served.length
    if digest and within and checksum(seed, branch.log[: served.length]) == digest:
        return served.length
    if branch.position.generation > served.generation:
        return 0  # it was folded since, at exactly what was served
    if digest or not within:
        raise Corrupt(f"object {branch.object_id}: a copy at {branch.position} has another past than {served}")
    return served.length


def as_file(base: bytes, log: bytes) -> bytes:
    """The database that base and log make, with a rollback journal: it can be opened where nothing can be written."""
    image = bytearray(wal.fold(base, log))
    image[JOURNAL_MODE_AT] = ROLLBACK
    return bytes(image)
