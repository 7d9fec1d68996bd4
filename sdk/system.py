"""The machine as the client sees it: its clock, its randomness, its waits. Tests and simulations pass their own."""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class System:
    """`clock` is monotonic, in seconds; `random` gives [0, 1); `new_key` a text nobody else will ever have."""

    clock: Callable[[], float] = time.monotonic
    random: Callable[[], float] = random.random
    new_key: Callable[[], str] = lambda: secrets.token_hex(16)
    sleep: Callable[[float], None] = time.sleep
    sleep_async: Callable[[float], Awaitable[None]] = asyncio.sleep
