"""`domicile drain`: empty a node before it is taken away (API, "CLI"; PROTOCOLS section 10, "DrainNode")."""

from __future__ import annotations

from typing import Any

from domicile.cli.failures import CliError, Exit
from domicile.cli.following import followed, started
from domicile.cli.http import Node, path
from domicile.cli.output import Output


def run(node: Node, output: Output, which: str, *, wait: bool, cancel: bool) -> Any:
    """`which`: a node id, or its HTTP address. The result, or how it stands when it is not waited for."""
    at = path("nodes", _node_id(node, which), "drain")
    if cancel:
        return node.send("DELETE", at)
    described = started(node, at, "{}")
    return followed(node, output, at, described) if wait else described


def _node_id(node: Node, which: str) -> str:
    """Of one the cluster has. Raises CliError."""
    nodes = node.get(path("cluster"))["nodes"]
    for row in nodes:
        if which in (row["node_id"], row["http"], f"http://{row['http']}"):
            return str(row["node_id"])
    known = ", ".join(f"{row['node_id']} ({row['http']})" for row in nodes)
    raise CliError(f"there is no node {which}", Exit.FAILED, f"there are {known}")
