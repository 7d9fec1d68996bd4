"""What lies beside an object's file and says what it is: the one thing a node trusts about its own files after a crash.

A file without a readable sidecar is no candidate at a lay (PROTOCOLS sections 5 and 7). Stored as
magic ‖ version ‖ msgpack ‖ blake3 of all before. The version is the first that knew the state.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec
from blake3 import blake3

from domicile.node.chunks import ChunkRef
from domicile.node.sqlite.wal import PAGE_BYTES
from domicile.placement.records import Epoch, Generation, Incarnation

_MAGIC = b"DOMS"
_VERSION, _VERSION_OF_PAGING, _VERSION_OF_TAKEN = 1, 2, 3
_KNOWN = tuple(_MAGIC + bytes([version]) for version in (_VERSION, _VERSION_OF_PAGING, _VERSION_OF_TAKEN))
_HASH_BYTES = 32


class Laid(msgspec.Struct, frozen=True, tag="laid"):
    """In use, or left by a crash: the log may be longer than `length`; walk it."""


class Taken(msgspec.Struct, frozen=True, tag="taken"):
    """As Laid, by a takeover that did not sync the files: on another boot they are no candidate."""


class Clean(msgspec.Struct, frozen=True, tag="released"):
    """Released clean: length and checksum are exact."""


class Rotating(msgspec.Struct, frozen=True, tag="rotating"):
    """The log is being folded into the base.

    The file is the sidecar's generation at `at` if the walk finds the whole log, `to` at length 0 if the log is empty,
    else no candidate.
    """

    at: int
    to: Generation


class Paging(msgspec.Struct, frozen=True, tag="paging"):
    """Being laid in pages: sized, and full of holes. The file is no candidate, whatever it looks like.

    `missing`: the chunks that were not there when it was sized, one bit each, the lowest of the first byte first.
    """

    missing: bytes


State = Laid | Taken | Clean | Rotating | Paging


class Landed(NamedTuple):
    """The last manifest known to have landed: its stored bytes, and its tag in the blob store."""

    manifest: bytes
    tag: str


class Sidecar(msgspec.Struct, frozen=True):
    """One sidecar. `length` and `checksum` are those at the time of writing; `epoch` is the last residency's.

    `base` is the chunk list of the file's base: None when nobody recorded it, empty for the birth image.
    """

    object_id: str
    scope: str
    cls: str
    name: str
    incarnation: Incarnation
    generation: Generation
    start: int
    length: int
    checksum: bytes
    epoch: Epoch
    boot_id: str
    state: State
    base: tuple[ChunkRef, ...] | None = None
    base_size: int = 0
    page_size: int = PAGE_BYTES
    landed: Landed | None = None


def encode(sidecar: Sidecar) -> bytes:
    """The bytes to store; write them by `Disk.replace`."""
    version = _FIRST_VERSIONS.get(type(sidecar.state), _VERSION)
    body = _MAGIC + bytes([version]) + _ENCODER.encode(sidecar)
    return body + blake3(body).digest()


def decode(data: bytes) -> Sidecar | None:
    """None for anything but a whole sidecar of a known version: then the file beside it is no candidate."""
    body, digest = data[:-_HASH_BYTES], data[-_HASH_BYTES:]
    if not body.startswith(_KNOWN) or blake3(body).digest() != digest:
        return None
    try:
        return _DECODER.decode(body[len(_MAGIC) + 1 :])
    except msgspec.MsgspecError:
        return None


_FIRST_VERSIONS: dict[type, int] = {Paging: _VERSION_OF_PAGING, Taken: _VERSION_OF_TAKEN}
_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Sidecar)
