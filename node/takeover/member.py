"""One member as the owner sees it, and what the owner says to it (PROTOCOLS section 7, "Replica leg")."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from enum import Enum

from domicile.node.log import Log
from domicile.node.manifest import Incident
from domicile.node.wire.messages import Append, Fold, NewBase, Relabel
from domicile.placement.records import Epoch, Generation, Position

RETRY_FIRST_SECS = 0.05


class Step(Enum):
    """What is known of a member's copy."""

    UNKNOWN = 1
    IN_STEP = 2
    STAGING = 3


class Member:
    """One member as the owner sees it. `sent` is the length it was sent up to in the owner's present generation."""

    def __init__(self, copy_id: str) -> None:
        self.copy_id = copy_id
        self.step = Step.UNKNOWN
        self.sent = 0
        self.busy = 0
        self.backoff = RETRY_FIRST_SECS
        self.down = False
        self.helped = 0
        self.timer: asyncio.TimerHandle | None = None


class Speech:
    """Makes one residency's messages, all with its object, incarnation, epoch and open incidents."""

    def __init__(self, log: Log, epoch: Epoch) -> None:
        self._log = log
        self._object = bytes.fromhex(log.object_id)
        self._epoch = epoch
        self.incidents: tuple[Incident, ...] = ()
        self._said: Append | None = None

    def append(self, generation: Generation, start: int, end: int) -> Append:
        """Log bytes [start, end), as a part of `generation`'s log. An empty one asks what the copy has.

        Members in step are all told the same: until `fall_silent` it is made once.
        """
        said = self._said
        if (
            said is not None
            and said.offset == start
            and len(said.frames) == end - start
            and said.generation == generation
            and said.incidents is self.incidents
        ):
            return said
        log = self._log
        checksum = log.checksum(start)
        frames = log.frames(start, end) if end > start else b""
        self._said = Append(
            self._object, log.incarnation, self._epoch, generation, start, checksum, frames, self.incidents
        )
        return self._said

    def fall_silent(self) -> None:
        """All members were told: keep nothing of it."""
        self._said = None

    def relabel(self, generation: Generation) -> Relabel:
        """A copy of `generation` that holds the present generation's start becomes a copy of it."""
        log = self._log
        return Relabel(
            self._object,
            log.incarnation,
            self._epoch,
            generation,
            log.start,
            log.checksum(log.start),
            log.generation,
            self.incidents,
        )

    def fold(self, before: Position, checksum: bytes, dirty: Sequence[int]) -> Fold:
        """A copy exactly at `before` folds its log into its base."""
        log = self._log
        return Fold(
            self._object,
            log.incarnation,
            self._epoch,
            before.generation,
            before.length,
            checksum,
            log.generation,
            log.base.hashes,
            log.base.size,
            tuple(dirty),
            self.incidents,
        )

    def new_base(self) -> NewBase:
        """The present generation from its start, to be staged and pulled."""
        log = self._log
        return NewBase(
            self._object,
            log.incarnation,
            self._epoch,
            log.generation,
            log.start,
            log.checksum(log.start),
            log.base.hashes,
            log.base.size,
            self.incidents,
        )
