"""The gates of a project, read and changed by steps of a move."""

from __future__ import annotations

from domicile.workflows.move_values import GateAt, GateChange, GateSeen
from domicile.workflows.steps import in_region


async def gate_seen(region: str, project: str) -> GateSeen:
    """As it is in the region; its version is for the change that follows."""
    seen: GateSeen = await in_region(region, "move-read-gate", GateAt(region, project), GateSeen)
    return seen


async def change_gate(change: GateChange) -> GateSeen:
    """Fails for good when it is another by now."""
    seen: GateSeen = await in_region(change.region, "move-change-gate", change, GateSeen)
    return seen
