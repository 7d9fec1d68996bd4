"""What a node's process lends to whatever runs beside its node: with embedded stores nobody else can open them."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

from domicile.node.blobs.base import Blobs
from domicile.node.clock import Clock
from domicile.node.config import Config
from domicile.node.node import Node
from domicile.placement.store import Store


@dataclass(frozen=True)
class Inside:
    """The process's own parts, all in use. `control`: the control keyspace's store, which may be `store`."""

    config: Config
    clock: Clock
    rng: random.Random
    log: Any
    store: Store
    control: Store
    blobs: Blobs
    node: Node


Beside = Callable[[Inside], AbstractAsyncContextManager[None]]
"""Entered once the node serves, left before it stops. Raises nothing."""
