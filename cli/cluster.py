"""`domicile cluster`: the nodes a node knows of, as it knows them (API, "CLI")."""

from __future__ import annotations

from typing import Any

from domicile.cli.http import Node, path
from domicile.cli.output import Output

COLUMNS = ("node_id", "http", "state", "residents", "copy_id", "zone")


def show(node: Node, output: Output) -> None:
    """A row a node; with --json the node's whole answer."""
    found: dict[str, Any] = node.get(path("cluster"))
    if output.as_json:
        output.value(found)
        return
    output.say(f"cluster {found['cluster']}, region {found['region']}, replicas ack by {found['replica_sync']}")
    output.rows(found["nodes"], COLUMNS, "no nodes")
