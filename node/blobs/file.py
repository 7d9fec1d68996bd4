"""The blob store as a directory: the embedded default, safe for several processes on one machine.

    data/   the values: keys as paths (`paths`), put whole by temp file, sync, rename, sync of the folder, or, for what
            is put under a condition, as registers written in place (`register`)
    locks/  every operation on a key holds the file lock its hash names
    temp/   one folder per open store, locked while it lives; what a crash left there goes at the next open

A tag is a blake3 hash in hex: of the value, in a register of its sequence number too. Processes share the directory by
its locks alone; nothing is cached.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import functools
import itertools
import os
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any, TypeVar

from blake3 import blake3

from domicile.node.blobs import brief, files, paths, register
from domicile.node.blobs.base import ABSENT, Absent, Blob, Listed, Precondition
from domicile.node.blobs.pool import Pool
from domicile.node.clock import Clock
from domicile.node.errors import BlobMissing, BlobUnavailable, PreconditionFailed

THREADS = 4  # syncs of different files overlap; with more the threads fight over the interpreter lock
LOCK_FILES = 1024
FOLDERS_REMEMBERED_MAX = 1 << 16
LOCK_WAIT_SECS = 5.0
LOCK_RETRY_SECS = 0.001
_RENAME_TRIES = 8

T = TypeVar("T")
Entries = list[tuple[str, int | None]]


class FileBlobs:
    """See `Blobs`. A lock held by another process for 5 s makes an operation BlobUnavailable."""

    def __init__(self, root: str, clock: Clock) -> None:
        """Makes the directory if it is not there, and sweeps it. Raises OSError."""
        self._root = root
        self._clock = clock
        for name in ("data", "locks", "temp"):
            os.makedirs(f"{root}/{name}", exist_ok=True)
        files.sync(root)
        self._temp, self._temp_fd = files.claim_temp(f"{root}/temp")
        self._temp_names = itertools.count()
        self._durable_folders: set[str] = set()
        self._turns: dict[int, asyncio.Lock] = {}
        self._pool = Pool(THREADS, "blobs")

    async def get(self, key: str) -> Blob:
        """Raises also Corrupt, when a register's value has rotted."""
        return await self._locked(key, functools.partial(self._get, key), functools.partial(self._look, key))

    async def put(self, key: str, data: bytes, condition: Precondition = None) -> str:
        return await self._locked(key, functools.partial(self._put, key, data, condition))

    async def delete(self, key: str) -> None:
        await self._locked(key, functools.partial(self._delete, key))

    async def list(self, prefix: str) -> AsyncIterator[Listed]:
        for key, size in await self._finished(self._pool.start(functools.partial(self._list, prefix))):
            if size is None:
                with suppress(BlobMissing):
                    yield Listed(key, len((await self.get(key)).data))
            else:
                yield Listed(key, size)

    async def close(self) -> None:
        self._pool.close()
        shutil.rmtree(self._temp, ignore_errors=True)
        os.close(self._temp_fd)

    async def _locked(self, key: str, work: Callable[[], T], first: Callable[[], None] | None = None) -> T:
        """Run `work` in a thread, under the key's turn in this process and its lock among processes; `first` before
        the lock is taken.

        A caller that goes away does not give up the turn before its work has ended: what comes next sees its outcome.
        """
        stripe = _stripe(key)
        turn = self._turns.setdefault(stripe, asyncio.Lock())
        await turn.acquire()
        running: asyncio.Future[T] | None = None
        try:
            give_up = self._clock.monotonic() + LOCK_WAIT_SECS
            while self._clock.monotonic() < give_up:
                running = self._pool.start(functools.partial(self._under_lock, stripe, work, first))
                try:
                    return await self._finished(running)
                except _LockHeldError:
                    await self._clock.sleep(LOCK_RETRY_SECS)
        finally:
            if running is None or running.done():
                turn.release()
            else:
                running.add_done_callback(functools.partial(_release, turn))
        raise BlobUnavailable(f"{key}: another process holds its lock for {LOCK_WAIT_SECS:g} s")

    def _under_lock(self, stripe: int, work: Callable[[], T], first: Callable[[], None] | None = None) -> T:
        if first is not None:
            first()
        with brief.opened(f"{self._root}/locks/{stripe:03x}", os.O_RDWR | os.O_CREAT) as fd:
            try:
                brief.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise _LockHeldError from None
            return work()

    async def _finished(self, running: asyncio.Future[T]) -> T:
        try:
            return await asyncio.shield(running)
        except OSError as error:
            raise BlobUnavailable(f"{self._root}: {error}", maybe=error.errno == errno.EIO) from error

    def _look(self, key: str) -> None:
        """What is not there is missed without a lock: a value never changes from the one kind of file to the other, so
        there was a moment without either. Every birth asks for what is not there. Raises BlobMissing.
        """
        path = self._path(key)
        if not (os.path.exists(path + paths.REGISTER) or os.path.exists(path + paths.BLOB)):
            raise BlobMissing(key)

    def _get(self, key: str) -> Blob:
        path = self._path(key)
        with files.opened(path + paths.REGISTER, os.O_RDONLY) as fd:
            value = self._read_blob(path) if fd is None else register.read(fd, key)
        if value is None:
            raise BlobMissing(key)
        return Blob(value.data, value.tag)

    def _read_blob(self, path: str, condition: Precondition = ABSENT) -> register.Value | None:
        """What is stored whole, as a value without a sequence number; not looked at for a put without a condition."""
        if condition is None:
            return None
        with files.opened(path + paths.BLOB, os.O_RDONLY) as fd:
            if fd is None:
                return None
            data = files.read_all(fd)
            return register.Value(0, data, blake3(data).hexdigest(), 0)

    def _put(self, key: str, data: bytes, condition: Precondition) -> str:
        path = self._path(key)
        with files.opened(path + paths.REGISTER, os.O_RDWR) as fd:
            present = self._read_blob(path, condition) if fd is None else register.read(fd, key)
            if condition is not None:
                _check(key, present.tag if present else None, condition)
            if fd is not None and present is not None and register.fits(present, data):
                return register.overwrite(fd, present, data)
        if present is not None and present.sequence:
            return self._put_larger(path + paths.REGISTER, data, present.sequence + 1)
        if condition is not None and present is None and len(data) <= register.DATA_BYTES_MAX:
            return self._put_first(path + paths.REGISTER, data)
        files.remove(path + paths.REGISTER)  # one that never was whole
        self._put_whole(path + paths.BLOB, data)
        return blake3(data).hexdigest()

    def _put_first(self, path: str, data: bytes) -> str:
        """A new register, where it will stay: until its first slot is whole it is not there."""
        fd = self._in_folder(path, lambda: os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644))
        try:
            files.write_all(fd, register.blank(data, 1))
            os.fdatasync(fd)
            self._sync_folders(path)
            register.mark(fd, 1)
            return register.tag_of(data, 1)
        except OSError:
            os.unlink(path)
            raise
        finally:
            os.close(fd)

    def _put_larger(self, path: str, data: bytes, sequence: int) -> str:
        """A register with larger slots in the place of one whose slots are too small."""
        self._put_whole(path, register.blank(data, sequence))
        with files.opened(path, os.O_RDWR) as fd:
            if fd is not None:
                register.mark(fd, sequence)
        return register.tag_of(data, sequence)

    def _put_whole(self, path: str, data: bytes) -> None:
        temp = f"{self._temp}/{next(self._temp_names)}"
        try:
            fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                files.write_all(fd, data)
                os.fdatasync(fd)
            finally:
                os.close(fd)
            self._in_folder(path, lambda: os.rename(temp, path))
        except OSError:
            files.remove(temp)
            raise
        self._sync_folders(path)

    def _in_folder(self, path: str, act: Callable[[], T]) -> T:
        """Do `act`, which makes `path`, making its folders as needed; a delete may be removing them meanwhile."""
        for _ in range(_RENAME_TRIES):
            with suppress(FileNotFoundError):
                return act()
            self._make_folder(os.path.dirname(path))
        return act()

    def _make_folder(self, folder: str) -> None:
        missing = []
        while not os.path.isdir(folder):
            missing.append(folder)
            folder = os.path.dirname(folder)
        for made in reversed(missing):
            with suppress(FileExistsError, FileNotFoundError):
                os.mkdir(made)
                self._durable_folders.discard(made)  # another process had removed the one that was remembered

    def _sync_folders(self, path: str) -> None:
        """The entry of `path`, and those of its folders, whoever made them: after the value, whose sync mostly
        covers them. A folder is remembered once its own entry is durable.
        """
        folder = os.path.dirname(path)
        files.sync(folder)
        while folder != f"{self._root}/data" and folder not in self._durable_folders:
            parent = os.path.dirname(folder)
            files.sync(parent)
            if len(self._durable_folders) >= FOLDERS_REMEMBERED_MAX:
                self._durable_folders.clear()
            self._durable_folders.add(folder)
            folder = parent

    def _delete(self, key: str) -> None:
        path = self._path(key)
        for suffix in paths.SUFFIXES:
            files.remove(path + suffix)
        folder = os.path.dirname(path)
        with suppress(OSError):  # the first folder that is not empty, or gone already
            while folder != f"{self._root}/data":
                self._durable_folders.discard(folder)
                os.rmdir(folder)
                folder = os.path.dirname(folder)

    def _list(self, prefix: str) -> Entries:
        """Keys with this prefix, in order, and their sizes; None where somebody is writing just now."""
        data = f"{self._root}/data"
        found: dict[str, int | None] = {}
        for folder, _, names in os.walk(f"{data}/{paths.folder_of(prefix)}"):
            for name in names:
                key = paths.key_of(os.path.relpath(f"{folder}/{name[:-2]}", data))
                if name[-2:] in paths.SUFFIXES and key.startswith(prefix):
                    with suppress(BlobMissing):
                        found[key] = self._size(key, f"{folder}/{name}")
        return sorted(found.items())

    def _size(self, key: str, path: str) -> int | None:
        """Raises BlobMissing when it went away, or never was whole."""
        try:
            if path.endswith(paths.BLOB):
                return os.stat(path).st_size
            return self._under_lock(_stripe(key), lambda: len(self._get(key).data))
        except FileNotFoundError:
            raise BlobMissing(key) from None
        except _LockHeldError:
            return None

    def _path(self, key: str) -> str:
        return f"{self._root}/data/{paths.path_of(key)}"


class _LockHeldError(Exception):
    """Another process, or another operation of this one that outlived its caller, holds the key's lock."""


def _release(turn: asyncio.Lock, ended: asyncio.Future[Any]) -> None:
    ended.exception()  # nobody waits for it any more
    turn.release()


def _stripe(key: str) -> int:
    return int.from_bytes(blake3(paths.path_of(key).encode()).digest(length=2), "big") % LOCK_FILES


def _check(key: str, present: str | None, condition: str | Absent) -> None:
    if isinstance(condition, Absent):
        if present is not None:
            raise PreconditionFailed(f"{key}: something is stored there")
    elif present != condition:
        raise PreconditionFailed(f"{key}: " + ("another value" if present else "nothing") + " is stored there")
