"""Copies of an object in the models of positions, and their way through the product's own manifest and quorum rules.

A model's copy names its whole history, write by write. What the product makes of it, a position, a manifest, a release,
is computed by the product: each write is one WAL frame, what a rotation folded is one chunk.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from functools import cache, cached_property
from typing import NamedTuple

import msgspec
from blake3 import blake3

from domicile.node import manifest as manifests
from domicile.node import quorum, register, sidecar
from domicile.node.chunks import Base, ChunkRef, next_refs
from domicile.node.disk import SystemDisk
from domicile.node.errors import Fenced
from domicile.node.manifest import Manifest, Reach, Stamp
from domicile.node.quorum import NOTHING, Members
from domicile.node.sqlite.checksum import base_hash, checksum, seed
from domicile.node.sqlite.wal import FRAME_HEADER, LOG_HEADER, PAGE_BYTES
from domicile.node.takeover import lay as takeover
from domicile.node.takeover import own_copy
from domicile.placement.records import (
    FIRST_INCARNATION,
    Birth,
    Epoch,
    Generation,
    ObjectKey,
    Position,
    Released,
)

QUORUM = 2
FRAME_BYTES = FRAME_HEADER + PAGE_BYTES
KEY = ObjectKey("small", "World", "w")

Write = tuple[int, int]
"""(the owner that wrote it, which of its writes)."""

Flags = tuple[bool, ...]
"""One for each replica."""


def epoch(owner: int) -> Epoch:
    """Owners are numbered in the order of their claims."""
    return Epoch(1, owner)


def log_bytes(frames: int) -> int:
    """The length of a log of so many frames."""
    return LOG_HEADER + frames * FRAME_BYTES if frames else 0


def frames_in(length: int) -> int:
    """How many frames a log of this length has."""
    return max(0, length - LOG_HEADER) // FRAME_BYTES


class Copy:
    """One copy: a generation's base (the first `folded` writes), where it began, and its log so far.

    `start` counts writes from the object's birth, as does len(log). Made by `copy_of`, one for each value, so that
    copies are compared and hashed by identity.
    """

    def __init__(self, generation: Generation, folded: int, start: int, log: tuple[Write, ...], serial: int) -> None:
        self.generation = generation
        self.folded = folded
        self.start = start
        self.log = log
        self.serial = serial
        self.held = frozenset(log)
        self.position = Position(FIRST_INCARNATION, generation, log_bytes(len(log) - folded))

    def __str__(self) -> str:
        writes = " ".join(f"{owner}{'abc'[write]}" for owner, write in self.log) or "nothing"
        return f"{self.generation.epoch.version}.{self.generation.counter} from {self.start}: {writes}"

    @cached_property
    def wal(self) -> bytes:
        """The log as the product has it: a header, then a frame for each write since the base."""
        frames = [repr(write).encode().ljust(FRAME_BYTES) for write in self.log[self.folded :]]
        return bytes(LOG_HEADER) + b"".join(frames) if frames else b""

    @cached_property
    def base(self) -> tuple[bytes, ...]:
        """Hashes of its base's chunks."""
        return (_folded_hash(self.log[: self.folded]),) if self.folded else ()

    @cached_property
    def checksum(self) -> bytes:
        return checksum(seed(KEY.id, FIRST_INCARNATION, base_hash(self.base, self.folded)), self.wal)

    @cached_property
    def reach(self) -> Reach:
        start = log_bytes(max(0, self.start - self.folded))
        return Reach(self.generation, start, len(self.wal), self.checksum)


_copies: dict[tuple[Generation, int, int, tuple[Write, ...]], Copy] = {}


def copy_of(generation: Generation, folded: int, start: int, log: tuple[Write, ...]) -> Copy:
    """The one copy of this value."""
    key = (generation, folded, start, log)
    copy = _copies.get(key)
    if copy is None:
        copy = _copies[key] = Copy(generation, folded, start, log, len(_copies))
    return copy


BIRTH = copy_of(Generation(epoch(0), 0), 0, 0, ())


_folds: dict[bytes, tuple[Write, ...]] = {}


def _folded_hash(log: tuple[Write, ...]) -> bytes:
    digest = blake3(repr(log).encode()).digest()
    _folds[digest] = log
    return digest


class Register(NamedTuple):
    """The manifest as the models see it: whose fence, what content, which members."""

    fence: int
    copy: Copy
    members: Flags


def copies_named(members: Flags) -> tuple[str, ...]:
    """Replica r is the copy id r."""
    return tuple(str(r) for r, member in enumerate(members) if member)


@cache
def manifest_of(value: Register) -> Manifest:
    """The product's manifest with this content."""
    copy = value.copy
    born = manifests.birth(KEY, FIRST_INCARNATION, epoch(0), Birth(copies_named(value.members), QUORUM))
    refs = tuple(ChunkRef(digest, copy.generation) for digest in copy.base)
    content = {"base": refs, "base_size": copy.folded, "tail": copy.wal, "put_id": b"before"}
    changes = {"epoch": epoch(value.fence), **content, **copy.reach._asdict()}
    return manifests.decode(manifests.encode(msgspec.structs.replace(born, **changes)))


def _register(manifest: Manifest, replicas: int) -> Register:
    """What the product's manifest says, read back from its bytes."""
    manifest = manifests.decode(manifests.encode(manifest))
    folded = tuple(write for ref in manifest.base for write in _folds[ref.hash])
    frames = [manifest.tail[at : at + FRAME_BYTES] for at in range(LOG_HEADER, len(manifest.tail), FRAME_BYTES)]
    log = folded + tuple(_write(data) for data in frames)
    start = len(folded) + frames_in(manifest.start)
    members = tuple(str(r) in manifest.members for r in range(replicas))
    return Register(manifest.epoch.version, copy_of(manifest.generation, len(folded), start, log), members)


def _write(frame: bytes) -> Write:
    owner, write = frame.decode().strip(" ()").split(",")
    return int(owner), int(write)


@cache
def fenced(value: Register, owner: int, *, rename: bool) -> Register:
    """The product's step 4 of a takeover."""
    built = manifests.fenced(manifest_of(value), Stamp(epoch(owner), b"fence"), rename=rename)
    return _register(built, len(value.members))


@cache
def landed(value: Register, owner: int, copy: Copy, pending: Flags | None) -> Register:
    """The product's put of an owner's copy over the manifest it knows: a longer log, or another base."""
    before, stamp = manifest_of(value), Stamp(epoch(owner), b"flight")
    if copy.folded == value.copy.folded:
        built = manifests.extended(before, stamp, copy.reach, segment=None, tail=copy.wal)
    else:
        base = Base(KEY.id, FIRST_INCARNATION, next_refs(copy.base, before.base, copy.generation), copy.folded)
        built = manifests.rotated(before, stamp, copy.reach, base, tail=copy.wal)
    if pending is not None:
        built = manifests.with_members(built, copies_named(pending), QUORUM)
    return _register(built, len(value.members))


@cache
def may_fence(value: Register, owner: int) -> bool:
    """Whether a claimant whose put met this manifest under another tag may adopt it: the product's judgement."""
    mine = manifests.fenced(manifest_of(Register(0, BIRTH, value.members)), Stamp(epoch(owner), b"fence"), rename=False)
    try:
        return register.judge(manifest_of(value), "now", mine, "before") is register.Found.OLDER
    except Fenced:
        return False


@cache
def reached(acks: tuple[int, ...], sets: tuple[Flags, ...]) -> int:
    """The length that the product counts as durable among the members of every set; NOTHING for none."""
    marks = {str(r): ack for r, ack in enumerate(acks) if ack > NOTHING}
    return quorum.landed_in_all(marks, [Members(copies_named(members), QUORUM) for members in sets])


@cache
def answers_needed(members: Flags) -> int:
    """The product's read quorum."""
    return quorum.read_quorum(Members(copies_named(members), QUORUM))


@cache
def is_whole(value: Register, released: Copy, *, current: bool) -> bool:
    """Whether the product, claiming over this release, needs no member: the manifest is what the release left."""
    row = Released(released.position, released.checksum, "now" if current else "before")
    return takeover.is_whole(row, manifest_of(value), "now")


def greatest(copies: Sequence[Copy]) -> Copy:
    """By the product's order of positions."""
    return max(copies, key=lambda copy: copy.position)


@cache
def lays_clean(copy: Copy, released: Copy) -> bool:
    """Whether the product, finding this copy on disk after a clean release, takes it for the one the row names."""
    row = Released(released.position, released.checksum, "tag")
    with tempfile.TemporaryDirectory() as directory:
        disk, files = SystemDisk(), own_copy.Files(directory)
        disk.write(files.base, b"base", sync=False)
        disk.write(files.log, copy.wal, sync=False)
        disk.write(files.sidecar, sidecar.encode(_sidecar(copy, disk.boot_id())), sync=False)
        return own_copy.find_released(disk, files, row) is not None


def _sidecar(copy: Copy, boot_id: str) -> sidecar.Sidecar:
    return sidecar.Sidecar(
        KEY.id,
        KEY.scope,
        KEY.cls,
        KEY.name,
        FIRST_INCARNATION,
        **copy.reach._asdict(),
        epoch=copy.generation.epoch,
        boot_id=boot_id,
        state=sidecar.Clean(),
        base=tuple(ChunkRef(digest, copy.generation) for digest in copy.base),
        base_size=copy.folded,
        page_size=PAGE_BYTES,
    )
