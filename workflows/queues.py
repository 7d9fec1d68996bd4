"""Task queues of the control plane (PROTOCOLS section 10): what runs where."""

from __future__ import annotations

CONTROL_QUEUE = "domicile-control"
"""All workflows, and activities on the control keyspace."""


def region_queue(region: str) -> str:
    """Activities that touch this region's etcd, bucket or nodes. No region is named `control`."""
    return f"domicile-{region}"
