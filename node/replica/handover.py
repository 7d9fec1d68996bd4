"""What leaves a replica's directory whole: files for a node that becomes home, and what an incident may want back.

PROTOCOLS section 7, "Members". Both are safe to do again after a crash at any point.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from domicile.node import sidecar as sidecars
from domicile.node.chunks import ChunkRef
from domicile.node.replica.copies import Copy, CopyFiles
from domicile.node.replica.state import Handover, Meta, State, encode_meta
from domicile.node.sidecar import Laid, Sidecar
from domicile.node.sqlite.birth import IMAGE
from domicile.node.sqlite.wal import CHUNK_BYTES
from domicile.node.takeover.own_copy import Files
from domicile.placement.records import Epoch, ObjectKey


def sidecar_of(copy: Copy, key: ObjectKey, epoch: Epoch, boot_id: str) -> bytes:
    """What will lie beside the files in the object's own directory, so that a lay finds them there."""
    assert copy.state is not None
    held = copy.state.held
    assert held is not None
    return sidecars.encode(
        Sidecar(
            object_id=key.id,
            scope=key.scope,
            cls=key.cls,
            name=key.name,
            incarnation=copy.state.incarnation,
            generation=held.generation,
            start=held.start,
            length=held.committed,
            checksum=copy.digest(held.committed),
            epoch=epoch,
            boot_id=boot_id,
            state=Laid(),
            base=tuple(ChunkRef(digest, held.generation) for digest in held.base.hashes),
            base_size=held.base.size,
        )
    )


def sync_up_to_acked(files: CopyFiles, copy: Copy) -> None:
    """What is acked is in the journal or in these files; from here on it is in these files. Raises OSError."""
    assert copy.state is not None
    held = copy.state.held
    assert held is not None
    names = [number for number in (held.base.file, held.log) if number]
    files.disk.sync_many([*(files.path(copy.object_id, number) for number in names), files.directory(copy.object_id)])


def hand_over(files: CopyFiles, object_id: bytes, handover: Handover) -> None:
    """Move the files; the sidecar last. Nobody else touches that directory until this is over. Raises OSError."""
    disk, to = files.disk, Files(handover.directory)
    disk.make_dir(handover.directory)
    disk.remove(to.sidecar)
    disk.sync(handover.directory)
    base, log = files.path(object_id, handover.base), files.path(object_id, handover.log)
    if handover.base == 0:
        disk.write(to.base, IMAGE, sync=False)
    elif disk.size(base) is not None:
        disk.rename(base, to.base)
    if handover.length == 0:
        disk.write(to.log, b"", sync=False)
    elif disk.size(log) is not None:
        disk.rename(log, to.log)
    disk.truncate(to.log, handover.length, sync=True)
    disk.sync_many([to.base, to.log, handover.directory, os.path.dirname(handover.directory)])
    disk.replace(to.sidecar, handover.sidecar, sync=True)


def keep_lost(files: CopyFiles, lost_dir: str, object_id: bytes, state: State, epochs: Sequence[Epoch]) -> None:
    """Copy base, log and state to `lost/<object>/<epoch>`, synced, `meta` last. Raises OSError."""
    disk, held = files.disk, state.held
    assert held is not None
    for epoch in epochs:
        directory = f"{lost_dir}/{object_id.hex()}/{epoch}"
        if disk.size(f"{directory}/meta") is not None:
            continue
        disk.make_dir(directory)
        for index in range(len(held.base.hashes) or 1):
            data = files.read_chunk(object_id, held.base, index)
            disk.write_at(f"{directory}/db", index * CHUNK_BYTES, data)
        disk.write(f"{directory}/db-wal", files.read_log(object_id, held, 0, held.committed), sync=False)
        disk.sync_many([f"{directory}/db", f"{directory}/db-wal", directory, os.path.dirname(directory), lost_dir])
        disk.replace(f"{directory}/meta", encode_meta(Meta(object_id, 0, state)), sync=True)
