"""Draining: this node releases everything it is home to, takes nothing new, and stays up empty (PROTOCOLS section 10).

Callers are sent on, as at a stop. It lasts until the node is started again, or the drain is taken back.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from domicile.node.residents import Residents

BATCH_MAX = 64
WAIT_SECS = 5.0


class DrainRequest(msgspec.Struct, array_like=True):
    """`drain-node` between nodes. `undo`: serve again."""

    undo: bool = False


class DrainAnswer(msgspec.Struct, array_like=True):
    """`left`: objects still awake here, or waking."""

    left: int
    state: str


class Draining:
    """`set_state` takes `leaving` and `serving`, and tells everybody."""

    def __init__(self, residents: Residents, set_state: Callable[[str], None]) -> None:
        self._residents = residents
        self._set_state = set_state

    async def asked(self, body: bytes) -> bytes:
        """One batch; asked again until nothing is left. Safe to repeat, and to ask twice at a time."""
        request = msgspec.msgpack.decode(body, type=DrainRequest)
        if request.undo:
            self._set_state("serving")
            return msgspec.msgpack.encode(DrainAnswer(len(self._residents), "serving"))
        self._set_state("leaving")
        left = await self._residents.drain(BATCH_MAX, WAIT_SECS)
        return msgspec.msgpack.encode(DrainAnswer(left, "leaving"))
