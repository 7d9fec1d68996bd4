"""A process of the world: what runs in its context is stopped, continued and killed with it.

Every callback of the loop carries a context; a node's carry the process they belong to. So a kill is exact: from that
step on nothing of the process runs, at whatever await each of its tasks was. A stop (SIGSTOP, a suspended machine)
holds its callbacks until it goes on.
"""

from __future__ import annotations

import contextvars
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simworld.loop import SimHandle, SimLoop, SimTask

PROCESS: contextvars.ContextVar[Process | None] = contextvars.ContextVar("simworld.process", default=None)

_CLOSES_MAX = 100


class Process:
    """One run of a node's process. `name` is never reused within a world."""

    def __init__(self, loop: SimLoop, name: str) -> None:
        self.loop = loop
        self.name = name
        self.alive = True
        self.context = contextvars.Context()
        self.context.run(PROCESS.set, self)
        self.tasks: list[SimTask] = []
        self._held: list[SimHandle] | None = None
        self._prune_at = 64

    def spawn(self, coro: Coroutine[Any, Any, Any]) -> SimTask:
        """Run `coro` as a task of this process."""
        return self.context.copy().run(self.loop.create_task, coro)

    def holds(self, handle: SimHandle) -> bool:
        """The loop asks before it runs a callback: True when it must not run (now, or ever)."""
        if not self.alive:
            return True
        if self._held is not None:
            self._held.append(handle)
            return True
        return False

    def stop(self) -> None:
        """SIGSTOP: nothing of this process runs until `resume`."""
        if self._held is None:
            self._held = []

    def resume(self) -> None:
        """SIGCONT: what became due meanwhile runs, in the order in which it did."""
        held, self._held = self._held or [], None
        self.loop.ready_again(held)

    @property
    def stopped(self) -> bool:
        return self._held is not None

    def kill(self) -> None:
        """SIGKILL, at once; also from inside a callback of the process itself."""
        if not self.alive:
            return
        self.alive = False
        self._held = None
        self.loop.in_world(self.loop.call_soon, self._bury)

    def adopt(self, task: SimTask) -> None:
        """The loop reports a new task of this process."""
        self.tasks.append(task)
        if len(self.tasks) > self._prune_at:
            self.tasks = [task for task in self.tasks if not task.done()]
            self._prune_at = 2 * len(self.tasks) + 64

    def _bury(self) -> None:
        tasks, self.tasks = self.tasks, []
        for task in tasks:
            close_task(task)


def close_task(task: SimTask) -> None:
    """End a task that will never run again, silently: its `finally` blocks run as a dead process, without effect."""
    if task.done():
        return
    task.mute()
    coro = task.get_coro()
    for _ in range(_CLOSES_MAX):
        try:
            task.context.copy().run(coro.close)
            return
        except BaseException:  # noqa: BLE001 - whatever the clean-up of the dead does is lost with them
            continue


def dead() -> bool:
    """Whether the code that asks belongs to a process that was killed: what it does has no effect any more."""
    process = PROCESS.get()
    return process is not None and not process.alive
