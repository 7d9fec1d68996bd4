"""Waits of tests on the loop they share with what they test."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

WAIT_SECS = 60.0


async def until(holds: Callable[[], Any], what: str) -> None:
    """Wait on the condition `what` (awaited if it is awaitable), not on time. One that never holds is named."""
    try:
        async with asyncio.timeout(WAIT_SECS) as limit:
            while True:
                held = holds()
                if await held if inspect.isawaitable(held) else held:
                    return
                await asyncio.sleep(0.01)
    except TimeoutError:
        if not limit.expired():
            raise
        raise AssertionError(f"not within {WAIT_SECS:g} s: {what}") from None
