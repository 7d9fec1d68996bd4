"""SQLite over a base whose bytes are not all there yet (PROTOCOLS section 5, step 3).

A VFS around the node's own, for one connection. Its base asks for the bytes of each read and write first; log, locks
and everything else pass through. It stays for the residency: once the base is whole a read costs a look at one flag.
"""

from __future__ import annotations

import itertools
from typing import Any, Protocol

import apsw

from domicile.node.errors import NodeError


class PageUnavailable(apsw.IOError):
    """Bytes of the base could not be had: the statement fails, and its call with it.

    Its text is for callers and names the chunk; `cause` is for the log.
    """

    def __init__(self, told: str, cause: NodeError) -> None:
        super().__init__(told)
        self.cause = cause


class Pages(Protocol):
    """What the file asks. `whole`: every byte is there, for good."""

    whole: bool

    def need(self, offset: int, length: int) -> None:
        """Return once these bytes are there. Raises PageUnavailable."""
        ...


class PagedVfs(apsw.VFS):
    """Under a name of its own, as long as it is referenced: an open connection does. `base`: "" for the system's."""

    def __init__(self, base: str, pages: Pages) -> None:
        self.name = f"domicile-paged-{next(_NUMBERS)}"
        super().__init__(self.name, base)
        self._base = base
        self._pages = pages

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:  # noqa: N802  apsw's name
        """Only the base is ours."""
        if flags[0] & apsw.SQLITE_OPEN_MAIN_DB:
            return _PagedFile(self._base, name, flags, self._pages)
        return super().xOpen(name, flags)


class _PagedFile(apsw.VFSFile):
    def __init__(self, base: str, name: Any, flags: list[int], pages: Pages) -> None:
        super().__init__(base, name, flags)
        self._pages = pages

    def xRead(self, amount: int, offset: int) -> bytes:  # noqa: N802  apsw's name
        if not self._pages.whole:
            self._pages.need(offset, amount)
        return super().xRead(amount, offset)

    def xWrite(self, data: Any, offset: int) -> None:  # noqa: N802  apsw's name
        if not self._pages.whole:  # a chunk that comes later would undo what is written now
            self._pages.need(offset, len(data))
        super().xWrite(data, offset)


_NUMBERS = itertools.count(1)
