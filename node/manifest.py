"""The manifest, the blob store's one register per object, and the pure steps from one to the next (PROTOCOLS 5, 7).

It names a base (chunks; none: the birth image), the log on it (segments, then a tail of up to 16 KiB that rides
inside), the position and checksum they make together, the fence, and who may acknowledge writes. Stored as
magic ‖ version ‖ msgpack ‖ blake3 of all before; version 2 where the tail is deflated, version 1 where it is as it was.
"""

from __future__ import annotations

import zlib
from typing import NamedTuple

import msgspec
from blake3 import blake3

from domicile.node.chunks import Base, ChunkRef, Segment, chunks_of
from domicile.node.errors import Corrupt
from domicile.node.sqlite.checksum import CHECKSUM_BYTES, LogHasher, base_hash, seed
from domicile.node.sqlite.wal import FRAME_HEADER, LOG_HEADER, PAGE_BYTES
from domicile.placement.records import Birth, Epoch, Generation, Incarnation, ObjectKey, Position

TAIL_BYTES_MAX = 16 << 10
TAIL_LOG_MAX = 256 << 10
_MAGIC = b"DOMM"
_VERSION, _VERSION_DEFLATED = 1, 2
_HASH_BYTES = 32

Incident = tuple[Epoch, Position]


class Manifest(msgspec.Struct, frozen=True):
    """One value of the register. `epoch` is the fence; `start` the length at which the generation began.

    `seq` grows by one with each put; 0 is the manifest of section 5, "Birth", which is stored nowhere. `tail` is what
    `tail.py` made of the log behind the segments. `deleted` makes it a tombstone. Incidents are (epoch of the takeover,
    position it served).
    """

    object_id: str
    scope: str
    cls: str
    name: str
    incarnation: Incarnation
    epoch: Epoch
    seq: int
    put_id: bytes
    generation: Generation
    start: int
    length: int
    checksum: bytes
    base: tuple[ChunkRef, ...] = ()
    base_size: int = 0
    page_size: int = PAGE_BYTES
    segments: tuple[Segment, ...] = ()
    tail: bytes = b""
    members: tuple[str, ...] = ()
    quorum: int = 0
    incidents: tuple[Incident, ...] = ()
    deleted: bool = False

    @property
    def position(self) -> Position:
        return Position(self.incarnation, self.generation, self.length)

    @property
    def shipped(self) -> int:
        """The length the segments reach; the tail covers the rest."""
        return self.segments[-1].end if self.segments else 0

    @property
    def tail_log(self) -> bytes:
        """The log behind the segments. Raises Corrupt when the tail is not of its length."""
        size = self.length - self.shipped
        return self.tail if len(self.tail) == size else _inflated(self.tail, size)

    @property
    def seed(self) -> bytes:
        """Seed of every checksum over this base."""
        return seed(self.object_id, self.incarnation, base_hash((ref.hash for ref in self.base), self.base_size))

    @property
    def image(self) -> Base:
        return Base(self.object_id, self.incarnation, self.base, self.base_size)


class Stamp(NamedTuple):
    """What is new in every put: its owner's epoch and a random id, 16 bytes, by which it is known again."""

    epoch: Epoch
    put_id: bytes


class Reach(NamedTuple):
    """Where a log stands: its generation, where that began, its length and the checksum there."""

    generation: Generation
    start: int
    length: int
    checksum: bytes


def _inflated(tail: bytes, size: int) -> bytes:
    try:
        inflater = zlib.decompressobj()
        log = inflater.decompress(tail, size + 1)
    except zlib.error as error:
        raise Corrupt(f"the manifest's tail cannot be read: {error}") from None
    if len(log) != size or not inflater.eof or inflater.unused_data:
        raise Corrupt(f"the manifest's tail does not stand for {size} bytes of log")
    return log


def birth(key: ObjectKey, incarnation: Incarnation, epoch: Epoch, born: Birth) -> Manifest:
    """The manifest of an incarnation that has none yet: seq 0, generation (birth epoch, 0), no chunks, length 0."""
    empty = LogHasher(seed(key.id, incarnation, base_hash((), 0))).digest()
    return Manifest(
        object_id=key.id,
        scope=key.scope,
        cls=key.cls,
        name=key.name,
        incarnation=incarnation,
        epoch=epoch,
        seq=0,
        put_id=b"",
        generation=Generation(epoch, 0),
        start=0,
        length=0,
        checksum=empty,
        members=born.members,
        quorum=born.quorum,
    )


def fenced(manifest: Manifest, stamp: Stamp, *, rename: bool) -> Manifest:
    """A takeover's put (step 4): content, members and Q unchanged; the generation becomes (E, 0) only if asked."""
    generation, start = manifest.generation, manifest.start
    if rename:
        assert stamp.epoch > generation.epoch, "a takeover's generation is newer than what it laid"
        generation, start = Generation(stamp.epoch, 0), manifest.length
    return _stamped(manifest, stamp, generation=generation, start=start)


def extended(manifest: Manifest, stamp: Stamp, reach: Reach, *, segment: Segment | None, tail: bytes) -> Manifest:
    """The same base with a longer log: `segment` follows the last one, `tail` stands for all of the log behind it.

    The owner's generation may be newer than the manifest's, by takeover only: the manifest's log is a prefix of it.
    """
    assert reach.generation >= manifest.generation
    assert reach.length >= manifest.length
    assert reach.generation > manifest.generation or reach.start == manifest.start
    segments = manifest.segments if segment is None else (*manifest.segments, segment)
    return _stamped(manifest, stamp, segments=segments, tail=tail, **reach._asdict())


def rotated(
    manifest: Manifest, stamp: Stamp, reach: Reach, base: Base, *, segment: Segment | None = None, tail: bytes = b""
) -> Manifest:
    """Another base, with the log that has grown on it. Its generation is newer than the manifest's."""
    assert reach.generation > manifest.generation
    assert (base.object_id, base.incarnation) == (manifest.object_id, manifest.incarnation)
    segments = () if segment is None else (segment,)
    content = {"base": base.refs, "base_size": base.size, "segments": segments, "tail": tail}
    return _stamped(manifest, stamp, **content, **reach._asdict())


def tombstone(manifest: Manifest, stamp: Stamp, incarnation: Incarnation) -> Manifest:
    """What overwrites the manifest of a deleted object; `incarnation` is the delete's own epoch."""
    assert incarnation > manifest.incarnation
    key = ObjectKey(manifest.scope, manifest.cls, manifest.name)
    empty = birth(key, incarnation, incarnation, Birth())
    return _stamped(empty, stamp, seq=manifest.seq + 1, deleted=True)


def revived(tombstone: Manifest) -> Manifest:
    """The life that a tombstone lets begin, before anything was written in it: nobody's copy counts for it."""
    return _checked(msgspec.structs.replace(tombstone, deleted=False))


def with_members(manifest: Manifest, members: tuple[str, ...], quorum: int) -> Manifest:
    """Other members in a manifest not yet sent. It must name the owner's own generation (section 7, "Members")."""
    assert manifest.generation.epoch == manifest.epoch
    return _checked(msgspec.structs.replace(manifest, members=members, quorum=quorum))


def with_incidents(manifest: Manifest, incidents: tuple[Incident, ...]) -> Manifest:
    """Other open incidents in a manifest not yet sent."""
    return _checked(msgspec.structs.replace(manifest, incidents=incidents))


def encode(manifest: Manifest) -> bytes:
    """The bytes to store."""
    version = _VERSION_DEFLATED if _is_deflated(_checked(manifest)) else _VERSION
    body = _MAGIC + bytes([version]) + _ENCODER.encode(manifest)
    return body + blake3(body).digest()


def decode(data: bytes, where: str = "manifest") -> Manifest:
    """Raises Corrupt, naming `where`, on anything but a whole manifest of a known version."""
    if len(data) < len(_MAGIC) + 1 + _HASH_BYTES or not data.startswith(_MAGIC):
        raise Corrupt(f"{where}: this is no manifest ({len(data)} bytes)")
    body, digest = data[:-_HASH_BYTES], data[-_HASH_BYTES:]
    if blake3(body).digest() != digest:
        raise Corrupt(f"{where}: the manifest does not have its checksum")
    if (version := body[len(_MAGIC)]) not in (_VERSION, _VERSION_DEFLATED):
        known = f"versions {_VERSION} and {_VERSION_DEFLATED}"
        raise Corrupt(f"{where}: manifest version {version} is unknown here; this release reads {known}")
    try:
        manifest = _DECODER.decode(body[len(_MAGIC) + 1 :])
    except msgspec.MsgspecError as error:
        raise Corrupt(f"{where}: the manifest cannot be read: {error}") from None
    broken = _broken(manifest)
    if broken is None and _is_deflated(manifest) != (version == _VERSION_DEFLATED):
        broken = _gap(manifest)
    if broken is not None:
        raise Corrupt(f"{where}: the manifest contradicts itself: {broken}")
    return manifest


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Manifest)


def _stamped(manifest: Manifest, stamp: Stamp, **changes: object) -> Manifest:
    assert stamp.epoch >= manifest.epoch, "an older epoch puts no manifest"
    assert stamp.put_id
    assert stamp.put_id != manifest.put_id
    fresh = {"seq": manifest.seq + 1, "epoch": stamp.epoch, "put_id": stamp.put_id}
    return _checked(msgspec.structs.replace(manifest, **{**fresh, **changes}))


def _checked(manifest: Manifest) -> Manifest:
    assert not (broken := _broken(manifest)), broken
    return manifest


def _broken(manifest: Manifest) -> str | None:
    """Which invariant does not hold, if any."""
    if manifest.generation.epoch > manifest.epoch:
        return f"generation {manifest.generation} is newer than the fence {manifest.epoch}"
    if not 0 <= manifest.start <= manifest.length or not _whole(manifest.length, manifest.page_size):
        return f"length {manifest.length} (from {manifest.start}) is no length of a log"
    if len(manifest.checksum) != CHECKSUM_BYTES:
        return f"its log checksum has {len(manifest.checksum)} bytes"
    if len(manifest.base) != chunks_of(manifest.base_size):
        return f"{len(manifest.base)} chunks for a base of {manifest.base_size} bytes"
    if len(manifest.tail) > TAIL_BYTES_MAX:
        return f"a tail of {len(manifest.tail)} bytes"
    end = 0
    for segment in manifest.segments:
        if segment.start != end or segment.end <= segment.start or segment.writer > manifest.epoch:
            return f"segment {segment.start}-{segment.end} by {segment.writer} does not follow byte {end}"
        end = segment.end
    tail, size = len(manifest.tail), manifest.length - end
    if tail != size and not 0 < tail < size <= TAIL_LOG_MAX:
        return _gap(manifest)
    if manifest.quorum < 0 or len(set(manifest.members)) != len(manifest.members):
        return f"members {manifest.members} with quorum {manifest.quorum}"
    return "a tombstone with content" if manifest.deleted and (manifest.base or manifest.length) else None


def _is_deflated(manifest: Manifest) -> bool:
    return len(manifest.tail) < manifest.length - manifest.shipped


def _gap(manifest: Manifest) -> str:
    return f"segments reach {manifest.shipped}, {len(manifest.tail)} bytes of tail do not reach {manifest.length}"


def _whole(length: int, page_size: int) -> bool:
    return length == 0 or (length > LOG_HEADER and (length - LOG_HEADER) % (FRAME_HEADER + page_size) == 0)
