"""Deleting an object: one conditional write is the moment, everything after it is tidying (PROTOCOLS section 4)."""

from __future__ import annotations

from domicile.errors import DomicileError, NoSuchObject, NotServing, OutcomeUnknown, StaleIncarnation
from domicile.node import manifest as manifests
from domicile.node import register
from domicile.node.activation import Unlaid
from domicile.node.errors import Ended, Fenced, NodeError
from domicile.node.host import Host
from domicile.node.manifest import Manifest, Stamp
from domicile.node.register import Conflict, Tag
from domicile.node.residency import Phase, Residency
from domicile.node.residents import Residents
from domicile.node.wire.messages import Dropped
from domicile.placement.claims import SeenLease, burials, buried
from domicile.placement.leases import Gone, Overtaken
from domicile.placement.records import Deleted, Epoch, Incarnation, ObjectKey, next_incarnation
from domicile.placement.store import StoreUnavailable

TRIES_MAX = 3
TOMBSTONE_TRIES = 5


class Deletion:
    """Deletes objects whose home is, or can be, here."""

    def __init__(self, host: Host, residents: Residents) -> None:
        self._host = host
        self._residents = residents

    async def delete(self, key: ObjectKey, if_match: Incarnation | None, idempotency_key: str | None) -> Epoch:
        """Gives the tombstone's epoch: the incarnation of the next life.

        A late repeat under the same idempotency key gives it again, and leaves the next life alone. Raises
        NoSuchObject, StaleIncarnation, OutcomeUnknown, NotServing.
        """
        unsure: list[Ended] = []
        try:
            return await self._decided(key, if_match, idempotency_key, unsure)
        except DomicileError as error:
            if unsure and error.outcome == "not_run":  # an attempt before may have
                raise OutcomeUnknown("the object may have been deleted, and another life has begun") from error
            raise

    async def _decided(
        self, key: ObjectKey, if_match: Incarnation | None, idempotency_key: str | None, unsure: list[Ended]
    ) -> Epoch:
        """The same, for the last attempt alone; `unsure` gets those that may have deleted the object."""
        for _ in range(TRIES_MAX):
            try:
                residency = await self._residents.enter(key, create=False)
            except NoSuchObject:
                if (gone := buried(burials(await self._read(key)), idempotency_key)) is not None:
                    return gone
                raise
            except Unlaid:  # waking by claim without lay: what cannot be read can still be deleted
                if (gone := await self._delete_unlaid(key, if_match, idempotency_key)) is not None:
                    return gone
                continue
            if (gone := buried(residency.claimed.burials, idempotency_key)) is not None:
                return gone
            if if_match is not None and if_match != residency.incarnation:
                raise StaleIncarnation(f"the object is in incarnation {residency.incarnation}")
            try:
                async with residency.mailbox.alone():
                    return await self._delete(residency, idempotency_key)
            except _Unsure as ended:
                unsure.append(ended)
            except Ended:
                continue
        raise NotServing(f"{key} changed its home while it was to be deleted")

    async def _delete_unlaid(
        self, key: ObjectKey, if_match: Incarnation | None, idempotency_key: str | None
    ) -> Epoch | None:
        """Delete by the lease row alone; None when another claim came between."""
        claimed = await self._residents.claim(key)
        if if_match is not None and if_match != claimed.incarnation:
            raise StaleIncarnation(f"the object is in incarnation {claimed.incarnation}")
        try:
            outcome = await self._host.leases.delete(claimed, await self._host.mirror.read(key.id), idempotency_key)
        except StoreUnavailable as error:
            if not error.maybe:
                raise NotServing(f"the placement store does not answer: {error}") from error
            raise OutcomeUnknown("the placement store gave no answer to the deletion") from error
        if not isinstance(outcome, Gone):
            return None
        self._forget(key, claimed.incarnation)
        self._host.loop.create_task(self._bury_unread(key, outcome.epoch))
        return outcome.epoch

    async def _bury_unread(self, key: ObjectKey, epoch: Epoch) -> None:
        try:
            manifest, tag = await register.read(self._host, key.id)
        except NodeError as error:
            self._host.log.warning("delete.tombstone", object=key.id, error=str(error))
            return
        if manifest is not None and manifest.incarnation < epoch:
            await self._bury(manifest, tag, epoch)

    async def _read(self, key: ObjectKey) -> SeenLease | None:
        try:
            return await self._host.leases.read(key.id)
        except StoreUnavailable as error:
            raise NotServing(f"the placement store does not answer: {error}") from error

    async def _delete(self, residency: Residency, idempotency_key: str | None) -> Epoch:
        """The object stands still."""
        if residency.leg.manifest.seq == 0 and not residency.log.length:
            raise NoSuchObject(f"there is no object {residency.key}")
        try:
            mirror, _ = await residency.due.released_row()
        except StoreUnavailable as error:
            raise NotServing(f"the placement store does not answer: {error}") from error
        sent = False
        for _ in range(TRIES_MAX):
            outcome: Gone | Overtaken | None
            self._host.failpoints.hit("delete.before-row")
            try:
                outcome = await self._host.leases.delete(residency.claimed, mirror, idempotency_key)
            except StoreUnavailable as error:
                sent = sent or error.maybe
                if not sent:
                    raise NotServing(f"the placement store does not answer: {error}") from error
                outcome = await self._settle(residency, idempotency_key)
            if sent and isinstance(outcome, Overtaken) and outcome.lease is not None:
                # Only the holder deletes on its own claim's version: an earlier attempt landed late.
                outcome = _deleted_by(outcome.lease, residency, idempotency_key) or outcome
            if isinstance(outcome, Gone):
                self._gone(residency, outcome.epoch)
                self._host.failpoints.hit("delete.after-row")
                return outcome.epoch
            if isinstance(outcome, Overtaken):
                if outcome.lease is None or outcome.lease.version != residency.claimed.version:
                    residency.end(Ended("its lease has another owner"))
                    if sent and idempotency_key is None:  # with a key the next try finds it among the burials
                        raise OutcomeUnknown("the object may have been deleted, and another life has begun")
                    raise (_Unsure if sent else Ended)("its lease has another owner")
                mirror = outcome.alarm
        # It may yet land, so nothing may be written on top of it: the next claim changes the row it is conditioned on.
        residency.end(Ended("its deletion may have happened"))
        raise OutcomeUnknown("the placement store gave no answer to the deletion")

    async def _settle(self, residency: Residency, idempotency_key: str | None) -> Gone | None:
        """The answer was lost. None: it may still land; the same write is sent again, and only one can commit."""
        try:
            row = await self._host.leases.read(residency.key.id)
        except StoreUnavailable:
            return None
        return None if row is None else _deleted_by(row, residency, idempotency_key)

    def _drop_copies(self, manifest: Manifest, epoch: Epoch) -> None:
        """Tell the members that live: copies, stubs and fences of before the next life go."""
        peers = self._host.peers
        for copy in manifest.members if peers is not None else ():
            address = self._host.nodes.address_of(copy)
            if peers is not None and address is not None:
                dropped = Dropped(bytes.fromhex(manifest.object_id), epoch)
                task = self._host.loop.create_task(peers.drop(address, dropped))
                task.add_done_callback(lambda done: done.cancelled() or done.exception())  # a member told is a courtesy

    def _gone(self, residency: Residency, epoch: Epoch) -> None:
        manifest, tag = residency.leg.manifest, residency.leg.tag
        self._drop_copies(manifest, epoch)
        if residency.phase is not Phase.OVER:  # else its files may be a later life's by now
            residency.phase = Phase.ENDING
            self._forget(residency.key, residency.incarnation)
            self._host.loop.create_task(residency.close_deleted())
        if isinstance(tag, str):
            self._host.loop.create_task(self._bury(manifest, tag, epoch))

    def _forget(self, key: ObjectKey, incarnation: Incarnation) -> None:
        """What this node remembers of the object is of its last life."""
        self._residents.forget_row(key.id)
        try:
            self._host.alarm_index.note(key, incarnation, None)
        except OSError as error:  # at boot it is offered once more, and is a ghost
            self._host.log.warning("alarm.index", error=str(error))

    async def _bury(self, manifest: Manifest, tag: Tag, epoch: Epoch) -> None:
        """The tombstone manifest. If it never lands, the next life's claim voids the old manifest by incarnation."""
        stale = False
        for attempt in range(TOMBSTONE_TRIES):
            try:
                if stale:
                    found, tag = await register.read(self._host, manifest.object_id)
                    if found is None or found.incarnation >= epoch:
                        return
                    manifest, stale = found, False
                stamp = Stamp(epoch, self._host.put_id())
                self._host.failpoints.hit("delete.before-tombstone")
                await register.put(self._host, manifests.tombstone(manifest, stamp, epoch), tag)
                self._host.failpoints.hit("delete.after-tombstone")
                self._host.untidy(manifest.object_id)
                return
            except Conflict:
                stale = True
            except Fenced:
                return  # the next life has a manifest of its own
            except NodeError as error:
                self._host.log.warning("delete.tombstone", object=manifest.object_id, error=str(error))
                await self._host.clock.sleep(self._host.jitter(0.1 * 2**attempt))


class _Unsure(Ended):
    """The residency is over, and the object may have been deleted."""


def _deleted_by(row: SeenLease, residency: Residency, idempotency_key: str | None) -> Gone | None:
    """The row as this residency's own deletion left it, or None."""
    state = row.row.state
    if row.version <= residency.claimed.version or not isinstance(state, Deleted) or state.key != idempotency_key:
        return None
    return Gone(next_incarnation(row.row.term, row.row.incarnation, row.version))
