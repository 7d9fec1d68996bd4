"""`domicile project move` and `domicile object move` (API, "CLI"; PROTOCOLS section 10)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from domicile.cli.failures import CliError, Exit
from domicile.cli.following import followed, started
from domicile.cli.http import Node, path
from domicile.cli.output import Output

OPERATIONS = path("control", "operations")


@dataclass(frozen=True, slots=True)
class How:
    """What is done with a move: followed to its end or not, or cancelled."""

    follow: bool
    cancel: bool


def project(node: Node, output: Output, which: str, options: dict[str, Any], how: How) -> Any:
    """`options`: `to`, and what else MoveProject takes. Its result, or how it stands when it is not followed."""
    at = path("projects", which, "move")
    if how.cancel:
        return _after_cancel(node, output, at, how)
    if not options.get("to"):
        raise CliError("where to? give --to REGION", Exit.USAGE)
    given = {name: value for name, value in options.items() if value is not None}
    described = started(node, at, json.dumps(given))
    return followed(node, output, at, described) if how.follow else described


def one(node: Node, output: Output, which: dict[str, str], how: How) -> Any:
    """`which`: MoveObject's input."""
    if not which["to"] and not how.cancel:
        raise CliError("where to? give --to REGION", Exit.USAGE)
    about = node.get(path(which["project"], "objects", which["cls"], which["name"]))
    at = path("control", "operations", f"move-object-{about['id']}")
    if how.cancel:
        return _after_cancel(node, output, at, how)
    described = started(node, OPERATIONS, json.dumps({"workflow": "MoveObject", "input": dict(which)}))
    return followed(node, output, at, described) if how.follow else described


def _after_cancel(node: Node, output: Output, at: str, how: How) -> Any:
    """Asked to go back. Where that is followed, it has gone back; a move that got past its flip is not refused late."""
    described = node.send("DELETE", at)
    if not how.follow:
        return described
    try:
        return followed(node, output, at, described)
    except CliError as error:
        problem = error.problem or {}
        if problem.get("operation", {}).get("status") == "canceled":
            return problem["operation"]
        raise
