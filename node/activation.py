"""Waking an object here: claim, lay, open (PROTOCOLS sections 4 and 5)."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import Callable
from dataclasses import dataclass

from domicile.classes import ClassSpec
from domicile.errors import DomicileError, Moving, NoSuchObject, NotHome, NotServing
from domicile.node import register
from domicile.node.engine import Laying, lay_and_open
from domicile.node.errors import BlobError, BlobMissing, Corrupt, NodeError
from domicile.node.host import Host
from domicile.node.residency import Phase, Residency
from domicile.node.takeover.lay import Early, NoQuorum, OutOfDate
from domicile.node.takeover.own_copy import Files
from domicile.node.takeover.room import make_way, prefer_member
from domicile.node.takeover.unopened import Unopened
from domicile.placement.admission import Admission
from domicile.placement.claims import Claim, Claimed, Lost, Registration, SeenLease
from domicile.placement.gates import Decision, Gates
from domicile.placement.pins import Pins
from domicile.placement.projects import FIRST_TERM, Projects
from domicile.placement.records import Birth, Deleted, Forwarded, GateRow, Held, MovingTo, ObjectKey, Released
from domicile.placement.store import StoreUnavailable
from domicile.registry import Registry

CLAIMS_MAX = 6


class Unlaid(NotServing):
    """The object is there, and its bytes cannot be had."""


class NoReadQuorum(Unlaid):
    """Laid now, it might lack answered writes, and whoever asked would rather know."""


@dataclass(frozen=True, slots=True)
class Landing:
    """A claim only to land and release: nobody is served, and callers are refused with `refusal`.

    `drain`: under a closed gate (section 10), else an open one. `may_serve`: without a read quorum an incident is
    recorded, where the project's policy says so; if not, NoReadQuorum.
    """

    refusal: DomicileError
    drain: bool
    may_serve: bool = False


class Activation:
    """Makes residencies. `registration` gives this node's, None while it is not registered."""

    def __init__(
        self,
        host: Host,
        registry: Registry,
        projects: Projects,
        pins: Pins,
        gates: Gates,
        admission: Callable[[], Admission],
        registration: Callable[[], Registration | None],
    ) -> None:
        self._host = host
        self._registry = registry
        self._projects = projects
        self._pins = pins
        self._gates = gates
        self._admission = admission
        self._registration = registration
        self._at_once = asyncio.Semaphore(host.config.object_activations)
        self._registered: set[tuple[str, str]] = set()
        self._unopened = Unopened()
        self.first_use_creates = False
        self.homed: Callable[[], int] = lambda: 0
        self.found_closed: Callable[[ObjectKey], None] = lambda key: None

    async def activate(
        self, key: ObjectKey, seen: SeenLease | None, *, create: bool, may_forward: bool = False
    ) -> Residency:
        """The awake object. `may_forward`: NotHome may name a member that it would wake on better.

        Raises errors of `domicile.errors`: what of the store or the files stands in the way.
        """
        began = self._host.clock.monotonic()
        spec = self._registry.find(key.cls)
        async with self._at_once:
            try:
                await self._admit(key, spec)
                early = self._read_early(key) if seen is None and create else None
                try:
                    claimed = await self._claim(key, seen, create=create, may_forward=may_forward)
                    residency = await self._open(key, spec, self._unopened.as_born(claimed), early)
                finally:
                    if early is not None:
                        early.cancel()
            except StoreUnavailable as error:
                raise NotServing(f"the placement store does not answer: {error}") from error
            except (NodeError, OSError) as error:
                self._host.log.error("activation.failed", object=str(key), id=key.id, error=str(error))
                raise Unlaid(f"the object cannot be laid: {_told(error)}") from error
        self._host.telemetry.activation_seconds.observe(self._host.clock.monotonic() - began)
        return residency

    async def land(self, key: ObjectKey, landing: Landing) -> Residency:
        """A residency that serves no one, to be released. Raises NoSuchObject when nothing is left to land."""
        spec = self._registry.find(key.cls)
        async with self._at_once:
            try:
                seen = await self._host.leases.read(key.id)
                if seen is None or not isinstance(seen.row.state, Held):
                    raise NoSuchObject(f"nobody holds {key}")
                claimed = await self._claim(key, seen, create=False, may_forward=False, drain=landing.drain)
                return await self._open(key, spec, claimed, None, landing)
            except StoreUnavailable as error:
                raise NotServing(f"the placement store does not answer: {error}") from error
            except NoQuorum as error:
                raise NoReadQuorum(str(error)) from error
            except (NodeError, OSError) as error:
                self._host.log.error("landing.failed", object=str(key), id=key.id, error=str(error))
                raise Unlaid(f"the object cannot be laid: {_told(error)}") from error

    async def claim(self, key: ObjectKey) -> Claimed:
        """The lease alone, for one that is to go whatever its bytes are. Raises NoSuchObject, NotServing."""
        try:
            return await self._claim(key, None, create=False, may_forward=False)
        except StoreUnavailable as error:
            raise NotServing(f"the placement store does not answer: {error}") from error

    def forget_class(self, project: str, cls: str) -> None:
        """Its row is new: it is registered again before the next birth."""
        self._registered.discard((project, cls))

    def _files(self, key: ObjectKey) -> Files:
        return Files(os.path.join(self._host.objects_dir, key.id[:2], key.id))

    def _read_early(self, key: ObjectKey) -> Early:
        """Of an object this node knows nothing of, the manifest is read beside the claim."""
        early = self._host.loop.create_task(register.read(self._host, key.id))
        early.add_done_callback(lambda done: done.cancelled() or done.exception())  # told to whoever awaits it
        return early

    async def _admit(self, key: ObjectKey, spec: ClassSpec) -> None:
        """The project is known and the class registered in it: what makes births here allowed (section 4)."""
        if (key.scope, key.cls) in self._registered:
            return
        if self.first_use_creates:
            await self._projects.ensure(key.scope)
        else:
            await self._projects.get(key.scope)
        await self._pins.register(key.scope, key.cls, spec.placement.name if spec.placement else None)
        self._registered.add((key.scope, key.cls))

    async def _claim(
        self, key: ObjectKey, seen: SeenLease | None, *, create: bool, may_forward: bool, drain: bool = False
    ) -> Claimed:
        if not create:
            seen = seen or await self._host.leases.read(key.id)
            if not _exists(seen):
                raise NoSuchObject(f"there is no object {key}")
        if may_forward and 0 < self._host.config.capacity < self.homed():
            await make_way(self._host, key)
        gate = self._gates.seen(key)
        if gate.gate is None or drain:
            gate = await self._gates.read(key)
        for _ in range(CLAIMS_MAX):
            self._admission().check()
            outcome = await self._try_claim(key, seen, gate, drain=drain)
            if isinstance(outcome, Claimed):
                self._host.telemetry.claims.of("won").add()
                return outcome
            self._host.telemetry.claims.of("lost").add()
            self._refused(key, outcome, drain=drain)
            if may_forward and self._host.disk.size(self._files(key).sidecar) is None:
                prefer_member(self._host, key, outcome.lease)
            if not create and not _exists(outcome.lease):
                raise NoSuchObject(f"there is no object {key}")
            seen, gate = outcome.lease, outcome.gate
        raise NotServing(f"{key}: its lease keeps changing hands")

    async def _try_claim(
        self, key: ObjectKey, seen: SeenLease | None, gate: Decision, *, drain: bool
    ) -> Claimed | Lost:
        """One claim; a lost answer is settled by reading, or by claiming again on the same rows."""
        registration = self._registration()
        if registration is None:
            raise NotServing("this node is not registered")
        born = self._birth(key)
        nonce = f"{self._host.rng.getrandbits(64):016x}"
        claim = Claim(key, registration, seen, gate, born, self._host.clock.wall_ms(), nonce, drain)
        try:
            return await self._host.leases.claim(claim)
        except StoreUnavailable as error:
            if not error.maybe:
                raise
        settled = await self._host.leases.settle(claim)
        if settled is not None:
            return settled
        again = await self._host.leases.claim(claim)  # lost: the first write may have landed meanwhile
        return again if isinstance(again, Claimed) else await self._host.leases.settle(claim) or again

    def _birth(self, key: ObjectKey) -> Birth:
        """The members a new object is born with: K live nodes by rendezvous, none while this one is alone."""
        config = self._host.config
        members = self._host.nodes.choose_members(key.id, config.object_replicas) if self._host.peers else ()
        return Birth(members, config.object_quorum)

    def _refused(self, key: ObjectKey, lost: Lost, *, drain: bool) -> None:
        """What a lost claim means for the caller, if it is not worth another try."""
        if not lost.registered:
            raise NotServing("this node lost its registration")
        if drain and lost.gate.open:
            raise NotServing(f"the gate of {key} is open: it is not to be drained")
        if not drain and not lost.gate.open:
            self.found_closed(key)
            raise self._closed(key, lost.gate.gate)
        if lost.holder is not None:
            raise NotHome(f"{key} has its home on node {lost.holder}", node=lost.holder)
        state = lost.lease.row.state if lost.lease is not None else None
        if isinstance(state, Held) and state.owner != self._host.nodes.me and self._host.nodes.get(state.owner):
            raise NotHome(f"{key} has its home on node {state.owner}", node=state.owner)
        if lost.lease is not None and isinstance(lost.lease.row.state, MovingTo):
            raise Moving("the object is moving")
        if lost.lease is not None and isinstance(lost.lease.row.state, Forwarded):
            region = lost.lease.row.state.region
            raise NotHome(f"{key} lives in region {region}", region=region)

    def _closed(self, key: ObjectKey, gate: GateRow | None) -> DomicileError:
        """No claim of the object commits here. The gate may name where it would (section 4)."""
        if gate is not None:
            if gate.to is not None and gate.to != self._host.config.region:
                return NotHome(f"{key} lives in region {gate.to}", region=gate.to)
            return Moving()
        policy = self._projects.known(key.scope)
        if policy is not None and (policy.region != self._host.config.region or policy.term > FIRST_TERM):
            return Moving()  # sent here ahead of the gate: it opens once everything is copied
        return NotServing(f"the project {key.scope} has no gate here")

    async def _open(
        self, key: ObjectKey, spec: ClassSpec, claimed: Claimed, early: Early | None, landing: Landing | None = None
    ) -> Residency:
        host = self._host
        files = self._files(key)
        self._host.failpoints.hit("activation.after-claim")
        laying = Laying(early, landing is None or landing.may_serve, lambda: self._unopened.opened(key.id))
        try:
            laid, engine = await lay_and_open(host, key, spec, claimed, files, laying)
        except NotServing as error:
            raise Unlaid(f"the object cannot be laid: {error.detail}") from error
        host.telemetry.activations.of(laid.source).add()
        if laid.source in ("own", "member", "store"):
            host.telemetry.takeovers.of(laid.source).add()
        claimed = dataclasses.replace(claimed, incarnation=laid.position.incarnation)
        residency = Residency(host, key, spec, claimed, laid, engine)
        if landing is not None:
            residency.landing = True
            refuse(residency, landing.refusal)
        try:
            residency.due.start()
        except Exception as error:  # whatever it is, the next activation may not find the connection open
            residency.end(error)
            await residency.over
            raise
        return residency


def refuse(residency: Residency, refusal: DomicileError) -> None:
    """Nobody's call runs there any more: what waits and what comes is refused so. What runs finishes; then release."""
    if residency.phase is not Phase.OVER:
        residency.phase, residency.refusal = Phase.ENDING, refusal
        residency.mailbox.close(refusal)


def _told(error: Exception) -> str:
    """What a caller is told: what is wrong with the object, by name; nothing of this machine's files."""
    if isinstance(error, BlobMissing | Corrupt | NoQuorum | OutOfDate):
        return str(error)
    return "the blob store does not answer" if isinstance(error, BlobError) else "this node's disk fails"


def _exists(seen: SeenLease | None) -> bool:
    """Whether an object is there, as far as its row can tell."""
    if seen is None:
        return False
    state = seen.row.state
    return not isinstance(state, Deleted) and not (isinstance(state, Released) and state.tag is None)


__all__ = ["Activation", "DomicileError", "Unlaid"]
