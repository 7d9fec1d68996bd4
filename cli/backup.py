"""`domicile backup verify`: Scrub, started and followed (API, "CLI"; PROTOCOLS section 10)."""

from __future__ import annotations

import json
from typing import Any

from domicile.cli.failures import CliError, Exit
from domicile.cli.following import followed, started
from domicile.cli.http import Node, path
from domicile.cli.output import Output


def verify(node: Node, output: Output, region: str | None, asked: dict[str, float], *, follow: bool) -> None:
    """Prints what was read, and what was found. Raises CliError when anything is wrong with it."""
    where = region or node.get(path("cluster"))["region"]
    body = json.dumps({"workflow": "Scrub", "input": {"region": where, **asked}})
    described = started(node, path("control", "operations"), body)
    if not follow:
        output.value(described)
        return
    found: dict[str, Any] = followed(node, output, path("control", "operations", described["id"]), described)
    output.value(found)
    if found["problems_in_all"]:
        raise CliError(f"{found['problems_in_all']} problems: {found['problems'][0]}", Exit.FAILED)
