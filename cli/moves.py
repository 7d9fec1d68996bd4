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
    return _run(node, output, at, ("MoveProject", {"project": which, **options}), how)


def one(node: Node, output: Output, which: dict[str, str], how: How) -> Any:
    """`which`: MoveObject's input."""
    if not which["to"] and not how.cancel:
        raise CliError("where to? give --to REGION", Exit.USAGE)
    about = node.get(path(which["project"], "objects", which["cls"], which["name"]))
    at = path("control", "operations", f"move-object-{about['id']}")
    if how.cancel:
        return _after_cancel(node, output, at, how)
    return _run(node, output, at, ("MoveObject", dict(which)), how)


def _run(node: Node, output: Output, at: str, operation: tuple[str, dict[str, Any]], how: How) -> Any:
    workflow, given = operation
    described = started(node, OPERATIONS, json.dumps({"workflow": workflow, "input": given}))
    there = (described.get("progress") or {}).get("to")
    if there and there != given["to"]:
        raise CliError(f"it is on its way to {there} already", Exit.FAILED, "follow it, or cancel it with --cancel")
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
