"""Laying an object's file under a new claim, and proving what it may show (PROTOCOLS section 5).

Three ways lead to a file that a residency can open. A **birth** starts from the birth image. A **clean** claim finds a
release and a copy at exactly that position, and goes on in its generation without asking anyone. Everything else is a
**takeover**: read the manifest, ask its members (there are none while a node stands alone: R = 0), take the greatest
position among them, the manifest and this node's own file, and fence the manifest before anything leaves.
"""

from __future__ import annotations

import asyncio
import dataclasses
from dataclasses import dataclass
from typing import Literal

from domicile.node import manifest as manifests
from domicile.node import register
from domicile.node.chunks import manifest_key
from domicile.node.errors import BlobMissing, NodeError
from domicile.node.host import Host
from domicile.node.log import BaseShape
from domicile.node.manifest import Manifest, Stamp
from domicile.node.members import fits
from domicile.node.quorum import Members
from domicile.node.register import Conflict, Tag
from domicile.node.takeover.asking import Asked, Asking
from domicile.node.takeover.layer import Layer
from domicile.node.takeover.own_copy import Files, OwnCopy, find, find_released
from domicile.node.takeover.paging import PagedBase
from domicile.placement.claims import Claimed
from domicile.placement.incidents import IncidentRow
from domicile.placement.records import Generation, Incarnation, ObjectKey, Position, Released

LaidFrom = Literal["birth", "clean", "own", "member", "store"]


@dataclass(frozen=True, slots=True)
class Laid:
    """A file ready to be opened, and what the owner may build on it.

    `position` is in the generation the owner goes on in, which began at `start`. The next manifest put is conditioned
    on `tag`. `confirmed`: what was laid may be shown at once (step 6). `based`: the log grows from the
    base that the manifest names; if not, a rotation happened whose manifest never landed. `grew_from`: what was laid,
    where the owner began a generation there; members that hold it are relabelled. `paged`: the base, where its bytes
    have yet to come.
    """

    position: Position
    start: int
    shape: BaseShape
    manifest: Manifest
    tag: Tag
    confirmed: bool
    source: LaidFrom
    based: bool = True
    grew_from: Position | None = None
    paged: PagedBase | None = None


class NoQuorum(NodeError):
    """The project would rather wait than be served what may lack answered writes."""


class OutOfDate(NodeError):
    """The bucket or the placement store knows of a later life or a later owner than this claim."""


Early = asyncio.Task[tuple[Manifest | None, Tag]]


async def lay(
    host: Host, key: ObjectKey, claimed: Claimed, files: Files, early: Early | None, *, may_serve: bool = True
) -> Laid:
    """Lay `key`'s file for the epoch just claimed. `early`: a read of the manifest that began before the claim.

    Without a read quorum the project's policy rules; not `may_serve`: it waits, whatever the policy (NoQuorum).
    A birth's file is made when it is opened. Raises OutOfDate, Fenced, Corrupt, BlobMissing, BlobUnavailable.
    """
    return await Takeover(host, key, claimed, files, early, may_serve=may_serve).run()


def may_reopen(host: Host, claimed: Claimed) -> Released | None:
    """The release, if a copy of it on this node's disk would be all that a lay needs: see `reopened`."""
    previous = claimed.previous
    left = previous.row.state if previous is not None and previous.row.term == claimed.epoch.term else None
    return left if isinstance(left, Released) and fits(host, Members(left.members, left.quorum)) else None


def reopened(host: Host, files: Files, released: Released) -> Laid | None:
    """In a thread: the released copy laid, if it is here and its sidecar has the manifest of that release."""
    copy = find_released(host.disk, files, released) if released.tag is not None else None
    if copy is None or (landed := copy.sidecar.landed) is None or landed.tag != released.tag:
        return None
    # The sidecar stays as it is: a log that grew past it is found by its walk.
    manifest = manifests.decode(landed.manifest, files.sidecar)
    return Laid(released.position, copy.start, copy.shape, manifest, landed.tag, True, "clean")


class Takeover:
    """One lay."""

    def __init__(
        self, host: Host, key: ObjectKey, claimed: Claimed, files: Files, early: Early | None, *, may_serve: bool
    ) -> None:
        self._host = host
        self._may_serve = may_serve
        self._early = early
        self._key = key
        self._claimed = claimed
        self._epoch = claimed.epoch
        self._incarnation: Incarnation = claimed.incarnation
        self._layer = Layer(host, files)
        self._files = files

    async def run(self) -> Laid:
        previous = self._claimed.previous
        state = previous.row.state if previous is not None else None
        laid = await self._clean(state) if isinstance(state, Released) and state.tag is not None else None
        return laid if laid is not None else await self._taken()

    async def _clean(self, released: Released) -> Laid | None:
        """The released copy, if it is here: lay it, go on in its generation, ask nobody."""
        copy = await self._host.workers.run(lambda: find_released(self._host.disk, self._files, released))
        manifest = await self._manifest_of(copy, released) if copy is not None else None
        if copy is None or manifest is None:
            return None
        assert released.tag is not None
        # The sidecar stays as it is: a log that grew past it is found by its walk.
        if not fits(self._host, Members(released.members, released.quorum)):
            return await self._renamed(copy, manifest, released.tag)
        return Laid(released.position, copy.start, copy.shape, manifest, released.tag, True, "clean")

    async def _renamed(self, copy: OwnCopy, manifest: Manifest, tag: Tag) -> Laid | None:
        """The set needs a change, which only the owner's own generation can carry: begin it at the released length."""
        try:
            fenced, landed = await self._fence(manifest, tag, rename=True)
        except Conflict:
            return None
        return await self._ready(copy.position, copy.shape, fenced, landed, "clean")

    async def _manifest_of(self, copy: OwnCopy, released: Released) -> Manifest | None:
        """By the copy's sidecar; in a new term only the bucket says that the release is the last there was, since the
        row may be of an older placement store."""
        landed, previous = copy.sidecar.landed, self._claimed.previous
        same_term = previous is not None and previous.row.term == self._epoch.term
        if same_term and landed is not None and landed.tag == released.tag:
            return manifests.decode(landed.manifest, self._files.sidecar)
        manifest, tag = await register.read(self._host, self._key.id)
        return manifest if tag == released.tag else None

    async def _taken(self) -> Laid:
        """The ordinary takeover; a birth is the one that finds nothing at all."""
        while True:
            manifest, tag = await self._read()
            own = await self._own_copy()
            if own is not None and not self._agrees(own, manifest):
                own = None
            if self._claimed.created and own is None and manifest.seq == 0:
                return await self._birth(manifest, tag)
            previous = self._claimed.previous.row.state if self._claimed.previous is not None else None
            asking = Asking(self._host, manifest, self._epoch, whole=is_whole(previous, manifest, tag))
            asked = await asking.ask()
            try:
                return await self._adopt(manifest, tag, own, asked)
            except Conflict:
                continue
            except BlobMissing:
                if (await register.read(self._host, self._key.id))[1] == tag:
                    raise

    async def _read(self) -> tuple[Manifest, Tag]:
        """M of section 5: the incarnation's manifest, or the one of a birth whose first flight has not landed."""
        early, self._early = self._early, None
        found, tag = await (early or register.read(self._host, self._key.id))
        if found is not None and found.epoch > self._epoch:
            raise OutOfDate(f"object {self._key.id}: the manifest's epoch {found.epoch} exceeds {self._epoch}")
        if found is not None and found.incarnation > self._incarnation:
            found = self._adopt_life(found)
        if found is not None and found.incarnation == self._incarnation and not found.deleted:
            return found, tag
        born = self._claimed.birth
        if born is None or born.epoch is None:
            key = manifest_key(self._key.id)
            raise BlobMissing(f"object {self._key.id}: its manifest is missing, although one had landed: {key}")
        begun = self._epoch if self._claimed.created else born.epoch
        return manifests.birth(self._key, self._incarnation, begun, born), tag

    def _adopt_life(self, found: Manifest) -> Manifest:
        """A lower incarnation in the row, under an epoch that exceeds the manifest's: the placement store lost rows,
        and was given a new term. The bucket's life rules. Where that is a deletion, it is a life nobody has begun."""
        self._host.log.error(
            "takeover.later-life", object=str(self._key), row=str(self._incarnation), is_now=str(found.incarnation)
        )
        self._incarnation = found.incarnation
        return manifests.revived(found) if found.deleted else found

    async def _own_copy(self) -> OwnCopy | None:
        disk, files = self._host.disk, self._files
        if disk.size(files.sidecar) is None:
            return None
        return await self._host.workers.run(lambda: find(disk, files, self._incarnation))

    def _agrees(self, copy: OwnCopy, manifest: Manifest) -> bool:
        """Whether the own file holds all that the manifest has: what is equal in generation must be equal in bytes."""
        if copy.position < manifest.position:
            return False
        if copy.position.generation != manifest.generation:
            return True
        return copy.checksum_at(self._key.id, manifest.length) == manifest.checksum

    async def _birth(self, manifest: Manifest, tag: Tag) -> Laid:
        return Laid(manifest.position, 0, BaseShape(), manifest, tag, True, "birth")

    async def _adopt(self, manifest: Manifest, tag: Tag, own: OwnCopy | None, asked: Asked) -> Laid:
        """Steps 3 to 5: lay the greatest position, fence, cut."""
        at, shape, digest = manifest.position, BaseShape.of(manifest), manifest.checksum
        source: LaidFrom = "store"
        member = asked.greatest()
        if own is not None:
            at, shape, source = own.position, own.shape, "own"
            digest = own.checksum_at(self._key.id, at.length)
        if member is not None and member.position > at:
            at, shape, source, digest = member.position, member.shape, "member", member.checksum
        if not asked.enough:
            manifest = await self._incident(manifest, asked, at, digest)
        paged = None
        if source == "store":
            paged = await self._layer.restore(manifest, asked.with_base(shape))
        elif source == "member":
            assert member is not None
            paged = await self._layer.copy_from(member, manifest)
        try:
            fenced, landed = await self._fence(manifest, tag, rename=at == manifest.position)
            laid = await self._ready(at, shape, fenced, landed, source, paged)
        except BaseException:
            if paged is not None:
                await paged.drop()
            raise
        return dataclasses.replace(laid, based=at.generation == manifest.generation)

    async def _incident(self, manifest: Manifest, asked: Asked, served: Position, digest: bytes) -> Manifest:
        """No read quorum: what was answered may be missing. Say so before anything is served, or wait."""
        if not self._may_serve or self._host.on_incident(self._key.scope) == "wait":
            raise NoQuorum(
                f"object {self._key.id}: {len(asked.answered)} of {len(asked.members)} members answered, "
                f"{asked.needed} are needed"
            )
        key, answered = self._key, asked.positions(manifest.position)
        row = IncidentRow(
            asked.members,
            answered,
            served,
            scope=key.scope,
            cls=key.cls,
            name=key.name,
            needed=asked.needed,
            checksum=digest,
            at_ms=self._host.clock.wall_ms(),
        )
        await self._host.incidents.record(self._key.id, self._epoch, row)
        self._host.log.error("takeover.incident", object=str(self._key), epoch=str(self._epoch), served=str(served))
        return manifests.with_incidents(manifest, (*manifest.incidents, (self._epoch, served)))

    async def _ready(
        self,
        at: Position,
        shape: BaseShape,
        fenced: Manifest,
        tag: Tag,
        source: LaidFrom,
        paged: PagedBase | None = None,
    ) -> Laid:
        position = Position(self._incarnation, Generation(self._epoch, 0), at.length)
        assert isinstance(tag, str)
        if paged is None:
            await self._host.workers.run(lambda: self._layer.cut(position, shape, fenced, tag))
        else:
            self._layer.cut_log(at.length)
        confirmed = fenced.position == position
        return Laid(position, at.length, shape, fenced, tag, confirmed, source, grew_from=at, paged=paged)

    async def _fence(self, manifest: Manifest, tag: Tag, *, rename: bool) -> tuple[Manifest, str]:
        """Step 4: the fence, content unchanged, conditioned on the tag read. Raises Conflict when that is gone."""
        if manifest.generation == Generation(self._epoch, 0):
            assert isinstance(tag, str)
            return manifest, tag  # an earlier put of this very takeover, landed after its answer was given up
        self._host.failpoints.hit("takeover.before-fence")
        fenced = manifests.fenced(manifest, Stamp(self._epoch, self._host.put_id()), rename=rename)
        landed = await register.put(self._host, fenced, tag)
        self._host.failpoints.hit("takeover.after-fence")
        return fenced, landed


def is_whole(previous: object, manifest: Manifest, tag: Tag) -> bool:
    """Whether the manifest is the one that a clean release left. Then no member has more: nothing was written since.

    `previous`: the lease row's state that was claimed over. Pure.
    """
    return isinstance(previous, Released) and previous.tag == tag and previous.position == manifest.position
