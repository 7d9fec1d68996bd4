"""What the directory store does to files: whole reads and writes, syncs, and a temp folder that says who lives."""

from __future__ import annotations

import fcntl
import itertools
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress


def claim_temp(temp: str) -> tuple[str, int]:
    """A folder of this store's own, locked while it lives; folders whose owners are dead are removed."""
    gate = os.open(temp, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(gate, fcntl.LOCK_EX)
        for name in os.listdir(temp):
            _remove_if_dead(f"{temp}/{name}")
        mine = next(path for n in itertools.count() if not os.path.exists(path := f"{temp}/{n}"))
        os.mkdir(mine)
        fd = os.open(mine, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return mine, fd
    finally:
        os.close(gate)


def _remove_if_dead(folder: str) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder)
    except BlockingIOError:
        return
    finally:
        os.close(fd)


@contextmanager
def opened(path: str, flags: int) -> Iterator[int | None]:
    """A descriptor, or None when there is no such file."""
    try:
        fd = os.open(path, flags | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        yield None
        return
    try:
        yield fd
    finally:
        os.close(fd)


def read_all(fd: int) -> bytes:
    """The whole file, or OSError."""
    size = os.fstat(fd).st_size
    data = os.pread(fd, size, 0)
    if len(data) != size:
        raise OSError(f"read {len(data)} bytes of {size}")
    return data


def write_all(fd: int, data: bytes) -> None:
    """All of it, or OSError."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def remove(path: str) -> None:
    """No matter if it is not there."""
    with suppress(FileNotFoundError, NotADirectoryError):
        os.unlink(path)


def sync(folder: str) -> None:
    """Make a folder's entries durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
