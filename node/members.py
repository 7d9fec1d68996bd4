"""Which members an object has, and how the set changes (PROTOCOLS section 7, "Members").

The durable set is what the landed manifest names, or `birth` while there is none. **A manifest that changes members or
Q names the owner's own generation and covers the watermark, and from before what it carries is fixed until a manifest
of this owner has landed an answer needs the quorum among members in both.** From the moment it is sent would be too
late: a segment goes first, and what the old set answers meanwhile the manifest would not cover. Repair runs after
flights have answered, never before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from domicile.node import manifest as manifests
from domicile.node.manifest import Manifest
from domicile.node.quorum import Members

if TYPE_CHECKING:
    from domicile.node.host import Host
    from domicile.node.log import Log
    from domicile.node.replica_leg import ReplicaLeg

LOST_SECS = 3.0


class MemberSets:
    """The member sets of one residency."""

    def __init__(self, host: Host, log: Log, replicas: ReplicaLeg, durable: Members) -> None:
        self._host = host
        self._log = log
        self._replicas = replicas
        self._durable = durable
        self._sent: list[Members] = []
        self._wanted: Members | None = None
        self._lost_since: dict[str, float] = {}
        self._tell()

    @property
    def durable(self) -> Members:
        return self._durable

    @property
    def hopeful(self) -> bool:
        """Whether a quorum of members seems to be there."""
        return self._replicas.hopeful

    @property
    def waiting(self) -> bool:
        """Whether a change waits for a manifest that can carry it."""
        return self._wanted is not None and self._owns_generation

    def look(self, now: float) -> bool:
        """Once a second: whether the set needs a change now. Members lost for a while are replaced by live nodes."""
        self._note_lost(now)
        if self._wanted is not None or self._sent or not self._owns_generation:
            return False
        keep = [copy for copy in self._durable.copies if now - self._lost_since.get(copy, now) < LOST_SECS]
        wanted = desired(self._host, self._log.object_id, keep)
        if wanted == self._durable or set(wanted.copies) == set(self._durable.copies):
            return False
        if len(wanted.copies) < len(self._durable.copies):
            return False  # fewer live nodes than the set has: a smaller set would only weaken what can still come back
        self._wanted = wanted
        return True

    def begin(self) -> None:
        """A flight begins: what it will carry is fixed after this, and covers all that was answered until now."""
        if self.waiting and self._wanted is not None and self._wanted not in self._sent:
            self._sent.append(self._wanted)
            self._tell()

    def enter(self, manifest: Manifest) -> Manifest:
        """Into a manifest about to be sent, of a flight for which `begin` was called."""
        wanted = self._wanted
        if wanted is None or wanted not in self._sent or manifest.generation.epoch != manifest.epoch:
            return manifest
        return manifests.with_members(manifest, wanted.copies, wanted.quorum)

    def landed(self, manifest: Manifest) -> None:
        """A manifest of this owner stands: what it names is the durable set."""
        named = Members(manifest.members, manifest.quorum)
        if named == self._durable and not self._sent:
            return
        self._durable = named
        self._sent.clear()
        if self._wanted == named:
            self._wanted = None
        self._tell()

    @property
    def _owns_generation(self) -> bool:
        return self._log.generation.epoch == self._replicas.epoch

    def _tell(self) -> None:
        self._replicas.set_members([self._durable, *self._sent])

    def _note_lost(self, now: float) -> None:
        lagging = set(self._replicas.lagging())
        self._lost_since = {copy: self._lost_since.get(copy, now) for copy in lagging}


def desired(host: Host, object_id: str, keep: list[str]) -> Members:
    """K live members by rendezvous, those of `keep` first, and the configured Q."""
    config = host.config
    return Members(host.nodes.choose_members(object_id, config.object_replicas, keep), config.object_quorum)


def fits(host: Host, members: Members) -> bool:
    """Whether a residency here may go on with this set: nobody in it is this node or gone, and it is as large as it can
    be."""
    if host.peers is None:  # as at birth: alone it has no members
        return not members.copies
    wanted = desired(host, "", list(members.copies))
    return set(wanted.copies) == set(members.copies)
