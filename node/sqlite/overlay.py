"""A base file and the first bytes of a log as one read-only SQLite file, without a checkpoint (PROTOCOLS section 8).

A page is its last frame below the length, else the base's. SQLite believes what page 1 says: rollback-journal mode, the
size in pages, and a change counter that this process never gives twice, so that no cached page of one length is ever
shown at another (storage facts 4). An overlay belongs to one connection, and moves only between its transactions.
"""

from __future__ import annotations

import itertools
from struct import unpack_from
from typing import Any

import apsw

from domicile.node.disk import OpenFile
from domicile.node.errors import Corrupt
from domicile.node.sqlite.wal import FRAME_HEADER, LOG_HEADER, PAGE_BYTES, page_numbers

FRAME_BYTES = FRAME_HEADER + PAGE_BYTES
READ_BYTES = 256 * FRAME_BYTES

_changes = itertools.count(1)
_names = itertools.count()


class Bytes:
    """Bytes in memory as a file."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def read(self, offset: int, length: int) -> bytes:
        return self._data[offset : offset + length]

    def close(self) -> None:
        """Nothing is open."""


class Overlay:
    """What one connection sees. `length` is that of whole commits."""

    def __init__(self, base: OpenFile, log: OpenFile, base_size: int) -> None:
        self._base = base
        self._log = log
        self._where: dict[int, int] = {}
        self._pages = base_size // PAGE_BYTES
        self._base_pages = self._pages
        self._counter = b""
        self.length = 0
        self._change()

    def advance(self, length: int) -> None:
        """Show the log up to `length`, not below what is shown. Raises Corrupt when no commit ends there."""
        if length == self.length:
            return
        assert length > self.length, "an overlay does not go back"
        if (length - LOG_HEADER) % FRAME_BYTES:
            raise Corrupt(f"the log has no frame that ends at byte {length}")
        where, at = dict(self._where), max(self.length, LOG_HEADER)
        pages = 0
        while at < length:
            piece = self._log.read(at, min(READ_BYTES, length - at))
            if not piece or len(piece) % FRAME_BYTES:
                raise Corrupt(f"the log ends before byte {length}")
            for i, page in enumerate(page_numbers(bytes(LOG_HEADER) + piece)):
                where[page] = at + i * FRAME_BYTES + FRAME_HEADER
            (pages,) = unpack_from(">I", piece, len(piece) - FRAME_BYTES + 4)
            at += len(piece)
        if not pages:
            raise Corrupt(f"no transaction ends at byte {length} of the log")
        self._where, self._pages, self.length = where, pages, length
        self._change()

    def _change(self) -> None:
        self._counter = (next(_changes) & 0xFFFFFFFF).to_bytes(4, "big")

    @property
    def size(self) -> int:
        """Bytes of the database."""
        return self._pages * PAGE_BYTES

    def read(self, offset: int, length: int) -> bytes:
        """Bytes within one page, as SQLite reads."""
        number, within = offset // PAGE_BYTES + 1, offset % PAGE_BYTES
        if number == 1:
            return self._first_page()[within : within + length]
        at = self._where.get(number)
        if at is not None:
            return self._log.read(at + within, length)
        return self._base.read(offset, length) if number <= self._base_pages else bytes(length)

    def _first_page(self) -> bytes:
        at = self._where.get(1)
        page = bytearray(self._log.read(at, PAGE_BYTES) if at is not None else self._base.read(0, PAGE_BYTES))
        page[18:20] = b"\x01\x01"
        page[24:28] = page[92:96] = self._counter
        page[28:32] = self._pages.to_bytes(4, "big")
        return bytes(page)

    def close(self) -> None:
        self._base.close()
        self._log.close()


class OverlayVfs(apsw.VFS):
    """Finds overlays by the names they were given; everything else, such as temporary files, is the system's."""

    def __init__(self, beneath: str) -> None:
        self.name = f"domicile-overlay-{next(_names)}"
        self._overlays: dict[str, Overlay] = {}
        super().__init__(self.name, beneath)

    def add(self, overlay: Overlay) -> str:
        """A name to open it by, once."""
        name = f"overlay-{next(_names)}"
        self._overlays[name] = overlay
        return name

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> Any:  # noqa: N802  apsw's name
        if not flags[0] & apsw.SQLITE_OPEN_MAIN_DB:
            return super().xOpen(name, flags)
        overlay = self._overlays.pop(name.filename() if isinstance(name, apsw.URIFilename) else str(name), None)
        if overlay is None:
            raise apsw.CantOpenError("no such snapshot")
        flags[1] = apsw.SQLITE_OPEN_READONLY
        return _OverlayFile(overlay)

    def xAccess(self, pathname: str, flags: int) -> bool:  # noqa: N802  apsw's name
        return False  # no journal, no WAL

    def xFullPathname(self, name: Any) -> str:  # noqa: N802  apsw's name
        return name.filename() if isinstance(name, apsw.URIFilename) else str(name)


class _OverlayFile:
    """SQLite's handle. It is never written, so locks mean nothing."""

    def __init__(self, overlay: Overlay) -> None:
        self._overlay = overlay

    def xRead(self, amount: int, offset: int) -> bytes:  # noqa: N802  apsw's name
        return self._overlay.read(offset, amount)

    def xFileSize(self) -> int:  # noqa: N802  apsw's name
        return self._overlay.size

    def xClose(self) -> None:  # noqa: N802  apsw's name
        self._overlay.close()

    def xLock(self, level: int) -> None:  # noqa: N802  apsw's name
        pass

    def xUnlock(self, level: int) -> None:  # noqa: N802  apsw's name
        pass

    def xCheckReservedLock(self) -> bool:  # noqa: N802  apsw's name
        return False

    def xFileControl(self, op: int, ptr: int) -> bool:  # noqa: N802  apsw's name
        return False

    def xSectorSize(self) -> int:  # noqa: N802  apsw's name
        return PAGE_BYTES

    def xDeviceCharacteristics(self) -> int:  # noqa: N802  apsw's name
        return 0

    def xSync(self, flags: int) -> None:  # noqa: N802  apsw's name
        pass

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802  apsw's name
        raise apsw.ReadOnlyError("a snapshot is not written")

    def xTruncate(self, size: int) -> None:  # noqa: N802  apsw's name
        raise apsw.ReadOnlyError("a snapshot is not written")
