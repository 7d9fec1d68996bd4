"""The heartbeat's own thread: a loop that no busy method and no blocked event loop can stop (PROTOCOLS section 3)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextvars import Context
from typing import Any, TypeVar, TypeVarTuple, Unpack

from domicile.placement.claims import Registration
from domicile.placement.loop_watch import LoopWatch
from domicile.placement.node_registry import Membership

REGISTER_SECS = 20.0  # a store that is slow for a moment is cheaper to wait for than another start of the process

T = TypeVar("T")
Args = TypeVarTuple("Args")


class _Loop(asyncio.SelectorEventLoop):
    """Deaf once it is closed. grpc has one queue for all loops of a process: what was cancelled here is told here, by
    whichever loop reads it, at any time, and a refusal would fail that loop in the middle of its own work."""

    def call_soon_threadsafe(
        self, callback: Callable[[Unpack[Args]], object], *args: *Args, context: Context | None = None
    ) -> asyncio.Handle:
        try:
            return super().call_soon_threadsafe(callback, *args, context=context)
        except RuntimeError:
            if not self.is_closed():
                raise
            return asyncio.Handle(callback, args, self, context)


class HeartbeatThread:
    """Runs one Membership. The methods here may be awaited on any loop of the process.

    `running` is done when the renewals have ended: the row is lost or left, or a fault of ours ended them, which is its
    exception then.
    """

    def __init__(self, membership: Membership, watch: LoopWatch | None = None) -> None:
        """`membership` has not been used on any loop. `watch` is of the loop that the renewals are to vouch for."""
        self.membership = membership
        self._watch = watch
        self.running: Future[None] | None = None
        self._loop = _Loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="heartbeat", daemon=True)
        self._thread.start()

    async def start(self) -> Registration:
        """Register, then renew until lost or left. Raises as `Membership.register`; then it may be called again."""
        registration = await self._there(self.membership.register(REGISTER_SECS))
        self.running = asyncio.run_coroutine_threadsafe(self.membership.run(), self._loop)
        if self._watch is not None:
            asyncio.run_coroutine_threadsafe(self._watch.run(), self._loop)
        return registration

    def hurry(self) -> None:
        """Renew now: the row has changed. From any thread."""
        self._loop.call_soon_threadsafe(self.membership.hurry)

    async def leave(self, why: str) -> bool:
        """As `Membership.leave`; the thread ends."""
        try:
            return await self._there(self.membership.leave(why))
        finally:
            await self.stop()

    async def stop(self) -> None:
        """End the thread; without `leave` the row stays, as after a crash."""
        if self._loop.is_closed():
            return
        await self._there(_cancel_others())
        await self._there(self.membership.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        await asyncio.get_running_loop().run_in_executor(None, self._thread.join)
        self._loop.close()

    async def _there(self, work: Coroutine[Any, Any, T]) -> T:
        """Run it there. Raises RuntimeError after `stop`."""
        if self._loop.is_closed():
            work.close()
            raise RuntimeError("the heartbeat has ended")
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
