"""Commands about projects (API, "HTTP")."""

from __future__ import annotations

import json
from typing import Any

from domicile.cli.failures import CliError, Exit
from domicile.cli.http import Node, path
from domicile.cli.output import Output


def create(node: Node, project: str, region: str | None, on_incident: str | None) -> Any:
    """The project's policy as the node now has it."""
    if on_incident not in (None, "serve", "wait"):
        raise CliError(f"--on-incident {on_incident!r} is neither `serve` nor `wait`", Exit.USAGE)
    policy = {"region": region, "on_incident": on_incident}
    body = json.dumps({name: value for name, value in policy.items() if value is not None})
    return node.send("PUT", path("projects", project), body)


def repin(node: Node, which: tuple[str, str], to: str | None, *, none: bool) -> Any:
    """`which`: project and class. What is recorded of it then."""
    if (to is None) != none:
        raise CliError("give either --to REGION or --none", Exit.USAGE)
    project, cls = which
    return node.send("PUT", path("projects", project, "classes", cls), json.dumps({"pin": to}))


def ls(node: Node, output: Output) -> None:
    """Every project the node's cluster knows."""
    answer = node.get(path("projects"))
    output.rows(answer["projects"], ["id", "region", "on_incident"], "no projects yet")
