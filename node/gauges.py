"""Levels that are read when Prometheus asks (API, "Metrics"): nothing on the path of a call pays for them."""

from __future__ import annotations

from domicile.node.clock import Clock
from domicile.node.nodes import Nodes
from domicile.node.residency import Residency
from domicile.node.residents import Residents
from domicile.node.telemetry import Telemetry


def bind_gauges(telemetry: Telemetry, clock: Clock, residents: Residents, nodes: Nodes) -> None:
    """Tie the gauges to what they show."""

    def store_lag() -> float:
        now = clock.monotonic()
        return max((residency.leg.lag(now) for residency in residents.awake()), default=0.0)

    telemetry.mailbox_depth.read = lambda: float(sum(residency.mailbox.depth for residency in residents.awake()))
    telemetry.unshipped_bytes.read = lambda: float(sum(residency.leg.unshipped for residency in residents.awake()))
    telemetry.store_lag_seconds.read = store_lag
    telemetry.incidents_open.read = lambda: float(
        sum(len(residency.leg.manifest.incidents) for residency in residents.awake())
    )
    telemetry.bases_lost.read = lambda: float(sum(_lost(residency) for residency in residents.awake()))
    telemetry.members.read = lambda: float(len(nodes.rows()))


def _lost(residency: Residency) -> bool:
    paged = residency.engine.paged
    return paged is not None and paged.lost
