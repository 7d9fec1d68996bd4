"""What both ends of the peer connections are built from; everything outside the process is passed in here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from domicile.node.clock import Clock
from domicile.node.wire.codec import VERSIONS, Versions
from domicile.node.wire.hello import Identity, Nonce
from domicile.node.wire.limits import Limits
from domicile.node.wire.network import Network


class Log(Protocol):
    """What is needed of a structlog logger."""

    def info(self, event: str, **fields: Any) -> Any: ...

    def warning(self, event: str, **fields: Any) -> Any: ...

    def error(self, event: str, **fields: Any) -> Any: ...


class Meter:
    """Hooks for metrics, which do nothing here. `lane` is one of three; `kind` the name of a message class."""

    def opened(self, lane: str) -> None:
        """A connection this node dialled is up."""

    def lost(self, lane: str) -> None:
        """A connection this node dialled is gone, or did not come about."""

    def refused(self) -> None:
        """Somebody who dialled this node was refused."""

    def replied(self, kind: str, secs: float) -> None:
        """A request this node put to another was answered, well or not, after so many seconds."""


@dataclass(frozen=True, slots=True)
class Wiring:
    """`identity` is asked at every opening: a node that registers anew has another id. `nonce(n)`: n random bytes."""

    loop: asyncio.AbstractEventLoop
    network: Network
    identity: Callable[[], Identity]
    nonce: Nonce
    clock: Clock
    log: Log
    limits: Limits = field(default_factory=Limits)
    versions: Versions = field(default_factory=lambda: VERSIONS)
    meter: Meter = field(default_factory=Meter)
