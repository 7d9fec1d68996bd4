"""What the control plane asks of a node by name, in msgpack: alarms (PROTOCOLS section 9), drains and moves (10)."""

from __future__ import annotations

from typing import Literal

import msgspec

from domicile.placement.records import AlarmRow

Wake = Literal["awake", "ghost", "elsewhere", "moving", "refused"]


class WakeRequest(msgspec.Struct, array_like=True):
    """`wake-alarm` between nodes: rows of the mirror, each with the version it was read at.

    `may_forward`: an object that sleeps may be left to a member, which the answer then names. `silent`: nodes that did
    not answer when they were asked; one that holds an object is to be looked at.
    """

    rows: tuple[tuple[AlarmRow, int], ...]
    may_forward: bool = False
    silent: tuple[str, ...] = ()


class Woken(msgspec.Struct, array_like=True):
    """What became of one row. `node` says where an object that is elsewhere lives, or had better wake; maybe empty."""

    wake: Wake
    node: str = ""
    detail: str = ""


class DrainRequest(msgspec.Struct, array_like=True):
    """`drain-node`: release a batch and say what is left. `undo`: serve again."""

    undo: bool = False


class DrainAnswer(msgspec.Struct, array_like=True):
    """`left`: objects still awake here, or waking. `released`: how many went since the drain began."""

    left: int
    released: int


class TakeObject(msgspec.Struct, array_like=True):
    """`take-object`: wake what the asking node has released. `row`, `version`: its lease row then."""

    scope: str
    cls: str
    name: str
    row: bytes
    version: int


class DrainProject(msgspec.Struct, array_like=True):
    """`drain-project`: end what is awake here behind closed gates of the project."""

    project: str


class ProjectLeft(msgspec.Struct, array_like=True):
    """`left` of `ended`: residencies of the project whose release is still to come."""

    left: int
    ended: int


class DrainObject(msgspec.Struct, array_like=True):
    """`drain-object`: land and release it by a drain claim. `may_serve`: an incident is recorded and does not stop."""

    scope: str
    cls: str
    name: str
    may_serve: bool = False


class SettleObject(msgspec.Struct, array_like=True):
    """`settle-object`: land and release it, its gate open."""

    scope: str
    cls: str
    name: str


class Landed(msgspec.Struct, array_like=True):
    """Answer to both; the lease row says what became of it. `incident`: it was left, since no quorum could be read."""

    incident: str = ""
