"""Step 2 of a takeover: ask the members, raising their fences, and wait for a read quorum (PROTOCOLS section 5).

An answer is a position, a stub that proves the copy was covered by the manifest, or that the copy holds nothing and
never did, as one that was named a moment ago. A wiped directory is another copy: it never answers for what it lost.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from domicile.node.errors import Fenced, PeerBusy, PeerGone
from domicile.node.host import Host
from domicile.node.log import BaseShape
from domicile.node.manifest import Manifest
from domicile.node.quorum import Members, read_quorum
from domicile.node.wire.messages import Fence, FenceAnswer
from domicile.placement.records import Epoch, Position

SHADOW_SECS = 0.05
AGAIN_SECS = 0.1


@dataclass(frozen=True, slots=True)
class MemberCopy:
    """A member's copy, as it answered: its position, the checksum there, and the base its log grows from."""

    copy_id: str
    position: Position
    checksum: bytes
    shape: BaseShape


@dataclass(slots=True)
class Asked:
    """What the members said, by copy id; `enough`: a read quorum answered, or none is needed."""

    members: tuple[str, ...]
    needed: int
    answered: dict[str, FenceAnswer] = field(default_factory=dict)

    @property
    def enough(self) -> bool:
        return len(self.answered) >= self.needed

    def greatest(self) -> MemberCopy | None:
        """The copy with the greatest position; stubs are no copies."""
        return max(self._copies(), key=lambda copy: (copy.position, copy.copy_id), default=None)

    def with_base(self, shape: BaseShape) -> MemberCopy | None:
        """A copy that has this base."""
        return next((copy for copy in self._copies() if copy.shape == shape), None)

    def _copies(self) -> list[MemberCopy]:
        return [
            MemberCopy(copy, answer.position, answer.checksum, BaseShape(answer.hashes, answer.size))
            for copy, answer in self.answered.items()
            if answer.position is not None and not answer.stub
        ]

    def positions(self, none: Position) -> tuple[tuple[str, Position], ...]:
        """For an incident's record; `none`: where a member stands that has nothing (of a birth)."""
        return tuple((copy, answer.position or none) for copy, answer in sorted(self.answered.items()))


class Asking:
    """Asks one object's members under one epoch. `whole`: no member can have more than the manifest."""

    def __init__(self, host: Host, manifest: Manifest, epoch: Epoch, *, whole: bool = False) -> None:
        self._whole = whole
        self._host = host
        self._manifest = manifest
        self._fence = Fence(bytes.fromhex(manifest.object_id), manifest.incarnation, epoch)
        self._members = Members(manifest.members, manifest.quorum)

    async def ask(self) -> Asked:
        """Waits for the quorum up to `OBJECT_TAKEOVER_WAIT_MS`; where none is needed, 50 ms. Raises Fenced."""
        asked = Asked(self._members.copies, 0 if self._whole else read_quorum(self._members))
        if not asked.members:
            return asked
        wait = self._host.config.object_takeover_wait_ms / 1000 if asked.needed else SHADOW_SECS
        tasks = [self._host.loop.create_task(self._ask_one(copy, asked)) for copy in asked.members]
        until = self._host.clock.monotonic() + wait
        try:
            while not self._satisfied(asked) and (left := until - self._host.clock.monotonic()) > 0:
                running = [task for task in tasks if not task.done()]
                if not running:
                    break
                done, _ = await asyncio.wait(running, timeout=left, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
        finally:
            for task in tasks:
                task.cancel()
        return asked

    def _satisfied(self, asked: Asked) -> bool:
        if not asked.needed:
            return len(asked.answered) == len(asked.members)
        return asked.enough

    async def _ask_one(self, copy: str, asked: Asked) -> None:
        """Until it answers: a node that restarts, or whose row appears late, is asked again."""
        while True:
            answer = await self._heard(copy)
            if answer is not None and answer.fenced is not None:
                raise Fenced(f"object {self._manifest.object_id}: member {copy} has seen epoch {answer.fenced}")
            if answer is not None and counts(answer, copy, self._manifest):
                asked.answered[copy] = answer
                return
            await self._host.clock.sleep(self._host.jitter(AGAIN_SECS))

    async def _heard(self, copy: str) -> FenceAnswer | None:
        replicas, peers = self._host.replicas, self._host.peers
        if replicas is not None and copy == replicas.copy_id:
            return await replicas.fence(self._fence)
        address = self._host.nodes.address_of(copy)
        if address is None or peers is None:
            return None
        try:
            return await peers.fence(address, self._fence, self._host.config.object_takeover_wait_ms / 1000)
        except (PeerGone, PeerBusy):
            return None


def counts(answer: FenceAnswer, copy: str, manifest: Manifest) -> bool:
    """Whether this is an answer of the member `copy` at all (section 5, step 2; section 7, "stub"). Pure.

    One that holds nothing and never held anything was in no quorum since the manifest names it. That it never did is
    sure: what a copy lets go leaves a stub, and a directory that was wiped is another copy.
    """
    if answer.copy_id != copy:
        return False
    if answer.stub:
        return answer.position is not None and answer.position <= manifest.position
    return True
