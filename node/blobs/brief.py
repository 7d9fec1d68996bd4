"""System calls on local files that take microseconds, made without giving the interpreter lock up.

`os` gives it up around each of them, and taking it back from a busy event loop costs two changes of thread and up to
the switch interval: of what a put of a register cost, most. Only for what neither waits nor syncs: opening a file
that is there, a lock that is not waited for, a few kilobytes that were read or written lately.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_LIBC = ctypes.PyDLL(None, use_errno=True)
_PREAD, _PWRITE = _LIBC.pread, _LIBC.pwrite
for _call in (_PREAD, _PWRITE):
    _call.restype = ctypes.c_ssize_t
_PREAD.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64)
_PWRITE.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int64)
_LIBC.open.argtypes = (ctypes.c_char_p, ctypes.c_int, ctypes.c_uint)
_LIBC.flock.argtypes = (ctypes.c_int, ctypes.c_int)
_LIBC.close.argtypes = (ctypes.c_int,)


def pread(fd: int, length: int, offset: int) -> bytes:
    """As `os.pread`."""
    buffer = ctypes.create_string_buffer(length)
    count = _done(lambda: _PREAD(fd, buffer, length, offset))
    return ctypes.string_at(buffer, count)


def pwrite(fd: int, data: bytes, offset: int) -> int:
    """As `os.pwrite`."""
    return _done(lambda: _PWRITE(fd, data, len(data), offset))


def flock(fd: int, operation: int) -> None:
    """As `fcntl.flock`; only with LOCK_NB, or to unlock."""
    _done(lambda: _LIBC.flock(fd, operation))


@contextmanager
def opened(path: str, flags: int) -> Iterator[int]:
    """A descriptor of a file, made with mode 644 where `flags` say so."""
    name = os.fsencode(path)
    fd = _done(lambda: _LIBC.open(name, flags | os.O_CLOEXEC, 0o644), path)
    try:
        yield fd
    finally:
        _LIBC.close(fd)


def _done(call: Callable[[], int], path: str | None = None) -> int:
    while (result := call()) < 0:
        code = ctypes.get_errno()
        if code != errno.EINTR:
            raise OSError(code, os.strerror(code), path)
    return result
