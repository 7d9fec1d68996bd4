"""`wake-alarm`, as it is asked of a node: rows of the mirror, and what became of each (PROTOCOLS section 9)."""

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
