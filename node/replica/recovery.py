"""What a replica is after a crash: its files, and the journal's records above the low mark over them (section 7).

The states come first, then the files. A record that made a copy anew, or took it away, was written after its files were
synced: nothing before it is done again, since those files may have left.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from domicile.node.disk import Disk
from domicile.node.replica.copies import Copy, CopyFiles
from domicile.node.replica.fold import patch
from domicile.node.replica.handover import hand_over
from domicile.node.replica.journal import Journal
from domicile.node.replica.journal_record import Based, Extended, Folded, Record, Relabelled


@dataclass(slots=True)
class LogWrite:
    """Frames of a record, for the log's file."""

    files: CopyFiles
    object_id: bytes
    log: int
    offset: int
    frames: bytes | memoryview

    def __call__(self) -> None:
        self.files.write_log(self.object_id, self.log, self.offset, self.frames)

    def cut(self, log: int, length: int) -> None:
        """Nothing of it beyond `length`: what lies there may be of a later record, which only names it."""
        if self.log == log:
            self.frames = self.frames[: max(0, length - self.offset)]


Effects = list[Callable[[], None]]


def open_copies(disk: Disk, root: str, journal_bytes: int, rng: random.Random) -> tuple[Journal, dict[bytes, Copy]]:
    """The journal below `root`, and the copies it has to do with. Without one the directory is another copy: empty.

    Raises OSError, Corrupt.
    """
    path, above = f"{root}/journal", os.path.dirname(root)
    if Journal.exists(disk, path):
        disk.sync_many([root, above])  # its maker may have died before it did
        journal = Journal.open(disk, path)
        return journal, recover(CopyFiles(disk, root), journal)
    disk.remove_dir(root)
    disk.make_dir(root)
    journal = Journal.create(disk, path, journal_bytes, rng)
    disk.sync_many([root, above])
    return journal, {}


def recover(files: CopyFiles, journal: Journal) -> dict[bytes, Copy]:
    """The copies that have records above the low mark. Raises OSError (a full disk: later again), Corrupt."""
    copies: dict[bytes, Copy] = {}
    effects: dict[bytes, Effects] = {}
    for record in journal.replay():
        copy = copies.get(record.object_id)
        if copy is None:
            copy = copies[record.object_id] = Copy(files, record.object_id, files.load(record.object_id))
            effects[record.object_id] = _left_undone(files, copy)
        if record.place.sequence > copy.applied:
            _follow(files, copy, record, effects[record.object_id])
    for object_id, copy in copies.items():
        for effect in effects[object_id]:
            effect()
        if copy.state is not None and copy.state.handover is not None:
            hand_over(files, object_id, copy.state.handover)
        if copy.state is not None and copy.state.unfolded is not None:
            copy.folded()
    return copies


def _left_undone(files: CopyFiles, copy: Copy) -> Effects:
    state = copy.state
    if state is None or state.held is None or state.unfolded is None:
        return []
    return [partial(patch, files, copy.object_id, state.held.base, state.unfolded)]


def _follow(files: CopyFiles, copy: Copy, record: Record, effects: Effects) -> None:
    """The state behind the record, and what that means for the files."""
    change, before = record.change, copy.state
    copy.adopt(change, record.place.sequence)
    held = copy.state.held if copy.state is not None else None
    if held is None or copy.state is None or isinstance(change, Based):
        effects.clear()
    elif copy.state == before:
        return
    elif isinstance(change, Extended) and change.frames:
        effects.append(LogWrite(files, copy.object_id, held.log, change.offset, change.frames))
    elif isinstance(change, Relabelled):
        for effect in effects:
            if isinstance(effect, LogWrite):
                effect.cut(held.log, change.length)
    elif isinstance(change, Folded):
        assert copy.state.unfolded is not None
        effects.append(partial(patch, files, copy.object_id, held.base, copy.state.unfolded))
