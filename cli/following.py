"""Operations by the command line: started, or joined, and followed to their end with a bar (API, "CLI").

What a workflow says of itself (`progress`), or the activity under way reports, is shown; where it has `done` and
`total`, as a bar. Ctrl-C stops following, never the operation.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

from domicile.cli.failures import CliError, Exit
from domicile.cli.http import Node
from domicile.cli.output import Output, plain

LOOK_SECS = 0.5
RUNNING = "running"


def started(node: Node, at: str, body: str) -> dict[str, Any]:
    """POST to an operation's path; gives its description."""
    described: dict[str, Any] = node.send("POST", at, body)
    return described


def followed(node: Node, output: Output, at: str, described: dict[str, Any]) -> Any:
    """Until it has ended; gives its result. Raises CliError when it failed, or was cancelled."""
    looks = _looks(node, at, described)
    if not output.as_json and sys.stderr.isatty():
        described = _with_bar(looks)
    else:
        said = ""
        for described in looks:
            if not output.as_json and (line := told(described)) != said:
                print(line, file=sys.stderr, flush=True)
                said = line
    if described["status"] != "completed":
        why = described["failure"] or described["status"]
        raise CliError(f"{described['id']} did not complete: {why}", Exit.FAILED, problem={"operation": described})
    return described["result"]


def told(described: Mapping[str, Any]) -> str:
    """One line of where it is: `drain-n-1: release, done 12, total 40`."""
    parts = _parts(described)
    words = [plain(parts.pop("step"))] if parts.get("step") else []
    words += [f"{name} {plain(value)}" for name, value in parts.items() if value is not None]
    failing = [f"{step['name']} failed {step['attempt']} times: {step['failure']}" for step in _failing(described)]
    return f"{described['id']}: " + ", ".join([*words, *failing] or [str(described["status"])])


def measured(described: Mapping[str, Any]) -> tuple[int, int] | None:
    """(done, total), where it says so."""
    parts = _parts(described)
    done, total = parts.get("done"), parts.get("total")
    return (done, total) if isinstance(done, int) and isinstance(total, int) else None


def _looks(node: Node, at: str, described: dict[str, Any]) -> Iterator[dict[str, Any]]:
    while True:
        yield described
        if described["status"] != RUNNING:
            return
        time.sleep(LOOK_SECS)
        described = node.get(at)


def _with_bar(looks: Iterator[dict[str, Any]]) -> dict[str, Any]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    described: dict[str, Any] = {}
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=None)
        for described in looks:
            done, total = measured(described) or (0, None)
            progress.update(task, description=told(described), completed=done, total=total)
    return described


def _parts(described: Mapping[str, Any]) -> dict[str, Any]:
    """The workflow's own words, then what its activities reported last."""
    parts = dict(described.get("progress") or {})
    for step in described.get("steps") or []:
        for reported in step["reported"]:
            parts |= reported if isinstance(reported, dict) else {}
    return parts


def _failing(described: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [step for step in described.get("steps") or [] if step["failure"]]
