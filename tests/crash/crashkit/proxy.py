"""A wire that can be cut: TCP from a node to its store, refused, delayed, or cut after a request was delivered."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

from ports import free_port

ACCEPT_SECS = 0.1
BIND_TRIES = 100
PIECE = 1 << 16


class Proxy:
    """Listens on a port of its own for as long as it is `up`, and hands on to `target`.

    `delay_secs` is waited before each piece of a request; of every `cut_every` answers one is not handed on: the
    connection ends instead, when the store has done what it was asked.
    """

    def __init__(self, target: tuple[str, int]) -> None:
        self.delay_secs = 0.0
        self.cut_every = 0
        self.cuts = 0
        self._target = target
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._answers = 0
        self._closing = threading.Event()
        self._listener: socket.socket | None = None
        self.port = free_port()  # nobody else is given it while this is down
        self.up()

    def up(self) -> None:
        """Listen; on the same port each time."""
        listener = self._bound()
        listener.settimeout(ACCEPT_SECS)
        self._listener = listener
        self._start(self._accept, listener)

    def _bound(self) -> socket.socket:
        """Whoever still waits on the old one holds the port for a moment."""
        for _ in range(BIND_TRIES):
            with suppress(OSError):
                return socket.create_server(("127.0.0.1", self.port), backlog=256)
            self._closing.wait(ACCEPT_SECS)
        raise AssertionError(f"port {self.port} was taken meanwhile")

    @property
    def is_down(self) -> bool:
        return self._listener is None

    def down(self) -> None:
        """Refuse whoever comes, and cut whoever is there."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()
        with self._lock:
            for end in self._open:
                _hang_up(end)

    def close(self) -> None:
        self._closing.set()
        self.down()
        for thread in self._threads:
            thread.join(30)

    def _start(self, work: object, *args: object) -> None:
        thread = threading.Thread(target=work, args=args, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        while self._listener is listener:
            try:
                near, _ = listener.accept()
            except TimeoutError:
                continue
            except OSError:
                return  # it was closed
            self._join(near)

    def _join(self, near: socket.socket) -> None:
        try:
            far = socket.create_connection(self._target, timeout=30)
        except OSError:
            near.close()
            return
        for end in (near, far):
            end.settimeout(None)
        with self._lock:
            self._open |= {near, far}
            if self._listener is None:
                _hang_up(near)
        done = threading.Semaphore(0)
        self._start(self._pump, near, far, True, done)
        self._start(self._pump, far, near, False, done)
        self._start(self._bury, near, far, done)

    def _pump(self, source: socket.socket, sink: socket.socket, asking: bool, done: threading.Semaphore) -> None:
        with suppress(OSError):
            while piece := source.recv(PIECE):
                self._hold(asking)
                if not asking and self._cuts():
                    break
                sink.sendall(piece)
        for end in (source, sink):
            _hang_up(end)
        done.release()

    def _hold(self, asking: bool) -> None:
        """Before a piece goes on."""
        if asking and self.delay_secs:
            self._closing.wait(self.delay_secs)

    def _cuts(self) -> bool:
        with self._lock:
            self._answers += 1
            cut = self.cut_every > 0 and self._answers % self.cut_every == 0
            self.cuts += cut
            return cut

    def _bury(self, near: socket.socket, far: socket.socket, done: threading.Semaphore) -> None:
        for _ in range(2):
            done.acquire()
        with self._lock:
            self._open -= {near, far}
        near.close()
        far.close()


def _hang_up(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
