"""THE PATH of a call (PROTOCOLS section 6): route, enter, mailbox, transaction, ticket, answer.

Everything that branches over outcomes is here; the stages it names do one thing each and hand on values.
"""

from __future__ import annotations

from collections.abc import Callable

from domicile.errors import (
    CallCycle,
    ChainTooDeep,
    DomicileError,
    NoSuchObject,
    NotServing,
    OutcomeUnknown,
    Overloaded,
    StaleIncarnation,
)
from domicile.node.errors import Ended, NodeError
from domicile.node.host import Host
from domicile.node.residency import Residency
from domicile.node.residents import Residents
from domicile.node.rounds import Ran
from domicile.node.values import Answer, Call
from domicile.placement.admission import Admission

CHAIN_MAX = 32
RESOLUTIONS_MAX = 3


class CallPath:
    """Runs calls to objects whose home is, or can be, here."""

    def __init__(self, residents: Residents, host: Host, admission: Callable[[], Admission]) -> None:
        self._residents = residents
        self._admission = admission
        self._gate_secs = host.config.object_ack_gate_ms / 1000
        self._reads = host.telemetry.reads.of("owner")

    async def call(self, call: Call, *, may_forward: bool = False) -> Answer:
        """`may_forward`: an object that sleeps may rather wake on a member, which NotHome then names.

        Raises errors of `domicile.errors` only; each says whether the call ran.
        """
        refuse_cycles(call)
        self._admission().check()
        for _ in range(RESOLUTIONS_MAX):
            residency = await self._residents.enter(call.key, may_forward=may_forward, until=call.deadline)
            if call.if_match is not None and call.if_match != residency.incarnation:
                raise StaleIncarnation(f"the object is in incarnation {residency.incarnation}")
            if residency.flights.choked:
                raise Overloaded(f"{residency.flights.behind} bytes of the object's writes are not durable yet")
            try:
                ran = await residency.perform(call)
            except Ended:
                continue  # it never had its turn: resolve anew
            await self._landed(residency, ran)
            if ran.error is not None:
                raise ran.error
            assert ran.answer is not None
            if ran.read:
                self._reads.add()
            return Answer(ran.answer, residency.epoch)
        raise NotServing("the object changed its home three times while this call looked for it")

    async def _landed(self, residency: Residency, ran: Ran) -> None:
        """The gate: return when the answer may leave. A write that landed is true at any time; a read is not."""
        flights = residency.flights
        if not flights.has_landed(ran.mark):
            try:
                landed = await flights.wait(ran.mark, residency.now() + self._gate_secs)
            except NodeError as error:
                raise _unlanded(ran, str(error)) from error
            except NoSuchObject as error:
                if ran.outside:
                    raise _unlanded(ran, "gone: the object was deleted") from error
                raise
            if not landed:
                raise _unlanded(ran, f"not durable within {self._gate_secs:g} s; it keeps shipping")
        if ran.alarm is not None and not await ran.alarm:
            raise _unlanded(ran, "the alarm it set is not mirrored yet")
        if not ran.wrote and self._admission().remaining() <= 0:
            raise _unlanded(ran, "not this node's to show any more")


def refuse_cycles(call: Call) -> None:
    """Raises CallCycle, ChainTooDeep."""
    if not call.chain:
        return
    chain = [str(key) for key in call.chain]
    if call.key in call.chain:
        raise CallCycle(" → ".join([*chain, str(call.key)]), chain=chain)
    if len(call.chain) >= CHAIN_MAX:
        raise ChainTooDeep(f"a chain of calls may be {CHAIN_MAX} deep", chain=chain)


def _unlanded(ran: Ran, why: str) -> DomicileError:
    if ran.lasting:
        return OutcomeUnknown(why)
    error = NotServing(f"the state this answer saw is {why}")
    error.outcome = "ran"
    return error
