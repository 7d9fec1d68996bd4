"""Draining: this node releases everything it is home to, takes nothing new, and stays up empty (PROTOCOLS section 10).

Callers are sent on, as at a stop. It lasts until the node is started again, or the drain is taken back.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from domicile.node.control.messages import DrainAnswer, DrainRequest
from domicile.node.residents import Residents

BATCH_MAX = 64
WAIT_SECS = 5.0


class Draining:
    """`set_state` takes `leaving` and `serving`, and tells everybody."""

    def __init__(self, residents: Residents, set_state: Callable[[str], None]) -> None:
        self._residents = residents
        self._set_state = set_state
        self._released = 0

    async def asked(self, body: bytes) -> bytes:
        """`drain-node`: one batch; asked again until nothing is left. Safe to repeat. Raises MsgspecError."""
        request = msgspec.msgpack.decode(body, type=DrainRequest)
        if request.undo:
            self._released = 0
            self._set_state("serving")
            return msgspec.msgpack.encode(DrainAnswer(len(self._residents), 0))
        self._set_state("leaving")
        before = len(self._residents)
        left = await self._residents.drain(BATCH_MAX, WAIT_SECS)
        self._released += max(0, before - len(self._residents))
        return msgspec.msgpack.encode(DrainAnswer(left, self._released))
