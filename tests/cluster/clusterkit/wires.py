"""A wire to a listener that knows who speaks: one node's connections can be cut and refused, the others' stay."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from crashkit.proxy import Proxy

HELD_LOOK_SECS = 0.02


class Wire(Proxy):
    """`speakers` gives each name's process as it is now. While `held`, nothing is carried and nothing ends; of some
    speakers alone, while they are `muted`."""

    def __init__(self, target: tuple[str, int], speakers: Callable[[], dict[str, int]] | None = None) -> None:
        self.held = False
        self.muted: set[str] = set()
        self._carries = threading.local()
        self._speakers = speakers or dict
        self._barred: set[str] = set()
        self._of: dict[str, set[socket.socket]] = {}
        self._names = threading.Lock()
        super().__init__(target)

    def bar(self, *names: str) -> None:
        """Cut these speakers, and refuse them from now on."""
        with self._names:
            self._barred.update(names)
            cut = [end for name in names for end in self._of.pop(name, set())]
        for end in cut:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def admit(self) -> None:
        """Everybody may speak again."""
        with self._names:
            self._barred.clear()
        self.muted.clear()

    def close(self) -> None:
        self.held = False
        self.muted.clear()
        super().close()

    def _join(self, near: socket.socket) -> None:
        name = self._who(near) if self._speakers is not dict else ""
        with self._names:
            barred = name in self._barred
            if not barred:
                self._of.setdefault(name, set()).add(near)
        if barred:
            near.close()
        else:
            super()._join(near)

    def _pump(self, source: socket.socket, sink: socket.socket, asking: bool, done: threading.Semaphore) -> None:
        self._carries.near = source if asking else sink
        super()._pump(source, sink, asking, done)

    def _hold(self, asking: bool) -> None:
        super()._hold(asking)
        while self.held or self._is_muted(self._carries.near):
            self._closing.wait(HELD_LOOK_SECS)

    def _is_muted(self, near: socket.socket) -> bool:
        with self._names:
            return any(near in self._of.get(name, ()) for name in self.muted)

    def _who(self, near: socket.socket) -> str:
        """Whose process has the other end of this connection; empty for nobody's known."""
        here, there = near.getsockname()[1], near.getpeername()[1]
        inode = _inode(there, here)
        for name, pid in self._speakers().items():
            if inode in _sockets(pid):
                return name
        return ""


def _inode(local: int, remote: int) -> str:
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if (_port(fields[1]), _port(fields[2])) == (local, remote):
            return f"socket:[{fields[9]}]"
    return "nobody's"


def _port(address: str) -> int:
    return int(address.rpartition(":")[2], 16)


def _sockets(pid: int) -> set[str]:
    found = set()
    with suppress(FileNotFoundError):
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with suppress(FileNotFoundError):
                found.add(os.readlink(f"/proc/{pid}/fd/{fd}"))
    return found
