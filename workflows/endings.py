"""How operations end: what was begun is brought to its end before a cancel counts (PROTOCOLS section 10)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def to_its_end(work: Coroutine[Any, Any, T], cancellable: Callable[[], bool]) -> T:
    """What `work` gives. A cancel that comes meanwhile waits, and is raised then if it still may be."""
    task = asyncio.create_task(work)
    cancelled = False
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise
            cancelled = True
    if cancelled and cancellable():
        raise asyncio.CancelledError
    return task.result()
