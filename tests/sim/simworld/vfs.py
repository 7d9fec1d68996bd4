"""SQLite on the simulated disk: an apsw VFS over the files of `simworld.disk`.

WAL mode with `locking_mode=EXCLUSIVE` (there is no shared memory). Also the source of SQLite's randomness, so that WAL
salts replay: made the default VFS, it seeds SQLite's generator.
"""

from __future__ import annotations

import errno
import itertools
import os
import random
from collections.abc import Callable
from typing import Any

import apsw

from simworld.disk import Inode, Opened, SimDisk
from simworld.process import dead

_NAMES = itertools.count()
_SYNCS_ITS_DIRECTORY = apsw.SQLITE_OPEN_WAL | apsw.SQLITE_OPEN_MAIN_JOURNAL | apsw.SQLITE_OPEN_SUPER_JOURNAL
_NONE, _SHARED, _RESERVED = (
    apsw.SQLITE_LOCK_NONE,
    apsw.SQLITE_LOCK_SHARED,
    apsw.SQLITE_LOCK_RESERVED,
)


class Mount:
    """A disk made visible to SQLite, by another VFS after each crash: what the dead still hold reaches no live file."""

    def __init__(self, disk: SimDisk, rng: random.Random, now_secs: Callable[[], float]) -> None:
        self._disk = disk
        self._rng = rng
        self._now_secs = now_secs
        self._made: list[SimVfs] = []
        self._renew()
        disk.on_crash = self._renew

    def close(self) -> None:
        """Take every VFS away, and give SQLite its own randomness back.

        A connection holds its VFS where the garbage collector does not see it: what the dead left open is closed, and a
        VFS lets go of its world, or no world would ever be freed.
        """
        made = {vfs.name for vfs in self._made}
        for connection in apsw.connections():
            if connection.open_vfs in made:
                connection.close(True)
        apsw.set_default_vfs("unix")
        apsw.randomness(0)
        for vfs in self._made:
            vfs.unregister()
            vfs.let_go()

    def _renew(self) -> None:
        for vfs in self._made:
            vfs.dead = True
        self._made.append(SimVfs(self._disk, self._rng, self._now_secs))
        self._disk.vfs = self._made[-1].name
        apsw.set_default_vfs(self._made[-1].name)
        apsw.randomness(0)


class SimVfs(apsw.VFS):
    """One VFS, under a name of its own."""

    def __init__(self, disk: SimDisk, rng: random.Random, now_secs: Callable[[], float]) -> None:
        self.name = f"simdisk-{next(_NAMES)}"
        self.dead = False
        self._disk = disk
        self._rng = rng
        self._now_secs = now_secs
        super().__init__(name=self.name, base="unix")

    def let_go(self) -> None:
        """Nothing opens anything by it any more."""
        self.dead = True
        del self._disk, self._rng, self._now_secs

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> Any:
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        flags[1] = flags[0]
        if path is None or self.dead or dead():
            return SimFile(self._disk, Inode(), "", scratch=True)
        inode = self._disk.find(path)
        if inode is None:
            if not flags[0] & apsw.SQLITE_OPEN_CREATE:
                raise apsw.CantOpenError(f"no file {path}")
            try:
                inode = self._disk.create(path)
            except OSError as error:
                raise apsw.CantOpenError(str(error)) from error
            if dead():  # making the file was the operation at which the process fell
                return SimFile(self._disk, Inode(), "", scratch=True)
            if flags[0] & _SYNCS_ITS_DIRECTORY:
                return SimFile(self._disk, inode, path, sync_dir=True)
        return SimFile(self._disk, inode, path)

    def xDelete(self, name: str, syncdir: bool) -> None:
        if self.dead:
            return
        if self._disk.find(name) is None:
            raise apsw.IOError(f"no file {name}")
        _foreign(self._disk.remove, name)
        if syncdir:
            _foreign(self._disk.sync, os.path.dirname(name))

    def xAccess(self, pathname: str, flags: int) -> bool:
        return self._disk.find(pathname) is not None

    def xFullPathname(self, name: str | apsw.URIFilename) -> str:
        return name.filename() if isinstance(name, apsw.URIFilename) else name

    def xRandomness(self, numbytes: int) -> bytes:
        return self._rng.randbytes(numbytes)

    def xSleep(self, microseconds: int) -> int:
        return microseconds

    def xCurrentTimeInt64(self) -> int:
        return int((self._now_secs() + 210866760000) * 1000)


class SimFile(Opened):
    """One open file of SQLite's, with the locks a process holds through it."""

    __slots__ = ("_disk", "_path", "_scratch", "_sync_dir")

    def __init__(
        self, disk: SimDisk, inode: Inode, path: str, *, scratch: bool = False, sync_dir: bool = False
    ) -> None:
        super().__init__(inode)
        self._disk = disk
        self._path = path
        self._scratch = scratch
        self._sync_dir = sync_dir
        if not scratch:
            disk.opened(self)

    def xClose(self) -> None:
        self.xUnlock(_NONE)
        self._disk.closed(self)

    def xRead(self, amount: int, offset: int) -> bytes:
        return bytes(self.inode.data[offset : offset + amount])

    def xWrite(self, data: bytes, offset: int) -> None:
        if not (self.ghost or self._scratch):
            _foreign(self._disk.grow, max(0, offset + len(data) - len(self.inode.data)))
        self.inode.write(data, offset)

    def xTruncate(self, newsize: int) -> None:
        if not (self.ghost or self._scratch):
            _foreign(self._disk.grow, newsize - len(self.inode.data))
        self.inode.truncate(newsize)

    def xSync(self, flags: int) -> None:
        if self.ghost or self._scratch:
            return
        _foreign(self._disk.sync_inode, self.inode)
        if self._sync_dir and not self.ghost:
            _foreign(self._disk.sync, os.path.dirname(self._path))
            self._sync_dir = False

    def xFileSize(self) -> int:
        return len(self.inode.data)

    def xLock(self, level: int) -> None:
        others = max((file.level for file in self.inode.holders if file is not self), default=_NONE)
        if level == _SHARED:
            busy = others > _RESERVED
        elif level == _RESERVED:
            busy = others >= _RESERVED
        else:
            busy = others > _NONE
        if busy:
            raise apsw.BusyError("the file is locked")
        if self.level == _NONE:
            self.inode.holders.append(self)
        self.level = max(self.level, level)

    def xUnlock(self, level: int) -> None:
        self.level = min(self.level, level)
        if self.level == _NONE and self in self.inode.holders:
            self.inode.holders.remove(self)

    def xCheckReservedLock(self) -> bool:
        return any(file.level >= _RESERVED for file in self.inode.holders)

    def xFileControl(self, op: int, ptr: int) -> bool:
        return False

    def xSectorSize(self) -> int:
        return 512

    def xDeviceCharacteristics(self) -> int:
        return 0


def _foreign(fn: Callable[..., Any], *args: Any) -> None:
    """Call the disk, and give SQLite its own names for what goes wrong."""
    try:
        fn(*args)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise apsw.FullError(str(error)) from error
        raise apsw.IOError(str(error)) from error
