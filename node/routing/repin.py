"""`project repin`: a class is pinned to another region, or to none (PROTOCOLS section 4).

Asked of any node, which asks every region by its ingress to do its part, in the order of `placement/repinning.py`.
Stopped half-way it is done again from the beginning.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from domicile.errors import BadName, NotServing
from domicile.node.host import Host
from domicile.node.peering import Request, ask_region
from domicile.node.routing.control_view import ControlView
from domicile.node.routing.crossing import Crossing
from domicile.placement.records import CLASS_RE, ClassRow, check_scope
from domicile.placement.regions import check_region
from domicile.placement.repinning import ClassOrder
from domicile.placement.store import ScanExpired, StoreUnavailable


class Repin:
    """`requests` are what regions ask of each other."""

    def __init__(self, host: Host, control: ControlView, crossing: Crossing) -> None:
        self._host = host
        self._control = control
        self._crossing = crossing
        self._mine = crossing.homes.mine

    async def run(self, project: str, cls: str, pin: str | None) -> ClassRow:
        """The class's row as it stands then. Raises BadName, BadRequest while objects live elsewhere, NoSuchProject,
        and NotServing while a region, or control, does not answer."""
        check_scope(project)
        if not CLASS_RE.fullmatch(cls):
            raise BadName(f"{cls!r} is not a class name: an identifier of at most 64 characters")
        if pin is not None:
            check_region(pin)
        try:
            return await self._run(project, cls, pin)
        except (StoreUnavailable, ScanExpired) as error:
            raise NotServing(f"class {cls} of project {project} cannot be pinned now: {error}") from error

    async def _run(self, project: str, cls: str, pin: str | None) -> ClassRow:
        policy = await self._control.pin_rows.draw_term(project)
        to = await self._control.regions.place(pin or policy.region, self._mine)
        order = ClassOrder(project, cls, to, policy.term, pin is not None)
        regions = await self._control.regions.list()
        others = sorted({*regions, *self._control.regions.standins_known().values(), self._mine} - {to})
        for region in others:
            await self._ask(region, "class-empty", order)
        for region in others:
            await self._ask(region, "class-close", order)
        row = ClassRow(pin, policy.term)
        await self._control.pin_rows.record(project, cls, row)
        await self._ask(to, "class-open", order)
        return row

    def requests(self) -> dict[str, Request]:
        """What a region is asked to do with its own gates."""
        gates = self._control.class_gates
        return {
            "class-empty": self._answering(lambda order: gates.check_empty(order.project, order.cls)),
            "class-close": self._answering(gates.close),
            "class-open": self._answering(gates.open),
        }

    def _answering(self, part: Callable[[ClassOrder], Awaitable[None]]) -> Request:
        async def answer(body: bytes) -> bytes:
            try:
                await part(msgspec.msgpack.decode(body, type=ClassOrder))
            except StoreUnavailable as error:
                raise NotServing(f"the placement store of region {self._mine} does not answer: {error}") from error
            return b""

        return answer

    async def _ask(self, region: str, method: str, order: ClassOrder) -> None:
        body = msgspec.msgpack.encode(order)
        if region == self._mine:
            await self.requests()[method](body)
        else:
            await self._crossing.into(region, ask_region(self._host.peers, method, body), "keyed")
