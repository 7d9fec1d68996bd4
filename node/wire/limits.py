"""Bounds of peer connections: bytes and seconds (PROTOCOLS section 7, "bounded by bytes in flight per peer")."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """All sizes in bytes, all `_secs` in seconds."""

    window: int = 4 << 20
    """Said to one peer and not answered yet. More waits here."""
    queued: int = 16 << 20
    """Waiting to be said to one peer behind the window. More is refused with PeerBusy."""
    message_max: int = 64 << 20
    """One message; it travels in pieces."""
    held_max: int = 128 << 20
    """Of one connection that carries requests: unsent ones at the dialer, more is refused with PeerBusy; unanswered
    ones and unsent answers at the listener, more is refused as overloaded."""
    running_max: int = 1024
    """Requests of one connection that run at once. More is refused as overloaded."""
    strangers_max: int = 64
    """Connections that have not proved themselves yet. More are closed unheard."""
    hello_secs: float = 3.0
    """From dialling, or accepting, to the last proof."""
    ping_secs: float = 1.0
    """After so long without a word an empty frame is sent, by both ends."""
    dead_secs: float = 5.0
    """After so long without a byte heard the flow is dead."""
    answer_secs: float = 30.0
    """After so long an unanswered message ends its append stream: the peer lives, its disk does not."""
    redial_secs: tuple[float, float] = (0.1, 2.0)
    """Before the next dial after one that failed: doubles from the first to the second."""
