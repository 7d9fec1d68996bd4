"""A few threads for short blocking calls, three times cheaper a hop than the loop's executor.

The thread that became idle last takes the next call: its stack is warm, and it alone is woken. A queue that they all
wait at would wake one more for each call, who finds it empty.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
_Job = tuple[Callable[[], Any], asyncio.AbstractEventLoop, "asyncio.Future[Any]"]


class Pool:
    """Runs calls in its own threads, in the order they came. Nothing stops a call once it was handed over."""

    def __init__(self, threads: int, name: str) -> None:
        self._lock = threading.Lock()
        self._jobs: deque[_Job] = deque()
        self._idle: list[threading.Lock] = []  # what each idle thread waits at, the last to come on top
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._threads = [threading.Thread(target=self._work, name=f"{name}-{i}", daemon=True) for i in range(threads)]
        for thread in self._threads:
            thread.start()

    def start(self, call: Callable[[], T]) -> asyncio.Future[T]:
        """A future for the call's result or its exception. Not after `close`."""
        assert not self._closed, "the pool is closed"
        if self._loop is None:  # kept, since asking for the running loop is a system call each time
            self._loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = self._loop.create_future()
        with self._lock:
            self._jobs.append((call, self._loop, future))
            gate = self._idle.pop() if self._idle else None
        if gate is not None:
            gate.release()
        return future

    def close(self) -> None:
        """Lets what is queued finish, then ends the threads."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for gate in idle:
            gate.release()
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        gate = threading.Lock()
        gate.acquire()
        while True:
            with self._lock:
                job = self._jobs.popleft() if self._jobs else None
                if job is None:
                    if self._closed:
                        return
                    self._idle.append(gate)
            if job is None:
                gate.acquire()
            else:
                _run(*job)
                del job  # what it refers to is not kept while the thread waits


def _run(call: Callable[[], Any], loop: asyncio.AbstractEventLoop, future: asyncio.Future[Any]) -> None:
    try:
        result, error = call(), None
    except BaseException as raised:  # noqa: BLE001 - it is the waiter's, whatever it is
        result, error = None, raised
    loop.call_soon_threadsafe(_settle, future, result, error)


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return  # cancelled meanwhile
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
