"""This node releases all it is home to and takes nothing new: at its end, or staying up empty (PROTOCOLS sections 3 and
10).

Callers are sent on. A drain lasts until the node is started again, or the drain is taken back.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from domicile.node.control.hand_over import HandOver
from domicile.node.control.messages import DrainAnswer, DrainRequest
from domicile.node.host import Host
from domicile.node.peering import Request
from domicile.node.residents import Residents

BATCH_MAX = 64
WAIT_SECS = 5.0
BUDGET_SECS_MIN = 1.0
RELEASE_SECS = 0.005  # of the budget kept for each that is left: to release it at once takes less
RESERVE_SECS = 0.5  # kept besides: the slowest of their releases


class Draining:
    """`set_state` takes `leaving` and `serving`, and tells everybody."""

    def __init__(self, host: Host, residents: Residents, set_state: Callable[[str], None]) -> None:
        self._host = host
        self._residents = residents
        self._hand_over = HandOver(host, residents)
        self._set_state = set_state
        self._released = 0

    def requests(self) -> dict[str, Request]:
        return {"drain-node": self.asked, "take-object": self._hand_over.taken}

    async def leave(self) -> None:
        """SIGTERM, step 2: every object released clean, those with waiting callers first, within the flush budget.

        As others take them; what is left when the rest of the budget is needed for it is released at once, and so is
        what nobody calls.
        """
        residents, now = self._residents, self._host.clock.monotonic
        wanted = self._hand_over.wanted()
        until = now() + max(BUDGET_SECS_MIN, self._host.config.object_flush_ms / 1000 * len(wanted))

        def enough() -> bool:
            return now() + RESERVE_SECS + RELEASE_SECS * len(residents) > until

        while wanted and not enough() and self._others():
            await self._hand_over.run(wanted, until - now(), enough)
            wanted = self._hand_over.wanted()
        await residents.release_all(until - now())

    async def asked(self, body: bytes) -> bytes:
        """`drain-node`: one batch; asked again until nothing is left. Safe to repeat. Raises MsgspecError.

        Nothing is given up: one whose writes cannot land goes on trying, and counts as left.
        """
        request = msgspec.msgpack.decode(body, type=DrainRequest)
        residents = self._residents
        if request.undo:
            self._released = 0
            residents.handed.clear()
            self._set_state("serving")
            return msgspec.msgpack.encode(DrainAnswer(len(residents), 0))
        self._set_state("leaving")
        before = len(residents)
        until = self._host.clock.monotonic() + WAIT_SECS
        wanted = self._hand_over.wanted()[:BATCH_MAX] if self._others() else []
        await self._hand_over.run(wanted, WAIT_SECS, lambda: False)
        idle = [] if wanted else sorted((r for r in residents.awake() if r.serving), key=lambda r: not r.quiet)
        residents.sleep_soon(idle[:BATCH_MAX])
        left = await residents.settled(until - self._host.clock.monotonic())
        self._released += max(0, before - len(residents))
        return msgspec.msgpack.encode(DrainAnswer(left, self._released))

    def _others(self) -> bool:
        return any(row.state == "serving" for row in self._host.nodes.others())
