"""How a copy leaves a replica: for a stub, because the manifest covers it, or whole, because its node becomes home.

PROTOCOLS section 7, "Members". Either way fence and position stay behind.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from domicile.node.replica.checkpoint import Checkpoint
from domicile.node.replica.copies import Copy, CopyFiles
from domicile.node.replica.handover import hand_over, sidecar_of, sync_up_to_acked
from domicile.node.replica.journal_record import Arrived, Change, HandedOver, LetGo
from domicile.node.replica.rules import Write
from domicile.node.replica.state import Handover
from domicile.node.replica.work import LongWork
from domicile.node.replica.writer import Writer
from domicile.node.takeover.own_copy import Files
from domicile.node.wire.messages import Elsewhere, Incident, Unable
from domicile.node.workers import Workers
from domicile.placement.records import Epoch, ObjectKey, Position


class Leaving:
    """See `Replicas.let_go` and `Replicas.promote`."""

    def __init__(
        self, files: CopyFiles, workers: Workers, writer: Writer, checkpoints: Checkpoint, work: LongWork
    ) -> None:
        self._files = files
        self._workers = workers
        self._writer = writer
        self._checkpoints = checkpoints
        self._work = work

    async def let_go(self, copy: Copy, covered: Position, incidents: Sequence[Incident]) -> bool:
        """False: `covered` does not have all of it, or there is nothing. Raises OSError."""
        await self._work.be_alone(copy)
        try:
            state = copy.state
            position = state.position if state is not None else None
            if state is None or position is None or position > covered or copy.staging is not None:
                return False
            await self._work.keep_at_stake(copy, incidents, 0)
            await self._written(copy, LetGo(state.fence, position, copy.digest(position.length)))
            return True
        finally:
            self._writer.free(copy)

    async def promote(self, copy: Copy, key: ObjectKey, epoch: Epoch, files: Files) -> Position | None:
        """The position that was handed over; None: there is none, or `epoch` is fenced. Raises OSError."""
        await self._work.be_alone(copy)
        self._checkpoints.holds.add(copy)
        try:
            return await self._hand_over(copy, key, epoch, files)
        finally:
            self._writer.free(copy)

    async def _hand_over(self, copy: Copy, key: ObjectKey, epoch: Epoch, files: Files) -> Position | None:
        state = copy.state
        if state is not None and state.handover is not None and state.stub is not None:
            await self._arrive(copy, state.handover)  # an attempt before this one that the disk cut short
            return state.stub.position
        position = state.position if state is not None else None
        if state is None or position is None or epoch < state.fence:
            return None
        await self._work.finish_fold(copy)
        await self._workers.run(partial(sync_up_to_acked, self._files, copy))
        sidecar = sidecar_of(copy, key, epoch, self._files.disk.boot_id())
        await self._written(copy, HandedOver(epoch, position, copy.digest(position.length), files.directory, sidecar))
        assert copy.state is not None
        assert copy.state.handover is not None
        await self._arrive(copy, copy.state.handover)
        return position

    async def _arrive(self, copy: Copy, handover: Handover) -> None:
        await self._workers.run(partial(hand_over, self._files, copy.object_id, handover))
        await self._written(copy, Arrived())

    async def _written(self, copy: Copy, change: Change) -> None:
        done = self._writer.submit(copy, lambda _: Write(change, Elsewhere(None)), inside=True)
        self._writer.pump_soon()
        answer = await done
        if isinstance(answer, Unable):
            raise OSError(answer.why)
