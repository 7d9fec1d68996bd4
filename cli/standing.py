"""`domicile project replicate` and `failover`: a copy in another region, and going on from it (API, "CLI")."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from domicile.cli.failures import CliError, Exit
from domicile.cli.following import RUNNING, started, told
from domicile.cli.http import Node, path
from domicile.cli.output import Output

LOOK_SECS = 0.5
OPERATIONS = path("control", "operations")


def replicate(node: Node, project: str, to: str, every_secs: float) -> Any:
    """How the replication stands; begun if it has to be."""
    asked = {"project": project, "to": to, "every_secs": every_secs}
    return started(node, OPERATIONS, json.dumps({"workflow": "ReplicateProject", "input": asked}))


def stop(node: Node, project: str) -> Any:
    """The copy stays as it is; how the replication stands."""
    return node.send("POST", f"{OPERATIONS}/replicate-{project}/stop")


def failover(node: Node, output: Output, project: str, to: str, confirm: Callable[[str], bool]) -> Any:
    """States the loss, asks, and returns once calls are taken in `to`; how the failover stands then.

    Raises CliError when it is not confirmed, or fails.
    """
    asked = {"project": project, "to": to}
    described = started(node, OPERATIONS, json.dumps({"workflow": "FailoverRegion", "input": asked}))
    at = f"{OPERATIONS}/failover-{project}"
    described = _until(node, output, at, described, {"ask"})
    if _step(described) == "ask":
        if not confirm(_loss(described["progress"], project, to)):
            node.send("DELETE", at)
            raise CliError("nothing was done", Exit.FAILED, "--accept-loss does not ask")
        described = node.send("POST", f"{at}/go_on")
    return _until(node, output, at, described, {"away", "close", "drain", "compare", "done"})


def _loss(progress: dict[str, Any], project: str, to: str) -> str:
    lag = f"its copy in {to} is {progress['lag_secs']:.0f} s old"
    if not progress["counted"]:
        return f"{project}: {lag}, and what was answered since cannot be counted. Go on without it?"
    lost = f"{progress['lost_objects']} objects ({progress['missing_objects']} of them missing)"
    return f"{project}: {lag}; {lost} lack {progress['lost_bytes']} bytes of writes. Go on without them?"


def _step(described: dict[str, Any]) -> str:
    return str((described["progress"] or {}).get("step", ""))


def _until(node: Node, output: Output, at: str, described: dict[str, Any], steps: set[str]) -> dict[str, Any]:
    """Until it is at one of the steps, or past `ask` already, or has completed. Raises CliError when it failed."""
    later = {"away", "close", "drain", "compare", "done"}
    while described["status"] == RUNNING and _step(described) not in steps | later:
        output.say(told(described))
        time.sleep(LOOK_SECS)
        described = node.get(at)
    if described["status"] not in (RUNNING, "completed"):
        why = described["failure"] or described["status"]
        raise CliError(f"{described['id']} did not complete: {why}", Exit.FAILED, problem={"operation": described})
    return described
