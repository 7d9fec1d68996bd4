"""The node's own files, passed in so that the simulation can crash and tear them.

SQLite opens its files itself, through the VFS named by `vfs` (None: the system's). No file of an open database is
opened or closed here while its connection lives: closing any descriptor of the base drops SQLite's locks on it.
"""

from __future__ import annotations

import ctypes
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

SYNCED_ONE_BY_ONE_MAX = 8
BUFFERS_MAX = 1024


class OpenFile(Protocol):
    """A file held open for reading: what it reads stays, whatever becomes of the name."""

    def read(self, offset: int, length: int) -> bytes:
        """Up to `length` bytes."""
        ...

    def close(self) -> None: ...


class JournalFile(Protocol):
    """One file of a fixed size, all of its blocks there already. Raises OSError."""

    def read(self, offset: int, length: int) -> bytes: ...

    def write(self, offset: int, buffers: Sequence[bytes | memoryview], *, sync: bool) -> None:
        """All buffers, one behind the other; with `sync` these bytes, and no others, are durable on return."""
        ...

    def sync(self) -> None:
        """All that was written."""
        ...

    def close(self) -> None: ...


class Disk(Protocol):
    """Paths are absolute text. Missing files raise FileNotFoundError, a full or broken disk OSError."""

    vfs: str | None

    def boot_id(self) -> str:
        """Changes with every boot of the machine: what was not synced before may be gone."""
        ...

    def read(self, path: str) -> bytes: ...

    def read_at(self, path: str, offset: int, length: int) -> bytes:
        """Up to `length` bytes. Never of the base of an open database; its `-wal` is safe to open and close."""
        ...

    def size(self, path: str) -> int | None:
        """Bytes, or None when there is no such file."""
        ...

    def write(self, path: str, data: bytes, *, sync: bool) -> None:
        """Create or overwrite in place."""
        ...

    def write_at(self, path: str, offset: int, data: bytes) -> None:
        """Write into an existing or new file, which grows as needed. Never the base of an open database."""
        ...

    def replace(self, path: str, data: bytes, *, sync: bool) -> None:
        """Write beside and rename: the old or the new content, never a mixture."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Atomic; over whatever is at `new`."""
        ...

    def truncate(self, path: str, length: int, *, sync: bool) -> None: ...

    def remove(self, path: str) -> None:
        """No matter if it is not there."""
        ...

    def make_dir(self, path: str) -> bool:
        """With what lies above it. False when it was there."""
        ...

    def remove_dir(self, path: str) -> None:
        """With everything in it; no matter if it is not there."""
        ...

    def list_dir(self, path: str) -> list[str]:
        """Names, sorted; empty when there is no such directory."""
        ...

    def sync(self, path: str) -> None:
        """A file, or a directory's entries."""
        ...

    def sync_many(self, paths: Sequence[str]) -> None:
        """Files and directories of one file system, in one pass; those that are not there are left out."""
        ...

    def open_file(self, path: str) -> OpenFile:
        """For reading. Of the base of an open database: closed only after the database is."""
        ...

    def open_journal(self, path: str, size: int) -> JournalFile:
        """`size` bytes, written full of zeros and synced where there was no file of that size."""
        ...


class SystemDisk:
    """The machine's file system."""

    vfs: str | None = None

    def __init__(self) -> None:
        self._boot_id = ""

    def boot_id(self) -> str:
        if not self._boot_id:
            self._boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return self._boot_id

    def read(self, path: str) -> bytes:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size = os.fstat(fd).st_size
            data = os.pread(fd, size, 0)
            while 0 < len(data) < size and (more := os.pread(fd, size - len(data), len(data))):
                data += more
            return data
        finally:
            os.close(fd)

    def read_at(self, path: str, offset: int, length: int) -> bytes:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.pread(fd, length, offset)
        finally:
            os.close(fd)

    def size(self, path: str) -> int | None:
        try:
            return os.stat(path).st_size
        except FileNotFoundError:
            return None

    def write(self, path: str, data: bytes, *, sync: bool) -> None:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(fd, rest) :]
            if sync:
                os.fsync(fd)
        finally:
            os.close(fd)

    def write_at(self, path: str, offset: int, data: bytes) -> None:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            while data:
                written = os.pwrite(fd, data, offset)
                data, offset = data[written:], offset + written
        finally:
            os.close(fd)

    def replace(self, path: str, data: bytes, *, sync: bool) -> None:
        beside = path + ".new"
        self.write(beside, data, sync=sync)
        os.rename(beside, path)
        if sync:
            self.sync(os.path.dirname(path))

    def rename(self, old: str, new: str) -> None:
        os.rename(old, new)

    def truncate(self, path: str, length: int, *, sync: bool) -> None:
        with open(path, "r+b") as file:
            file.truncate(length)
            if sync:
                os.fsync(file.fileno())

    def remove(self, path: str) -> None:
        with suppress(FileNotFoundError):
            os.unlink(path)

    def make_dir(self, path: str) -> bool:
        try:
            os.mkdir(path)
        except FileExistsError:
            return False
        except FileNotFoundError:
            os.makedirs(path, exist_ok=True)
        return True

    def remove_dir(self, path: str) -> None:
        shutil.rmtree(path, ignore_errors=True)

    def list_dir(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []

    def sync(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def sync_many(self, paths: Sequence[str]) -> None:
        present = [path for path in paths if os.path.exists(path)]
        if len(present) <= SYNCED_ONE_BY_ONE_MAX:
            for path in present:
                self.sync(path)
            return
        fd = os.open(present[0], os.O_RDONLY | os.O_CLOEXEC)
        try:
            if _LIBC.syncfs(fd) != 0:
                code = ctypes.get_errno()
                raise OSError(code, os.strerror(code), present[0])
        finally:
            os.close(fd)

    def open_file(self, path: str) -> OpenFile:
        return _SystemFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC))

    def open_journal(self, path: str, size: int) -> JournalFile:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            if os.fstat(fd).st_size != size:
                _fill_with_zeros(fd, size)
                self.sync(os.path.dirname(path))
        except OSError:
            os.close(fd)
            raise
        return _SystemJournal(fd)


class _SystemFile:
    def __init__(self, fd: int) -> None:
        self._fd = fd

    def read(self, offset: int, length: int) -> bytes:
        return os.pread(self._fd, length, offset)

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def close(self) -> None:
        os.close(self._fd)


class _SystemJournal(_SystemFile):
    def write(self, offset: int, buffers: Sequence[bytes | memoryview], *, sync: bool) -> None:
        if len(buffers) > BUFFERS_MAX:
            buffers = [b"".join(buffers)]
        length = sum(map(len, buffers))
        written = os.pwritev(self._fd, buffers, offset, os.RWF_DSYNC if sync else 0)
        if written < length:  # a signal, or a disk that fills
            rest = memoryview(b"".join(buffers))
            while written < length:
                written += os.pwritev(self._fd, [rest[written:]], offset + written, os.RWF_DSYNC if sync else 0)


def _fill_with_zeros(fd: int, size: int) -> None:
    """Written, not reserved: a write into reserved blocks has to change the file system's metadata."""
    os.ftruncate(fd, 0)
    zeros, at = bytes(1 << 20), 0
    while at < size:
        at += os.pwrite(fd, zeros[: size - at], at)
    os.fsync(fd)


_LIBC = ctypes.CDLL(None, use_errno=True)
