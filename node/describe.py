"""Where an object is and how safe it is, without waking it (API, HTTP)."""

from __future__ import annotations

from typing import Any

from domicile.errors import NoSuchObject, NotServing
from domicile.node import register
from domicile.node.errors import NodeError
from domicile.node.host import Host
from domicile.node.residency import Residency
from domicile.placement.claims import SeenLease
from domicile.placement.records import Deleted, Held, ObjectKey, Released
from domicile.placement.store import StoreUnavailable


async def describe(host: Host, node_id: str, key: ObjectKey, residency: Residency | None) -> dict[str, Any]:
    """Raises NoSuchObject, NotServing. Lengths in bytes, `alarm_due` in milliseconds since 1970."""
    try:
        row = await host.leases.read(key.id)
        mirror = await host.mirror.read(key.id)
    except StoreUnavailable as error:
        raise NotServing(f"the placement store does not answer: {error}") from error
    about: dict[str, Any] = {"id": key.id, "region": host.config.region, "replicas": [], "alarm_due": mirror.due_ms}
    if residency is not None:
        return about | _awake(residency, node_id)
    if (
        row is None
        or isinstance(row.row.state, Deleted)
        or (isinstance(row.row.state, Released) and not row.row.state.tag)
    ):
        raise NoSuchObject(f"there is no object {key}")
    return about | await _asleep(host, key, row)


def _awake(residency: Residency, node_id: str) -> dict[str, Any]:
    log, landed = residency.log, residency.leg.manifest
    return {
        "node": node_id,
        "epoch": str(residency.epoch),
        "incarnation": str(residency.incarnation),
        "generation": str(log.generation),
        "length": log.length,
        "watermark": max(0, residency.flights.landed - (log.mark - log.length)),
        "store_length": landed.length if landed.generation == log.generation else 0,
        "resident": True,
    }


async def _asleep(host: Host, key: ObjectKey, row: SeenLease) -> dict[str, Any]:
    try:
        manifest, _ = await register.read(host, key.id)
    except NodeError as error:
        raise NotServing(f"the blob store does not answer: {error}") from error
    state = row.row.state
    return {
        "node": state.owner if isinstance(state, Held) else None,
        "epoch": str(manifest.epoch) if manifest else None,
        "incarnation": str(row.row.incarnation),
        "generation": str(manifest.generation) if manifest else None,
        "length": manifest.length if manifest else 0,
        "watermark": manifest.length if manifest else 0,
        "store_length": manifest.length if manifest else 0,
        "resident": False,
    }
