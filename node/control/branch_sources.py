"""Where a lost branch may lie on this node, and reading it (PROTOCOLS section 10, "RecoverIncident").

In `lost/`, where a replica put it before a newer owner's messages would have cut it; among the replica's copies, while
nobody has spoken to it; in the object's own directory, where an owner that was killed left it. Of all of them only what
owners before the incident's takeover wrote, above what that takeover served, is a branch.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from domicile.errors import NotServing
from domicile.node.branches import Branch, shape_of, verified
from domicile.node.control.incident_messages import BranchAt, FindBranches, Source, StoreBranch
from domicile.node.errors import BlobMissing, Corrupt
from domicile.node.host import Host
from domicile.node.log import BaseShape
from domicile.node.replica.replicas import Replicas
from domicile.node.replica.state import State, decode_meta
from domicile.node.sqlite import wal
from domicile.node.sqlite.birth import IMAGE
from domicile.node.takeover.own_copy import Files, OwnCopy, find
from domicile.placement.records import Epoch, Position


class BranchSources:
    """`replicas`: this node's copies, if it keeps any. `asleep`: whether an object is neither awake here nor waking."""

    def __init__(self, host: Host, replicas: Replicas | None, asleep: Callable[[str], bool]) -> None:
        self._host = host
        self._replicas = replicas
        self._asleep = asleep

    async def find(self, asked: FindBranches) -> tuple[BranchAt, ...]:
        """Every branch here, the greatest first."""
        here: dict[Source, Position | None] = {
            "lost": self._position_of(self._lost_state(asked.object_id, asked.epoch)),
            "copy": self._position_of(self._copy_state(asked.object_id)),
            "own": await self._own_position(asked),
        }
        found = [
            BranchAt(source, position)
            for source, position in here.items()
            if position is not None and is_branch(position, asked.epoch, asked.served)
        ]
        return tuple(sorted(found, key=lambda branch: branch.position, reverse=True))

    def heard(self, asked: FindBranches) -> bool:
        """Whether nothing that this member ever acknowledged is missing from what `find` says and what was served."""
        if self._lost_state(asked.object_id, asked.epoch) is not None:
            return True
        state = self._copy_state(asked.object_id)
        stub = state.stub if state is not None else None
        if state is None or state.held is not None or stub is None:
            return True  # all it has, or it never had anything: a copy that was let go leaves a stub
        return stub.position <= asked.served or stub.position.generation.epoch >= asked.epoch

    async def read(self, asked: StoreBranch) -> Branch:
        """All of it, verified. Raises BlobMissing when it is no longer there, Corrupt, NotServing (try again)."""
        reading = {"lost": self._read_lost, "copy": self._read_copy, "own": self._read_own}[asked.source]
        try:
            return await reading(asked)
        except OSError as error:
            raise BlobMissing(f"object {asked.object_id}: {error}") from error

    def forget(self, object_id: str, epoch: Epoch) -> None:
        """Remove what `lost/` keeps for one incident; blocking. Raises OSError."""
        self._host.disk.remove_dir(self._lost_dir(object_id, epoch))

    # lost/

    def _lost_dir(self, object_id: str, epoch: Epoch) -> str:
        return os.path.join(self._host.config.data, "lost", object_id, str(epoch))

    def _lost_state(self, object_id: str, epoch: Epoch) -> State | None:
        try:
            meta = decode_meta(self._host.disk.read(f"{self._lost_dir(object_id, epoch)}/meta"))
        except FileNotFoundError:
            return None
        return meta.state if meta is not None else None

    async def _read_lost(self, asked: StoreBranch) -> Branch:
        state = self._lost_state(asked.object_id, asked.epoch)
        position = self._position_of(state)
        if state is None or state.held is None or position is None:
            raise _gone(asked)
        disk, directory = self._host.disk, self._lost_dir(asked.object_id, asked.epoch)
        base = await self._host.workers.run(lambda: disk.read(f"{directory}/db"))
        log = await self._host.workers.run(lambda: disk.read(f"{directory}/db-wal"))
        shape = shape_of(base)
        whole = shape.hashes == state.held.base.hashes and wal.walk(log).length >= position.length
        if not whole:
            raise Corrupt(f"object {asked.object_id}: {directory} does not hold what it was made of")
        return Branch(asked.object_id, position, base, log[: position.length])

    # The replica's copies.

    def _copy_state(self, object_id: str) -> State | None:
        return self._replicas.state_of(object_id) if self._replicas is not None else None

    def _position_of(self, state: State | None) -> Position | None:
        return state.position if state is not None else None

    async def _read_copy(self, asked: StoreBranch) -> Branch:
        state = self._copy_state(asked.object_id)
        view = self._replicas.copy(asked.object_id) if self._replicas is not None else None
        if view is None or state is None or state.held is None:
            raise NotServing("the copy is being changed") if state is not None else _gone(asked)
        try:
            shape, position = BaseShape(state.held.base.hashes, state.held.base.size), view.position
            if not is_branch(position, asked.epoch, asked.served):
                raise _gone(asked)
            digest, path = view.checksum(position.length), view.base
            log = await self._host.workers.run(lambda: view.log(position.length))
            base = path if isinstance(path, bytes) else await self._host.workers.run(lambda: self._host.disk.read(path))
        finally:
            view.close()
        return verified(Branch(asked.object_id, position, base, log), shape, digest)

    # What an owner left.

    def _files(self, object_id: str) -> Files:
        return Files(os.path.join(self._host.objects_dir, object_id[:2], object_id))

    async def _own(self, object_id: str, served: Position) -> OwnCopy | None:
        files = self._files(object_id)
        if not self._asleep(object_id) or self._host.disk.size(files.sidecar) is None:
            return None
        return await self._host.workers.run(lambda: find(self._host.disk, files, served.incarnation))

    async def _own_position(self, asked: FindBranches) -> Position | None:
        own = await self._own(asked.object_id, asked.served)
        return own.position if own is not None else None

    async def _read_own(self, asked: StoreBranch) -> Branch:
        own = await self._own(asked.object_id, asked.served)
        if own is None or not is_branch(own.position, asked.epoch, asked.served):
            raise _gone(asked)
        files = self._files(asked.object_id)
        base = await self._host.workers.run(lambda: self._host.disk.read(files.base))
        size = own.shape.size or len(IMAGE)
        digest = own.checksum_at(asked.object_id, own.position.length)
        return verified(Branch(asked.object_id, own.position, base[:size], own.log), own.shape, digest)


def is_branch(position: Position, epoch: Epoch, served: Position) -> bool:
    """Whether a copy has what was written before the takeover `epoch` and is missing from what that served."""
    same_life = position.incarnation == served.incarnation
    return same_life and position.generation.epoch < epoch and position > served


def _gone(asked: StoreBranch) -> BlobMissing:
    return BlobMissing(f"object {asked.object_id}: no branch of epoch {asked.epoch} is left in {asked.source}")
