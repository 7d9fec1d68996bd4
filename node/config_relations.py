"""What must hold between settings: the relations of PROTOCOLS section 3, and those without which one has no effect."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from domicile.node.config import Config

Relation = tuple[str, tuple[str, ...], Callable[["Config"], bool]]


def broken_relations(config: Config, sources: Mapping[str, str]) -> list[str]:
    """One line for each relation that does not hold, with both values and where they come from."""
    return [f"{rule}: {_told(config, names, sources)}" for rule, names, holds in _RELATIONS if not holds(config)]


def _within_deadline(name: str, unit_secs: float) -> Relation:
    rule = f"{name.upper()} must be at most CALL_DEADLINE_SECS"
    return rule, (name, "call_deadline_secs"), lambda c: getattr(c, name) * unit_secs <= c.call_deadline_secs


_RELATIONS: tuple[Relation, ...] = (
    (
        "with PLACEMENT on etcd, BLOBS must name a store that all nodes share",
        ("placement", "blobs"),
        lambda c: not c.placement.startswith("etcd://") or c.blobs != "file:",
    ),
    (
        "with CONTROL on etcd, PLACEMENT must be on etcd too: the embedded store knows one region",
        ("control", "placement"),
        lambda c: not c.control.startswith("etcd://") or c.placement.startswith("etcd://"),
    ),
    (
        "NODE_HEARTBEAT_SECS + NODE_RENEW_TIMEOUT_SECS must be less than NODE_ADMISSION_SECS",
        ("node_heartbeat_secs", "node_renew_timeout_secs", "node_admission_secs"),
        lambda c: c.node_heartbeat_secs + c.node_renew_timeout_secs < c.node_admission_secs,
    ),
    (
        "NODE_ADMISSION_SECS + NODE_FENCE_MARGIN_SECS must be at most NODE_TTL_SECS",
        ("node_admission_secs", "node_fence_margin_secs", "node_ttl_secs"),
        lambda c: c.node_admission_secs + c.node_fence_margin_secs <= c.node_ttl_secs,
    ),
    (
        "NODE_LOOP_SECS must be 0 or at least NODE_ADMISSION_SECS: a shorter pause costs nothing that ending it saves",
        ("node_loop_secs", "node_admission_secs"),
        lambda c: c.node_loop_secs == 0 or c.node_loop_secs >= c.node_admission_secs,
    ),
    (
        "OBJECT_SHIP_RESERVED must be less than OBJECT_SHIP_CONCURRENCY",
        ("object_ship_reserved", "object_ship_concurrency"),
        lambda c: c.object_ship_reserved < c.object_ship_concurrency,
    ),
    (
        "OBJECT_STORE_LAG_MS must be at least OBJECT_STORE_INTERVAL_MS",
        ("object_store_lag_ms", "object_store_interval_ms"),
        lambda c: c.object_store_interval_ms <= c.object_store_lag_ms,
    ),
    (
        "OBJECT_QUORUM must be at most OBJECT_REPLICAS",
        ("object_quorum", "object_replicas"),
        lambda c: c.object_replicas == 0 or c.object_quorum <= c.object_replicas,
    ),
    _within_deadline("object_call_secs", 1),
    _within_deadline("object_ack_gate_ms", 0.001),
    _within_deadline("object_takeover_wait_ms", 0.001),
    _within_deadline("object_read_wait_ms", 0.001),
)


def _told(config: Config, names: tuple[str, ...], sources: Mapping[str, str]) -> str:
    return ", ".join(f"{n.upper()} = {_number(getattr(config, n))} (from {sources.get(n, 'default')})" for n in names)


def _number(value: object) -> str:
    return f"{value:g}" if isinstance(value, int | float) else str(value)
