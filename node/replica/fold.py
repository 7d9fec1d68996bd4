"""A replica's part in a rotation: its own log folded into its own base, in pure Python (PROTOCOLS section 7).

First everything is computed and compared with the owner's hashes; then one record says that it is so; then the pages
are written. They can be written again after a crash at any byte, because log and base lie there until that is over.
"""

from __future__ import annotations

from blake3 import blake3

from domicile.node.chunks import chunks_of
from domicile.node.replica.copies import CopyFiles
from domicile.node.replica.journal_record import BaseFile
from domicile.node.replica.state import Held, Unfolded
from domicile.node.sqlite import wal
from domicile.node.sqlite.birth import IMAGE
from domicile.node.sqlite.wal import CHUNK_BYTES, PAGE_BYTES
from domicile.node.wire.messages import Fold

_PAGES_A_CHUNK = CHUNK_BYTES // PAGE_BYTES


def verify(files: CopyFiles, held: Held, message: Fold, number: int) -> BaseFile | None:
    """The folded base if it is the owner's, chunk by chunk; None if it is not. `number` is for a base's first file."""
    log = files.read_log(message.object_id, held, 0, held.length)
    before = held.base
    old_size = before.size or len(IMAGE)
    dirty = wal.dirty_chunks(log, old_size) if log else wal.Dirty(frozenset(), old_size // PAGE_BYTES)
    if message.size != dirty.pages * PAGE_BYTES or len(message.hashes) != chunks_of(message.size):
        return None
    check = set(message.dirty) | dirty.chunks if before.hashes else set(range(len(message.hashes)))
    pages = _pages_by_chunk(log)
    for index, digest in enumerate(message.hashes):
        if index in check:
            data = _folded_chunk(files, message, before, log, pages.get(index, {}), index)
            if blake3(data).digest() != digest:
                return None
        elif before.hashes[index] != digest:
            return None
    return BaseFile(message.hashes, message.size, before.file or number)


def patch(files: CopyFiles, object_id: bytes, base: BaseFile, unfolded: Unfolded) -> None:
    """Write the log's pages into the base and sync it. The same again does no harm. Raises OSError."""
    disk, path = files.disk, files.path(object_id, base.file)
    log = disk.read_at(files.path(object_id, unfolded.log), 0, unfolded.length) if unfolded.length else b""
    if len(log) < unfolded.length:
        raise OSError(f"{files.path(object_id, unfolded.log)} is shorter than what is to be folded")
    if unfolded.birth:
        disk.make_dir(files.directory(object_id))
        disk.write(path, IMAGE, sync=False)
    disk.truncate(path, base.size, sync=False)
    frames = wal.last_frames(log)
    for first, count in _runs(sorted(page for page in frames if page * PAGE_BYTES <= base.size)):
        data = b"".join(log[frames[page] : frames[page] + PAGE_BYTES] for page in range(first, first + count))
        disk.write_at(path, (first - 1) * PAGE_BYTES, data)
    disk.sync(path)


def _folded_chunk(
    files: CopyFiles, message: Fold, before: BaseFile, log: bytes, pages: dict[int, int], index: int
) -> bytes:
    length = min(CHUNK_BYTES, message.size - index * CHUNK_BYTES)
    chunk = bytearray(files.read_chunk(message.object_id, before, index)[:length])
    old_end = (before.size or len(IMAGE)) - index * CHUNK_BYTES
    del chunk[max(0, old_end) :]
    chunk.extend(bytes(length - len(chunk)))
    for page, at in pages.items():
        offset = (page - 1) % _PAGES_A_CHUNK * PAGE_BYTES
        if offset < length:
            chunk[offset : offset + PAGE_BYTES] = log[at : at + PAGE_BYTES]
    return bytes(chunk)


def _pages_by_chunk(log: bytes) -> dict[int, dict[int, int]]:
    found: dict[int, dict[int, int]] = {}
    for page, at in wal.last_frames(log).items() if log else ():
        found.setdefault((page - 1) // _PAGES_A_CHUNK, {})[page] = at
    return found


def _runs(pages: list[int]) -> list[tuple[int, int]]:
    """Pages, sorted, as (first, how many) of each run; at most a chunk long."""
    runs: list[tuple[int, int]] = []
    for page in pages:
        if runs and runs[-1][0] + runs[-1][1] == page and runs[-1][1] < _PAGES_A_CHUNK:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((page, 1))
    return runs
