"""What the control plane asks of a node by name, in msgpack: `wake-alarm` (PROTOCOLS section 9), `drain-node` (10)."""

from __future__ import annotations

from typing import Literal

import msgspec

from domicile.placement.records import AlarmRow

Wake = Literal["awake", "ghost", "elsewhere", "moving", "refused"]


class WakeRequest(msgspec.Struct, array_like=True):
    """`wake-alarm` between nodes: rows of the mirror, each with the version it was read at.

    `may_forward`: an object that sleeps may be left to a member, which the answer then names.
    """

    rows: tuple[tuple[AlarmRow, int], ...]
    may_forward: bool = False


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
