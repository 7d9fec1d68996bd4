"""What RecoverIncident asks of nodes by name, in msgpack (PROTOCOLS section 10)."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from domicile.placement.records import Epoch, Incarnation, Position

Source = Literal["lost", "copy", "own"]
Action = Literal["lay", "apply", "keep"]
Outcome = Literal["laid", "applied", "kept", "void", "written", "unfit"]


class FindBranches(msgspec.Struct, array_like=True):
    """`incident-find`: what this node has of owners before `epoch` above what was `served`.

    `asked`: the members that the takeover asked; one of them is fenced first.
    """

    object_id: str
    epoch: Epoch
    served: Position
    asked: tuple[str, ...]


class BranchAt(msgspec.Struct, array_like=True):
    """One copy: kept in `lost/`, standing among the copies, or left by an owner that was killed."""

    source: Source
    position: Position


class BranchesFound(msgspec.Struct, array_like=True):
    """`heard`: this member's word counts, as a takeover would count it: what it had is told here, all of it."""

    copy_id: str
    heard: bool
    branches: tuple[BranchAt, ...]


class StoreBranch(msgspec.Struct, array_like=True):
    """`incident-store`: put the branch into the blob store as two databases. `checksum`: as in IncidentRow."""

    object_id: str
    epoch: Epoch
    served: Position
    checksum: bytes
    source: Source


class BranchStored(msgspec.Struct, array_like=True):
    """Where the branch reaches, and its size as a database, in bytes."""

    position: Position
    size: int


class Repair(msgspec.Struct, array_like=True):
    """`incident-repair`, asked of the object's home: the branch comes back or not, and the incident is closed.

    `foreign`: another region had answered it, and no manifest here carries the incident. Then `incarnation` None: the
    object was born there, and may have to be here.
    """

    scope: str
    cls: str
    name: str
    incarnation: Incarnation | None
    epoch: Epoch
    action: Action
    foreign: bool = False


class Repaired(msgspec.Struct, array_like=True):
    """What became of it. Closed, but for two: `written`, the object was written since and waits for a person; `unfit`,
    the branch cannot be laid, `why` says the reason. `void`: the object does not carry the incident any more.

    `left` rows were not brought in; `shown` are the first of them, as a person reads them.
    """

    outcome: Outcome
    rows: int = 0
    already: int = 0
    left: int = 0
    shown: tuple[dict[str, Any], ...] = ()
    why: str = ""


class ForgetBranch(msgspec.Struct, array_like=True):
    """`incident-forget`: the incident is closed; what was kept for it in `lost/` may go."""

    object_id: str
    epoch: Epoch
