"""A bound on the temporary files of SQLite: sorts, indexes in the making, savepoints that outgrew memory.

A VFS around another one. The files of objects pass through it (about 1 µs a commit); a nameless file may grow to
`bytes_max`, then the statement that writes it fails with `TempSpace` and its call is undone.
"""

from __future__ import annotations

from typing import Any

import apsw

_TEMPORARY = (
    apsw.SQLITE_OPEN_TEMP_DB
    | apsw.SQLITE_OPEN_TRANSIENT_DB
    | apsw.SQLITE_OPEN_TEMP_JOURNAL
    | apsw.SQLITE_OPEN_SUBJOURNAL
)


class TempSpace(apsw.FullError):
    """A statement needs more temporary space than it may have."""


class TempVfs(apsw.VFS):
    """Registers itself under `name` and lives as long as it is referenced. `base`: the VFS around, "" the system's."""

    def __init__(self, name: str, base: str, bytes_max: int) -> None:
        super().__init__(name, base)
        self._base = base
        self._bytes_max = bytes_max

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:  # noqa: N802  apsw's name
        """Wrap what has no name and is thrown away; give the rest as it is."""
        if name is None and flags[0] & _TEMPORARY:
            return _TempFile(self._base, name, flags, self._bytes_max)
        return super().xOpen(name, flags)


class _TempFile(apsw.VFSFile):
    def __init__(self, base: str, name: Any, flags: list[int], bytes_max: int) -> None:
        super().__init__(base, name, flags)
        self._bytes_max = bytes_max

    def xWrite(self, data: Any, offset: int) -> None:  # noqa: N802  apsw's name
        if offset + len(data) > self._bytes_max:
            raise TempSpace(f"a statement may use {self._bytes_max} bytes of temporary space")
        super().xWrite(data, offset)
