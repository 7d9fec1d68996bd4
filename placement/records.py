"""Value types shared by placement, node and control plane: identities, epochs, positions and the rows' values.

Shapes and orders follow PROTOCOLS sections 1, 2 and 5. Nothing here does I/O.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import msgspec
from blake3 import blake3

from domicile.errors import BadName

PROJECT_RE = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
SCRIPT_RE = re.compile(r"s\.[A-Za-z0-9_.-]{1,100}")
CLASS_RE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
NAME_BYTES_MAX = 255
BURIALS_MAX = 16
RESERVED_PROJECTS = frozenset({"projects", "cluster", "incidents", "regions", "control"})


class Epoch(NamedTuple):
    """(term, store-wide version), compared in that order; `term.version` in text, 16 bytes on the wire."""

    term: int
    version: int

    def __str__(self) -> str:
        return f"{self.term}.{self.version}"

    def pack(self) -> bytes:
        return self.term.to_bytes(8, "big") + self.version.to_bytes(8, "big")

    @classmethod
    def parse(cls, text: str) -> Epoch:
        term, _, version = text.partition(".")
        return cls(int(term), int(version))


Incarnation = Epoch
FIRST_INCARNATION = Epoch(0, 0)


class Generation(NamedTuple):
    """A base, a start and the one log that grows from it: (epoch that made it, counter)."""

    epoch: Epoch
    counter: int

    def __str__(self) -> str:
        return f"{self.epoch}.{self.counter}"


class Position(NamedTuple):
    """How far a copy reaches: (incarnation, generation, WAL length in bytes), compared in that order."""

    incarnation: Incarnation
    generation: Generation
    length: int


@dataclass(frozen=True)
class ObjectKey:
    """(scope, class, name) and the id drawn from them. Build from outside input with `ObjectKey.checked`."""

    scope: str
    cls: str
    name: str

    @cached_property
    def id(self) -> str:
        """blake3 of scope, class and name joined by NUL bytes, 64 hex digits."""
        return blake3(b"\0".join(part.encode() for part in (self.scope, self.cls, self.name))).hexdigest()

    @classmethod
    def checked(cls, scope: str, klass: str, name: str) -> ObjectKey:
        """Raises BadName when a part breaks the rules of section 1."""
        check_scope(scope)
        if not CLASS_RE.fullmatch(klass):
            raise BadName(f"{klass!r} is not a class name: an identifier of at most 64 characters")
        try:
            encoded = name.encode()
        except UnicodeEncodeError:
            raise BadName("an object's name must be valid UTF-8") from None
        if not 1 <= len(encoded) <= NAME_BYTES_MAX or b"\0" in encoded:
            raise BadName(f"an object's name is 1 to {NAME_BYTES_MAX} bytes of UTF-8 without NUL")
        return cls(scope, klass, name)

    def __str__(self) -> str:
        return f"{self.scope}/{self.cls}/{self.name}"


def check_scope(scope: str) -> None:
    """Raises BadName unless `scope` is a project id or a script id."""
    if SCRIPT_RE.fullmatch(scope):
        return
    if not PROJECT_RE.fullmatch(scope) or scope in RESERVED_PROJECTS:
        raise BadName(f"{scope!r} is not a project id: [a-z0-9][a-z0-9-]{{0,62}}, and not a reserved word")


class Birth(msgspec.Struct, frozen=True):
    """The members and the quorum an incarnation is born with; rules while it has no manifest (section 5).

    `epoch` is that of the claim that bore it, hence of its first generation. In the birth claim's own row it is None:
    there it is the row's epoch, (term, version of the write); later claims carry it on written out.
    """

    members: tuple[str, ...] = ()
    quorum: int = 0
    epoch: Epoch | None = None


class Held(msgspec.Struct, frozen=True, tag="held"):
    """The lease is under `owner`, a node id. `nonce` is the claim's own: the row proves which of them wrote it."""

    owner: str
    nonce: str


class Released(msgspec.Struct, frozen=True, tag="released"):
    """A clean release: everything up to `position` is in the manifest with this tag.

    `tag` is None when the residency never landed anything (the object does not exist then).
    """

    position: Position
    checksum: bytes
    tag: str | None
    members: tuple[str, ...] = ()
    quorum: int = 0


class MovingTo(msgspec.Struct, frozen=True, tag="moving"):
    """The object is on its way to region `to`; `release` is what it goes back to."""

    to: str
    release: Released


class Forwarded(msgspec.Struct, frozen=True, tag="forwarded"):
    """The object lives in another region since `term`."""

    region: str
    term: int


class Deleted(msgspec.Struct, frozen=True, tag="deleted"):
    """A tombstone. `key` is the idempotency key of the delete, if it had one."""

    key: str | None = None


LeaseState = Held | Released | MovingTo | Forwarded | Deleted


class Burial(msgspec.Struct, frozen=True):
    """A deletion that had an idempotency key, and its epoch: a late repeat is answered, and never deletes a later life.

    One is remembered while it is among the last `BURIALS_MAX` of its name.
    """

    key: str
    epoch: Epoch


class LeaseRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """`leases/<object_id>`: who owns the object. Never removed; it is the tombstone and the forwarding row too.

    `term` is that of the write, so a row's epoch is (term, version of its record). A deletion's epoch, which is the
    next life's incarnation, is known only once it is committed: a Deleted row carries the incarnation that ended, and
    `next_incarnation` derives the next. `burials` are those of earlier lives; a Deleted row's own is not among them.
    """

    scope: str
    cls: str
    name: str
    incarnation: Incarnation
    state: LeaseState
    term: int
    birth: Birth | None = None
    burials: tuple[Burial, ...] = ()


def next_incarnation(term: int, incarnation: Incarnation, version: int) -> Incarnation:
    """The life that begins after a deletion, from its row (LeaseRow or DeletedRow) and the row's version.

    The delete's own epoch. Where a row was copied from another region's store, whose versions count apart, the copy
    says that epoch as its `incarnation`, and the greater of the two rules.
    """
    return max(Epoch(term, version), incarnation)


class NodeRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """`nodes/<node_id>`, under the node's grant; rewritten by every renewal with the next beat."""

    node_id: str
    http: str
    peer: str = ""
    copy_id: str = ""
    zone: str = ""
    classes: tuple[str, ...] = ()
    weight: float = 1.0
    capacity: int = 0
    state: str = "serving"
    load: int = 0
    beat: int = 0


class GateRow(msgspec.Struct, frozen=True):
    """`gates/…`: whether claims commit here. `term` is the first half of every epoch drawn under it."""

    open: bool
    term: int
    to: str | None = None


class AlarmRow(msgspec.Struct, frozen=True):
    """`alarms/<due_ms>/<object_id>` and `alarm-of/<object_id>`."""

    scope: str
    cls: str
    name: str
    incarnation: Incarnation
    due_ms: int


class InstanceRow(msgspec.Struct, frozen=True):
    """`instances/<scope>/<class>/<name>`; `created_ms` is wall time in milliseconds since 1970."""

    object_id: str
    created_ms: int


class DeletedRow(msgspec.Struct, frozen=True):
    """`deleted/<scope>/<class>/<name>`: so that deletions can be listed. `term` and `incarnation` as in LeaseRow."""

    object_id: str
    incarnation: Incarnation
    term: int = 0


class DepartureRow(msgspec.Struct, frozen=True):
    """`departures/<node_id>`: when a node left, why, and whose copies it had."""

    at_ms: int
    why: str
    copy_id: str = ""


class ProjectRow(msgspec.Struct, frozen=True):
    """`projects/<id>` in the control keyspace: policy and the project's term counter."""

    region: str
    term: int
    on_incident: str = "serve"
    created_ms: int = 0


class ClassRow(msgspec.Struct, frozen=True):
    """`projects/<id>/classes/<class>`: the pin recorded at the class's first birth in the project."""

    pin: str | None
    term: int


class RegionRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """`regions/<name>` in the control keyspace: a placement store, a bucket and nodes under one name.

    `ingress` is where other regions' calls come in, "host:port" of the wire between nodes (several with commas; empty:
    no other region can call here). `http` is the base URL of its surface. `placement` and `blobs` are as in the
    settings; credentials are each process's own. `since_ms` is wall time in milliseconds since 1970.
    """

    name: str
    ingress: str = ""
    http: str = ""
    placement: str = ""
    blobs: str = ""
    blobs_endpoint: str = ""
    since_ms: int = 0


class StandinRow(msgspec.Struct, frozen=True):
    """`standins/<region>`: the region that takes what belongs to one that was not registered when it was needed."""

    region: str


def encode(row: msgspec.Struct) -> bytes:
    """JSON, so that rows can be read with the store's own tools."""
    return msgspec.json.encode(row)
