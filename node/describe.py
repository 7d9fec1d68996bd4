"""Where an object is and how safe it is, without waking it (API, HTTP)."""

from __future__ import annotations

from typing import Any

from domicile.errors import NoSuchObject, NotServing
from domicile.node import register
from domicile.node.errors import NodeError
from domicile.node.host import Host
from domicile.node.quorum import NOTHING
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
    about: dict[str, Any] = {"id": key.id, "region": host.config.region, "alarm_due": mirror.due_ms}
    if residency is not None:
        return about | _awake(residency, node_id) | {"replicas": _replicas(host, residency)}
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
        "replicas": [_replica(host, copy) for copy in (manifest.members if manifest else ())],
    }


def _replicas(host: Host, residency: Residency) -> list[dict[str, Any]]:
    """The members, and how far each is known to be behind."""
    log, leg = residency.log, residency.replicas
    held = leg.held() if leg is not None else {}
    shown = []
    for copy, mark in held.items():
        length = mark - log.mark_at(0)
        lag = log.mark - mark if mark > NOTHING else None
        shown.append(_replica(host, copy, length if length >= 0 else None, lag))
    return shown


def _replica(host: Host, copy_id: str, length: int | None = None, lag: int | None = None) -> dict[str, Any]:
    """`length`: acked in the present generation. `lag`: what it has yet to ack, in bytes. None: nothing is known."""
    row = host.nodes.with_copy(copy_id)
    return {"copy_id": copy_id, "node": row.node_id if row is not None else None, "length": length, "lag": lag}
