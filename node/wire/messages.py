"""Messages between nodes (PROTOCOLS sections 4, 5, 7 and 8). Values only; msgpack arrays, golden bytes in tests.

The owner speaks, the replica answers with what its copy really, durably has. Lengths are bytes from the start of the
write-ahead log; checksums are those of `node/sqlite/checksum.py`; `epoch` is always the speaking owner's.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from domicile.placement.records import Epoch, Generation, Incarnation, Position

Incident = tuple[Epoch, Position]


class Append(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Frames [offset, offset + len(frames)) of `generation`'s log; `checksum` is the owner's at `offset`.

    Within its generation an append only extends; an overlap is idempotent, nothing is cut.
    """

    object_id: bytes
    incarnation: Incarnation
    epoch: Epoch
    generation: Generation
    offset: int
    checksum: bytes
    frames: bytes
    incidents: tuple[Incident, ...] = ()


class Relabel(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """A copy of `generation` that holds `length` becomes `to`, and cuts what it has beyond in the same record."""

    object_id: bytes
    incarnation: Incarnation
    epoch: Epoch
    generation: Generation
    length: int
    checksum: bytes
    to: Generation
    incidents: tuple[Incident, ...] = ()


class Fold(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """A rotation: a copy exactly at `length` of `generation` folds its log into its base and becomes `to` at 0.

    `hashes` are all chunks of the folded base, `dirty` those to verify; `size` in bytes.
    """

    object_id: bytes
    incarnation: Incarnation
    epoch: Epoch
    generation: Generation
    length: int
    checksum: bytes
    to: Generation
    hashes: tuple[bytes, ...]
    size: int
    dirty: tuple[int, ...]
    incidents: tuple[Incident, ...] = ()


class NewBase(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """For every other copy: `generation` from its start, which is at `start` of a log that grows from these chunks.

    The replica stages it beside what it has: chunks by hash from its own base, else from the owner; the log's first
    `start` bytes from the owner; checks them against `checksum`; swaps by one rename. Staged bytes are never acked.
    """

    object_id: bytes
    incarnation: Incarnation
    epoch: Epoch
    generation: Generation
    start: int
    checksum: bytes
    hashes: tuple[bytes, ...]
    size: int
    incidents: tuple[Incident, ...] = ()


class AskWatermark(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """A replica asks the owner how far callers were answered."""

    object_id: bytes


Said = Append | Relabel | Fold | NewBase | AskWatermark


class Holds(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """The copy's position, synced. The owner counts it only in its own generation."""

    incarnation: Incarnation
    generation: Generation
    length: int


class FencedBy(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """A newer epoch was seen: the speaker's residency is over."""

    epoch: Epoch


class Elsewhere(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """A gap, another generation, another checksum: what the copy has (None: nothing), and nothing was changed.

    `staging`: a base is being staged; ask again later.
    """

    position: Position | None
    staging: bool = False


class Unable(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """The replica cannot take it now (disk full, leaving, a stranger's base it could not verify)."""

    why: str


class Watermark(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """The owner's answer: generation, length and checksum up to which callers were answered, and its own epoch.

    Without a generation: not the owner, or none that may speak for the object now.
    """

    generation: Generation | None
    length: int = 0
    checksum: bytes = b""
    epoch: Epoch | None = None


Answered = Holds | FencedBy | Elsewhere | Unable | Watermark


class Fence(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """A takeover asks a member: raise the fence to `epoch`, durably, then say what you hold."""

    object_id: bytes
    incarnation: Incarnation
    epoch: Epoch


class FenceAnswer(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """`fenced`: a higher epoch stood there already. `position` None: nothing is held here, and nothing ever was.

    A stub (`stub` True) is what is left of a copy the manifest covered: it counts as "at most the manifest" only if the
    manifest is not below `position`. A `copy_id` other than the one asked is no answer; it is empty where what was held
    cannot be read.
    """

    copy_id: str
    fenced: Epoch | None
    position: Position | None
    checksum: bytes = b""
    stub: bool = False
    hashes: tuple[bytes, ...] = ()
    size: int = 0
    start: int = 0


class FetchLog(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """Bytes [start, end) of the log of a copy, or of the owner's file, in this generation."""

    object_id: bytes
    incarnation: Incarnation
    generation: Generation
    start: int
    end: int


class FetchChunk(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """Chunk `index` of the base under this generation, expected to have `hash`."""

    object_id: bytes
    incarnation: Incarnation
    generation: Generation
    index: int
    hash: bytes


class Dropped(msgspec.Struct, frozen=True, array_like=True, tag=9):
    """The owner tells: the object was deleted at `incarnation` (the next life's); the copy goes, with its fence."""

    object_id: bytes
    incarnation: Incarnation


class Hops(msgspec.Struct, frozen=True, array_like=True):
    """What is left of a call's hop budget (PROTOCOLS section 4): taken from at each forward, never refilled."""

    regions: int = 1
    nodes: int = 1


KeyParts = tuple[str, str, str]  # scope, class, name


class ForwardedCall(msgspec.Struct, frozen=True, array_like=True, tag=10):
    """A call on its way to another node. Clocks differ, so it carries what was left of its time when it was sent."""

    key: KeyParts
    method: str
    body: bytes
    left_secs: float
    hops: Hops
    idempotency_key: str | None = None
    if_match: Incarnation | None = None
    chain: tuple[KeyParts, ...] = ()
    trace: str | None = None


class Ask(msgspec.Struct, frozen=True, array_like=True, tag=11):
    """A request by name, for what is rare: describing, deleting, draining."""

    method: str
    body: bytes


class Part(msgspec.Struct, frozen=True, array_like=True, tag=15):
    """A piece of an encoded message too large for a frame of its own; in order, under one number, up to `last`."""

    piece: memoryview
    last: bool


Request = Fence | FetchLog | FetchChunk | Dropped | ForwardedCall | Ask
Question = Said | Request


class Fetched(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """The bytes that FetchLog, FetchChunk or Ask asked for; empty for Dropped."""

    data: bytes


class Returned(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """A forwarded call's result; `body` is JSON text; `node` served it, empty: the one that answers."""

    body: bytes
    epoch: Epoch
    served_by: Literal["owner", "replica", "store"] = "owner"
    node: str = ""


class Problem(msgspec.Struct, frozen=True, array_like=True, tag=9):
    """An error of `domicile.errors`, as the problem document of the HTTP surface (JSON)."""

    document: bytes


class NotThere(msgspec.Struct, frozen=True, array_like=True, tag=10):
    """What was to be fetched is not here, or no longer."""

    detail: str


Reply = Answered | FenceAnswer | Fetched | Returned | Problem | NotThere

BODY_FIELDS = {
    Append: "frames",
    ForwardedCall: "body",
    Ask: "body",
    Fetched: "data",
    Returned: "body",
    Problem: "document",
}
HASHED = (Fold, NewBase, FenceAnswer)
OVERHEAD = 256


def weight(message: Question | Reply) -> int:
    """About how many bytes it takes, for bounds: its body or its hashes, and a flat share for the rest."""
    field = BODY_FIELDS.get(type(message))
    if field is not None:
        return OVERHEAD + len(getattr(message, field))
    return OVERHEAD + 34 * len(message.hashes) if isinstance(message, HASHED) else OVERHEAD
