"""One machine's disk, in memory, that knows what was synced.

A killed process loses nothing it wrote. A power cut loses or tears what was not synced: a file's unsynced sectors
survive one by one at random, its length is the old one, the new one or one between, and of the creations, renames and
removals not yet synced with their directory only a prefix survives. Whoever had a file open goes on with a ghost of
it: a dead process may finish what it was doing, and nothing of it lasts.

Errors here are those of a real disk: OSError with ENOSPC or EIO.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from simworld.process import dead

SECTOR = 512


class Inode:
    """One file's bytes: as written, and as a power cut would leave them at the least."""

    __slots__ = ("cut", "data", "dirty", "durable", "holders")

    def __init__(self, data: bytes = b"") -> None:
        self.data = bytearray(data)
        self.durable = bytearray(data)
        self.dirty: list[tuple[int, int]] = []
        self.cut: int | None = None
        self.holders: list[Opened] = []

    def write(self, data: bytes, offset: int) -> None:
        end, size = offset + len(data), len(self.data)
        if offset > size:
            self.data.extend(bytes(offset - size))
        self.data[offset:end] = data
        self.dirty.append((min(offset, size), end))

    def truncate(self, length: int) -> None:
        size = len(self.data)
        if length > size:
            self.data.extend(bytes(length - size))
        else:
            del self.data[length:]
            self.cut = min(length, size if self.cut is None else self.cut)
        self.dirty.append((min(length, size), max(length, size)))

    def sync(self) -> None:
        size = len(self.data)
        del self.durable[size:]
        if size > len(self.durable):
            self.durable.extend(bytes(size - len(self.durable)))
        for start, end in self.dirty:
            self.durable[start:end] = self.data[start:end]
        self._settle()

    def power_cut(self, rng: random.Random) -> None:
        """What was not synced is lost, torn by sectors, or there all the same."""
        if not self.dirty:
            return
        fate = rng.random()
        if fate < 0.3:
            self.data[:] = self.durable
        elif fate < 0.9:
            self._tear(rng)
        self.durable[:] = self.data
        self._settle()

    def _settle(self) -> None:
        self.dirty.clear()
        self.cut = None

    def _tear(self, rng: random.Random) -> None:
        if self.cut is not None:
            # A file system shortens a file in one step, before what is written behind the cut: all or nothing of it.
            if rng.random() < 0.5:
                self.data[:] = self.durable
                return
            del self.durable[self.cut :]
        old, new = len(self.durable), len(self.data)
        length = rng.choice([old, new, rng.randint(min(old, new), max(old, new))])
        torn = bytearray(self.durable[:length])
        torn.extend(bytes(length - len(torn)))
        sectors = sorted({s for start, end in self.dirty for s in range(start // SECTOR, (end - 1) // SECTOR + 1)})
        for sector in sectors:
            if rng.random() < 0.5:
                start, end = sector * SECTOR, min((sector + 1) * SECTOR, length, new)
                if start < end:
                    torn[start:end] = self.data[start:end]
        self.data[:] = torn


@dataclass
class Faults:
    """What is wrong with the disk now. `capacity` in bytes; `errors` the share of writes and syncs that fail."""

    capacity: int | None = None
    errors: float = 0.0
    slow_secs: float = 0.0


@dataclass(slots=True)
class _Change:
    """One atomic change of directory entries: which directories it touches, and (path, what is there after it)."""

    dirs: tuple[str, ...]
    entries: list[tuple[str, Inode | None]] = field(default_factory=list)


_DIR = Inode()


class SimDisk:
    """A `domicile.node.disk.Disk`; `vfs` names an apsw VFS over the same files (`simworld.vfs`)."""

    vfs: str | None = None

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._names: dict[str, Inode] = {"/": _DIR}
        self._durable: dict[str, Inode] = {"/": _DIR}
        self._pending: list[_Change] = []
        self._open: list[Opened] = []
        self._boot = 1
        self._used = 0
        self._debt = 0.0
        self.faults = Faults()
        self.sins: list[str] = []
        self.ops = 0
        self.on_op: Callable[[int], None] | None = None
        self.on_crash: Callable[[], None] | None = None

    # what a node uses

    def boot_id(self) -> str:
        return f"boot-{self._boot}"

    def read(self, path: str) -> bytes:
        return bytes(self._closing(path).data)

    def read_at(self, path: str, offset: int, length: int) -> bytes:
        return bytes(self._closing(path).data[offset : offset + length])

    def size(self, path: str) -> int | None:
        inode = self._names.get(path)
        return None if inode is None or dead() else len(inode.data)

    def write(self, path: str, data: bytes, *, sync: bool) -> None:
        if dead():
            return
        self.create(path)
        inode = self._closing(path)
        self.grow(len(data) - len(inode.data))
        if dead():
            return
        inode.truncate(0)
        inode.write(data, 0)
        if sync:
            self.sync_inode(inode)

    def write_at(self, path: str, offset: int, data: bytes) -> None:
        if dead():
            return
        self.create(path)
        inode = self._closing(path)
        self.grow(max(0, offset + len(data) - len(inode.data)))
        if dead():
            return
        inode.write(data, offset)

    def replace(self, path: str, data: bytes, *, sync: bool) -> None:
        beside = path + ".new"
        self.write(beside, data, sync=sync)
        self.rename(beside, path)
        if sync:
            self.sync(os.path.dirname(path))

    def rename(self, old: str, new: str) -> None:
        """Atomic; over whatever is at `new`."""
        if dead():
            return
        inode = self._file(old)
        self._op()
        if dead():
            return
        if (gone := self._names.get(new)) is not None:
            self._used -= len(gone.data)
        self._change(_Change((os.path.dirname(old), os.path.dirname(new)), [(old, None), (new, inode)]))

    def truncate(self, path: str, length: int, *, sync: bool) -> None:
        if dead():
            return
        inode = self._closing(path)
        self.grow(length - len(inode.data))
        if dead():
            return
        inode.truncate(length)
        if sync:
            self.sync_inode(inode)

    def remove(self, path: str) -> None:
        if dead() or path not in self._names:
            return
        self._op()
        if dead():
            return
        if self._names[path] is not _DIR:
            self._closing(path)
        self._used -= len(self._names[path].data)
        self._change(_Change((os.path.dirname(path),), [(path, None)]))

    def make_dir(self, path: str) -> bool:
        if dead() or path in self._names:
            return False
        parent = os.path.dirname(path)
        self.make_dir(parent)
        self._change(_Change((parent,), [(path, _DIR)]))
        return True

    def remove_dir(self, path: str) -> None:
        if dead():
            return
        below = sorted((name for name in self._names if name.startswith(path + "/")), reverse=True)
        for name in [*below, path]:
            self.remove(name)

    def list_dir(self, path: str) -> list[str]:
        return sorted(os.path.basename(name) for name in self._names if os.path.dirname(name) == path and name != "/")

    def sync(self, path: str) -> None:
        if dead():
            return
        inode = self._names.get(path)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        if inode is _DIR:
            self._sync_dir(path)
        else:
            self.sync_inode(self._closing(path))

    def sync_many(self, paths: Sequence[str]) -> None:
        for path in paths:
            if path in self._names:
                self.sync(path)

    def open_file(self, path: str) -> SimReading:
        handle = SimReading(self, self._file(path))
        self.opened(handle)
        return handle

    def open_journal(self, path: str, size: int) -> SimJournal:
        if not dead() and self.size(path) != size:
            self.write(path, bytes(size), sync=True)
            self.sync(os.path.dirname(path))
        handle = SimJournal(self, self._file(path))
        self.opened(handle)
        return handle

    # what the VFS uses

    def find(self, path: str) -> Inode | None:
        """The file at `path`, if there is one."""
        return self._names.get(path)

    def create(self, path: str) -> Inode:
        """The file at `path`, made empty if it was not there."""
        inode = self._names.get(path)
        if inode is None:
            parent = os.path.dirname(path)
            if parent not in self._names:
                raise FileNotFoundError(errno.ENOENT, "no such directory", parent)
            self._op()
            inode = Inode()
            self._change(_Change((parent,), [(path, inode)]))
        return inode

    def grow(self, growth: int) -> None:
        """Account for `growth` bytes about to be written. Raises OSError when the disk is full or broken."""
        self._op()
        capacity = self.faults.capacity
        if growth > 0 and capacity is not None and self._used + growth > capacity:
            raise OSError(errno.ENOSPC, "no space left on the simulated disk")
        self._used += growth

    def sync_inode(self, inode: Inode) -> None:
        self._op()
        if dead():
            return
        self._debt += self.faults.slow_secs
        inode.sync()

    def opened(self, handle: Opened) -> None:
        self._open.append(handle)

    def closed(self, handle: Opened) -> None:
        if handle in self._open:
            self._open.remove(handle)

    # what the world does

    def crash(self, *, power: bool) -> None:
        """The process (or, with `power`, the machine) is gone at this instant."""
        for handle in self._open:
            handle.inode.holders.clear()
            ghost = Inode()
            ghost.data[:] = handle.inode.data
            handle.inode, handle.ghost = ghost, True
        self._open.clear()
        self._debt = 0.0
        if power:
            self._power_cut()
        if self.on_crash is not None:
            self.on_crash()

    def wipe(self, path: str) -> None:
        """Everything at and below a directory is gone for good, its own name too; nothing has it open."""
        for change in self._pending:
            _apply(self._durable, change)
        self._pending.clear()
        for names in (self._names, self._durable):
            for name in [name for name in names if name == path or name.startswith(path + "/")]:
                if names is self._names:
                    self._used -= len(names[name].data)
                del names[name]

    def take_debt(self) -> float:
        """Seconds of slowness since this was last asked."""
        debt, self._debt = self._debt, 0.0
        return debt

    def flip(self, path: str, bit: int) -> None:
        """Rot: one bit of a file changes, on the platter too."""
        inode = self._file(path)
        for copy in (inode.data, inode.durable):
            if bit // 8 < len(copy):
                copy[bit // 8] ^= 1 << (bit % 8)

    @property
    def used(self) -> int:
        return self._used

    def _op(self) -> None:
        self.ops += 1
        if self.on_op is not None:
            self.on_op(self.ops)
        if self.faults.errors and self._rng.random() < self.faults.errors:
            raise OSError(errno.EIO, "the simulated disk failed")

    def _file(self, path: str) -> Inode:
        inode = self._names.get(path)
        if inode is None or dead():
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        if inode is _DIR:
            raise IsADirectoryError(errno.EISDIR, "is a directory", path)
        return inode

    def _closing(self, path: str) -> Inode:
        """The file, by a descriptor of its own that is closed again: which drops SQLite's locks, if it has some."""
        inode = self._file(path)
        if inode.holders:
            self.sins.append(f"{path} was opened and closed beside its connection, which loses its locks by that")
        return inode

    def _change(self, change: _Change) -> None:
        if dead():
            return
        _apply(self._names, change)
        self._pending.append(change)

    def _sync_dir(self, path: str) -> None:
        self._op()
        if dead():
            return
        above = {path}
        while path != "/":
            path = os.path.dirname(path)
            above.add(path)
        kept = []
        for change in self._pending:
            made, what = change.entries[-1]
            if max(above, key=len) in change.dirs or (what in (_DIR, None) and made in above):
                _apply(self._durable, change)
            else:
                kept.append(change)
        self._pending = kept

    def _power_cut(self) -> None:
        self._boot += 1
        for change in self._pending[: self._rng.randint(0, len(self._pending))]:
            _apply(self._durable, change)
        self._pending.clear()
        whole = {"/": _DIR}
        for path, inode in sorted(self._durable.items()):
            if path != "/" and os.path.dirname(path) in whole:
                whole[path] = inode
        self._names, self._durable = dict(whole), whole
        for path in sorted(whole):
            whole[path].power_cut(self._rng)
        self._used = sum(len(inode.data) for inode in whole.values())


class Opened:
    """An open file: its inode, or a ghost of it once its process is gone. `level` is SQLite's lock through it."""

    __slots__ = ("ghost", "inode", "level")

    def __init__(self, inode: Inode) -> None:
        self.inode = inode
        self.ghost = False
        self.level = 0


class SimReading(Opened):
    """A file held open for reading."""

    __slots__ = ("_disk",)

    def __init__(self, disk: SimDisk, inode: Inode) -> None:
        super().__init__(inode)
        self._disk = disk

    def read(self, offset: int, length: int) -> bytes:
        return bytes(self.inode.data[offset : offset + length])

    def close(self) -> None:
        self._disk.closed(self)


class SimJournal(SimReading):
    """The journal's file: its blocks are there already, so it never fills the disk."""

    __slots__ = ()

    def write(self, offset: int, buffers: Sequence[bytes | memoryview], *, sync: bool) -> None:
        data = b"".join(buffers)
        assert offset + len(data) <= len(self.inode.data), "a journal keeps its size"
        if not self.ghost:
            self._disk.grow(0)
        self.inode.write(data, offset)
        if sync and not self.ghost:
            self._disk.sync_inode(self.inode)

    def sync(self) -> None:
        if not self.ghost:
            self._disk.sync_inode(self.inode)


def _apply(names: dict[str, Inode], change: _Change) -> None:
    for path, inode in change.entries:
        if inode is None:
            names.pop(path, None)
        else:
            names[path] = inode
