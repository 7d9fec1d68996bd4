"""SQLite's write-ahead log: bytes in, values out.

A log is a 32-byte header and frames of 24 + page size bytes. It is read up to its last *whole commit*: the last frame
that carries a database size, with every frame up to it under the header's salts and SQLite's running checksum. What
lies behind (a torn tail, a spilled rollback) does not exist. Broken bytes are a shorter log, never an exception.
`LOG_HEADER` and lengths are in bytes; an empty log has length 0; page numbers begin at 1.
"""

from __future__ import annotations

from struct import Struct, iter_unpack, unpack
from typing import NamedTuple

from domicile.node.sqlite.walsum import checksum_frames, checksum_pairs

PAGE_BYTES = 4096
LOG_HEADER = 32
FRAME_HEADER = 24
CHUNK_BYTES = 1 << 20

_MAGIC_LITTLE, _MAGIC_BIG = 0x377F0682, 0x377F0683
_FORMAT = 3007000
_HEADER = Struct(">IIII8sII")


class Header(NamedTuple):
    """What the first 32 bytes say. `big`: checksums read the log as big-endian words."""

    page_size: int
    sequence: int
    salts: bytes
    checksum: tuple[int, int]
    big: bool


class Walk(NamedTuple):
    """The committed part of a log: its length in bytes, the database's size in pages at its end, and its frames."""

    length: int
    pages: int
    frames: int


class Dirty(NamedTuple):
    """Which 1 MiB chunks of the database a log changes, and the database's size in pages behind it."""

    chunks: frozenset[int]
    pages: int


NOTHING = Walk(0, 0, 0)


def header(log: bytes) -> Header | None:
    """The header, or None when it is short, of another format, or fails its checksum."""
    if len(log) < LOG_HEADER:
        return None
    magic, version, page_size, sequence, salts, sum1, sum2 = _HEADER.unpack_from(log)
    if magic not in (_MAGIC_LITTLE, _MAGIC_BIG) or version != _FORMAT:
        return None
    if not 512 <= page_size <= 65536 or page_size & (page_size - 1):
        return None
    big = magic == _MAGIC_BIG
    if checksum_pairs(log[:24], big) != (sum1, sum2):
        return None
    return Header(page_size, sequence, salts, (sum1, sum2), big)


def walk(log: bytes) -> Walk:
    """How far the log is committed, by salts and checksums, as SQLite's own recovery finds it."""
    head = header(log)
    if head is None:
        return NOTHING
    frame_bytes = FRAME_HEADER + head.page_size
    found = NOTHING
    fields = iter_unpack(f">II8sII{head.page_size}x", _whole_frames(log, frame_bytes))
    sums = checksum_frames(log, head.page_size, head.checksum, head.big)
    for count, ((page, pages, salts, sum1, sum2), expected) in enumerate(zip(fields, sums, strict=True), 1):
        if page == 0 or salts != head.salts or (sum1, sum2) != expected:
            break
        if pages:
            found = Walk(LOG_HEADER + count * frame_bytes, pages, count)
    return found


def length_of(frames: int, page_size: int = PAGE_BYTES) -> int:
    """Bytes of a log of so many frames, as the WAL hook counts them; 0 for none."""
    return LOG_HEADER + frames * (FRAME_HEADER + page_size) if frames else 0


def frames_between(start: int, end: int, page_size: int = PAGE_BYTES) -> int:
    """Frames in log[start:end], where both are lengths of whole frames."""
    return _frames_of(end, page_size) - _frames_of(start, page_size)


def page_numbers(log: bytes, page_size: int = PAGE_BYTES) -> list[int]:
    """The page each frame of a log, header included, writes, in order."""
    frames = _whole_frames(log, FRAME_HEADER + page_size)
    return [page for (page,) in iter_unpack(f">I{FRAME_HEADER - 4 + page_size}x", frames)]


def last_frames(log: bytes, page_size: int = PAGE_BYTES) -> dict[int, int]:
    """Where the newest image of each page lies in a committed log: page number to byte offset."""
    frame_bytes = FRAME_HEADER + page_size
    first = LOG_HEADER + FRAME_HEADER
    return {page: first + i * frame_bytes for i, page in enumerate(page_numbers(log, page_size))}


def database_pages(log: bytes, page_size: int = PAGE_BYTES) -> int:
    """The database's size in pages after the last frame of a committed log."""
    (pages,) = unpack(">I", log[len(log) - page_size - FRAME_HEADER + 4 :][:4])
    return int(pages)


def dirty_chunks(log: bytes, base_size: int, page_size: int = PAGE_BYTES) -> Dirty:
    """The chunks that folding this committed, non-empty log into a base of `base_size` bytes changes.

    Where the database grows or shrinks, the chunks between the old end and the new are among them: SQLite does not log
    every page it leaves unused.
    """
    pages = database_pages(log, page_size)
    per_chunk = CHUNK_BYTES // page_size
    chunks = {(page - 1) // per_chunk for page in set(page_numbers(log, page_size)) if page <= pages}
    size = pages * page_size
    if size != base_size:
        chunks.update(range(min(size, base_size) // CHUNK_BYTES, (size + CHUNK_BYTES - 1) // CHUNK_BYTES))
    if size < base_size:
        chunks.add((size - 1) // CHUNK_BYTES)
    return Dirty(frozenset(chunks), pages)


def fold(base: bytes, log: bytes) -> bytes:
    """The database after SQLite's TRUNCATE checkpoint of this log, byte for byte. Walks the log first."""
    head, end = header(log), walk(log)
    if head is None or not end.frames:
        return base
    size = end.pages * head.page_size
    image = bytearray(base[:size]).ljust(size, b"\0")
    for page, at in last_frames(log[: end.length], head.page_size).items():
        if page <= end.pages:
            image[(page - 1) * head.page_size : page * head.page_size] = log[at : at + head.page_size]
    return bytes(image)


def _frames_of(length: int, page_size: int) -> int:
    frames, rest = divmod(max(length - LOG_HEADER, 0), FRAME_HEADER + page_size)
    assert not rest, f"{length} is not a length of whole frames"
    assert frames or not length, f"{length} is not a length of whole frames"
    return frames


def _whole_frames(log: bytes, frame_bytes: int) -> memoryview:
    count = max(len(log) - LOG_HEADER, 0) // frame_bytes
    return memoryview(log)[LOG_HEADER : LOG_HEADER + count * frame_bytes]
