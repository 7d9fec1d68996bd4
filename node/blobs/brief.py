"""System calls that touch memory only, made without giving the interpreter lock up.

`os` and `fcntl` give it up around each, and taking it back from a busy event loop costs two changes of thread and up to
the switch interval: of what a put of a register cost, most. Only for what never waits for a disk: whatever holds the
lock while a disk stalls stops the whole node, its renewals too.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

_LIBC = ctypes.PyDLL(None, use_errno=True)
_LIBC.flock.argtypes = (ctypes.c_int, ctypes.c_int)
_LIBC.close.argtypes = (ctypes.c_int,)


def flock(fd: int, operation: int) -> None:
    """As `fcntl.flock`; only with LOCK_NB, or to unlock."""
    while _LIBC.flock(fd, operation) < 0:
        code = ctypes.get_errno()
        if code != errno.EINTR:
            raise OSError(code, os.strerror(code))


@contextmanager
def opened(path: str, flags: int) -> Iterator[int]:
    """A descriptor of a file that nothing is written to, made with mode 644 where `flags` say so."""
    fd = os.open(path, flags | os.O_CLOEXEC, 0o644)
    try:
        yield fd
    finally:
        _LIBC.close(fd)
