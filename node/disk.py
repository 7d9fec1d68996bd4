"""The node's own files, passed in so that the simulation can crash and tear them.

SQLite opens its files itself, through the VFS named by `vfs` (None: the system's). No file of an open database is
opened or closed here while its connection lives: closing any descriptor of the base drops SQLite's locks on it.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Protocol


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

    def truncate(self, path: str, length: int, *, sync: bool) -> None: ...

    def remove(self, path: str) -> None:
        """No matter if it is not there."""
        ...

    def make_dir(self, path: str) -> None: ...

    def remove_dir(self, path: str) -> None:
        """With everything in it; no matter if it is not there."""
        ...

    def list_dir(self, path: str) -> list[str]:
        """Names, sorted; empty when there is no such directory."""
        ...

    def sync(self, path: str) -> None:
        """A file, or a directory's entries."""
        ...


class SystemDisk:
    """The machine's file system."""

    vfs: str | None = None

    def boot_id(self) -> str:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()

    def read(self, path: str) -> bytes:
        return Path(path).read_bytes()

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
        with open(path, "wb") as file:
            file.write(data)
            if sync:
                file.flush()
                os.fsync(file.fileno())

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

    def truncate(self, path: str, length: int, *, sync: bool) -> None:
        with open(path, "r+b") as file:
            file.truncate(length)
            if sync:
                os.fsync(file.fileno())

    def remove(self, path: str) -> None:
        Path(path).unlink(missing_ok=True)

    def make_dir(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

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
