"""The copy pass: what one region's stores hold of a project, made so in another's (PROTOCOLS section 10, MoveProject).

Three phases over the directory: *objects* and *deletions* of the source, then the *surplus* of the target, which the
source lacks. Each object's bytes come first, its manifest after them, its rows last: lease row, alarm, directory. So
the target's lease row says what was copied: a row that has the source's position and checksum needs no second look at
any bucket, and a pass over what has not changed reads rows alone.

A pass may run while the source serves (what is not released is copied as of its last landed manifest), as often as one
likes, and be broken off anywhere. The target's gate is closed while it runs: every row is written on that.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import replace as changed

from domicile.activities.copied_manifest import TermTooLowError
from domicile.activities.copy_content import ContentCopy, OvertakenError, read_register
from domicile.activities.copy_decisions import (
    Absent,
    Buried,
    Content,
    Elsewhere,
    LeftAlone,
    What,
    decide_alone,
    decide_copy,
    is_copied,
    is_surplus,
    made_deletion,
    wanted_rows,
)
from domicile.activities.object_rows import ObjectRows, copy_incidents, listed, read_rows, replace
from domicile.activities.pace import Pace
from domicile.activities.world import RegionWorld
from domicile.node.clock import Clock
from domicile.node.errors import BlobMissing, Corrupt
from domicile.placement.records import ObjectKey
from domicile.placement.store import ScanExpired
from domicile.workflows.copy_values import CopyOrder, CopyProgress

PAGE_OBJECTS = 250
LOOKS_PARALLEL = 64
OBJECTS_PARALLEL = 16
TRIES_MAX = 8
FAILING_SHOWN = 10
PHASES = ("objects", "deletions", "surplus", "done")

Tell = Callable[[CopyProgress], None]


class TargetOpenError(Exception):
    """The target takes claims of the project: nothing may be copied over what may be written there."""


class NothingToCopyError(Exception):
    """The one object that was to be copied is not there."""


class CopyPass:
    """One pass of `order`, from `source` to `target`."""

    def __init__(
        self, source: RegionWorld, target: RegionWorld, order: CopyOrder, clock: Clock, rng: random.Random
    ) -> None:
        self._source = source
        self._target = target
        self._order = order
        self._clock = clock
        self._content = ContentCopy(source.blobs, target.blobs, order.term, rng, Pace(clock, order.mb_per_sec))
        self._at_once = asyncio.Semaphore(OBJECTS_PARALLEL)
        self._alone = False

    async def run(self, progress: CopyProgress, objects_max: int, tell: Tell) -> CopyProgress:
        """Go on from `progress` until the pass is done or `objects_max` more were looked at; gives where it is then.

        `tell` is given the progress after each page. Raises StoreUnavailable, BlobUnavailable, TargetOpenError,
        TermTooLowError; an object that cannot be copied is named in `failing` and holds up no other.
        """
        until = progress.looked + objects_max
        while not progress.done and progress.looked < until:
            progress = await self._page(progress, min(PAGE_OBJECTS, until - progress.looked))
            tell(progress)
        return progress

    async def copy_object(self, key: ObjectKey, tell: Tell) -> CopyProgress:
        """One object that goes by itself, whatever its project and class do.

        Raises NothingToCopyError, BlobMissing and Corrupt too.
        """
        self._alone = True
        progress = CopyProgress(phase="done")
        (here,), (there,) = await asyncio.gather(read_rows(self._source, [key]), read_rows(self._target, [key]))
        tell(progress)
        await self._copy(here, there, progress)
        progress.bytes += self._moved()
        return progress

    async def _page(self, before: CopyProgress, limit: int) -> CopyProgress:
        progress = changed(before, failing=list(before.failing))
        try:
            keys, progress.token = await self._listed(progress, limit)
        except ScanExpired:
            progress.token = None  # the phase from its start: what is copied already is passed over
            return progress
        differing = await self._to_look_at(progress.phase, keys)
        for at in range(0, len(differing), LOOKS_PARALLEL):
            some = differing[at : at + LOOKS_PARALLEL]
            here, there = await asyncio.gather(read_rows(self._source, some), read_rows(self._target, some))
            await asyncio.gather(*(self._one(progress, *rows) for rows in zip(here, there, strict=True)))
        progress.looked += len(keys)
        progress.objects += len(keys) if progress.phase == "objects" else 0
        progress.bytes += self._moved()
        if progress.token is None:
            progress.phase = PHASES[PHASES.index(progress.phase) + 1]
        return progress

    async def _to_look_at(self, phase: str, keys: list[ObjectKey]) -> list[ObjectKey]:
        """Those of which not one row, or none at all, says that there is nothing to do."""
        if phase == "surplus":
            return [key for key, known in zip(keys, await listed(self._source, keys), strict=True) if not known]
        if not self._order.since:
            return keys
        rows = await read_rows(self._source, keys, heads=True)
        return [row.key for row in rows if not row.still(self._order.since)]

    async def _listed(self, progress: CopyProgress, limit: int) -> tuple[list[ObjectKey], str | None]:
        """A page of the phase's listing: its keys, and the token of the next."""
        region = self._target if progress.phase == "surplus" else self._source
        keys, project = region.keys, self._order.project
        deletions = progress.phase == "deletions"
        prefix = keys.deletions(project) if deletions else keys.instances(project)
        page = await region.store.scan(prefix, limit, progress.token)
        if progress.phase == PHASES[0] and not progress.version:
            progress.version = page.version
        name = keys.deletion_of if deletions else keys.instance_of
        return [name(record.key) for record in page.records], page.token

    def _moved(self) -> int:
        moved, self._content.bytes = self._content.bytes, 0
        return moved

    async def _one(self, progress: CopyProgress, here: ObjectRows, there: ObjectRows) -> None:
        async with self._at_once:
            try:
                if progress.phase == "surplus":
                    await self._remove(here, there, progress)
                else:
                    await self._copy(here, there, progress)
            except (Corrupt, BlobMissing) as error:
                if len(progress.failing) < FAILING_SHOWN:
                    progress.failing.append(f"{here.key}: {error}"[:500])

    async def _copy(self, here: ObjectRows, there: ObjectRows, progress: CopyProgress) -> None:
        """Until the target has what the source has; either may change meanwhile."""
        for attempt in range(TRIES_MAX):
            if attempt:
                await self._clock.sleep(0.02 * 2**attempt)
                (here,) = await read_rows(self._source, [here.key])
                (there,) = await read_rows(self._target, [here.key])
            try:
                if await self._tried(here, there, progress):
                    return
            except OvertakenError:
                continue
        progress.unclean += 1  # busier than a copy is fast: a later pass, or the drain, finds it still
        progress.given_up += 1

    async def _tried(self, here: ObjectRows, there: ObjectRows, progress: CopyProgress) -> bool:
        """One attempt; False: the rows in the target are others by now."""
        what: What
        if self._alone:
            what = decide_alone(here)
            if isinstance(what, Absent):
                raise NothingToCopyError(f"there is no object {here.key} in region {self._source.name}")
        else:
            what = decide_copy(here, there, self._source.name, self._target.name)
        if isinstance(what, LeftAlone):
            progress.unclean += what.unclean
            return True
        self._check_closed(there)
        if isinstance(what, Absent):
            await self._remove(here, there, progress)
            return True
        if isinstance(what, Content):
            return await self._copied(what, here, there, progress)
        wanted = wanted_rows(what, here, self._order.term)
        if wanted.stands(there):
            return True
        if isinstance(what, Buried):
            replaced = await read_register(self._target.blobs, here.key.id)
            await self._content.bury(here.key, replaced, what.epoch)
        assert isinstance(what, Buried | Elsewhere)
        if not await replace(self._target, there, wanted):
            return False
        progress.differing += 1
        return True

    async def _copied(self, what: Content, here: ObjectRows, there: ObjectRows, progress: CopyProgress) -> bool:
        released = what.released
        if released is not None and is_copied(released.position, released.checksum, here, there):
            return True
        # The target first: had its manifest been replaced after this, the put below would not go through.
        replaced = await read_register(self._target.blobs, here.key.id)
        found = await read_register(self._source.blobs, here.key.id)
        manifest = found.manifest
        incarnation = here.lease.row.incarnation if here.lease is not None else None
        if released is None and (manifest is None or manifest.deleted or manifest.incarnation != incarnation):
            progress.unclean += 1  # born, or born again, and nothing of it has landed
            return True
        if manifest is None:
            raise BlobMissing(f"its manifest is missing in region {self._source.name}")
        if released is not None and found.tag != released.tag:
            return False
        progress.unclean += released is None
        if released is None and is_copied(manifest.position, manifest.checksum, here, there):
            return True
        landed, tag = await self._content.copy(found, replaced)
        await copy_incidents(self._source, self._target, landed)
        wanted = wanted_rows(what, here, self._order.term, landed, tag)
        if not await replace(self._target, there, wanted):
            progress.unclean -= released is None
            return False
        progress.differing += 1
        return True

    async def _remove(self, here: ObjectRows, there: ObjectRows, progress: CopyProgress) -> None:
        """What the source lacks becomes a deletion, unless it is the target's own."""
        if not is_surplus(here, there):
            return
        self._check_closed(there)
        wanted = made_deletion(there, self._order.term)
        replaced = await read_register(self._target.blobs, there.key.id)
        await self._content.bury(there.key, replaced, wanted.lease.incarnation)
        if await replace(self._target, there, wanted):
            progress.differing += 1

    def _check_closed(self, there: ObjectRows) -> None:
        if there.gate.open:
            raise TargetOpenError(f"region {self._target.name} takes claims for {there.key}")


__all__: Sequence[str] = ("CopyPass", "NothingToCopyError", "TargetOpenError", "TermTooLowError")
