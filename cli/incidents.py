"""`domicile incident …`: what may have been lost, and what to do about it (API, "CLI"; PROTOCOLS section 10)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from domicile.cli.failures import CliError, Exit
from domicile.cli.following import followed, started
from domicile.cli.http import Node, path
from domicile.cli.output import Output, plain


def ls(node: Node, output: Output) -> None:
    """The open ones; `step` is the recovery's, None where it has not begun."""
    found = [incident | _recovery(node, incident) for incident in node.get(path("incidents"))["incidents"]]
    output.rows(found, ["incident", "object", "step", "missing"], "no open incidents")


def show(node: Node, output: Output, which: str) -> None:
    """One: for people as text with a table for each table that differs."""
    incident = _one(node, which)
    incident |= _recovery(node, incident)
    if output.as_json:
        output.value(incident)
        return
    output.say(f"{incident['object']}, served at {plain(incident['served'])} without a read quorum")
    output.say(f"asked {len(incident['asked'])} copies, missing: {', '.join(incident['missing'] or []) or 'none'}")
    output.say(f"step: {incident['step'] or 'not begun'} {incident['why']}".rstrip())
    branch = incident["branch"]
    if branch is None:
        return
    output.say(f"lost branch: {branch['rows']} rows differ, {branch['size']} bytes; {branch['blob']}")
    for line in branch["altered"]:
        output.say(f"schema: {line}")
    for table in branch["tables"]:
        counts = ", ".join(f"{table[kind]} {kind}" for kind in ("added", "updated", "deleted") if table[kind])
        output.say(f"\n{table['table']}: {counts}")
        rows = [{"kind": row["kind"], "was": row["was"], "is": row["is"]} for row in table["rows"]]
        output.rows(rows, ["kind", "was", "is"], "")


def decide(node: Node, output: Output, which: str, decision: str) -> Any:
    """Says so to the recovery, begun if it has to be, and follows it to its end; gives its result."""
    incident = _one(node, which)
    asked = {name: incident[name] for name in ("region", "object_id", "epoch")}
    started(node, path("control", "operations"), json.dumps({"workflow": "RecoverIncident", "input": asked}))
    at = path("incidents", incident["object_id"], incident["epoch"])
    return followed(node, output, at, node.send("POST", f"{at}/{decision}"))


def export(node: Node, which: str, file: Path) -> dict[str, Any]:
    """{"file", "bytes"}. Raises CliError: there is no branch yet, or the file cannot be written."""
    incident = _one(node, which)
    data = node.download(path("incidents", incident["object_id"], incident["epoch"], "database"))
    try:
        file.write_bytes(data)
    except OSError as error:
        raise CliError(f"{file}: {error.strerror}", Exit.FAILED) from None
    return {"file": str(file), "bytes": len(data)}


def _one(node: Node, which: str) -> dict[str, Any]:
    """By OBJECT_ID/EPOCH, or the beginning of one. Raises CliError unless there is exactly one."""
    found: list[dict[str, Any]] = node.get(path("incidents"))["incidents"]
    fitting = [incident for incident in found if f"{incident['object_id']}/{incident['epoch']}".startswith(which)]
    if len(fitting) != 1:
        what = f"{len(fitting)} open incidents begin with {which!r}"
        raise CliError(what, Exit.FAILED, "`domicile incident ls` lists them")
    return fitting[0]


def _recovery(node: Node, incident: dict[str, Any]) -> dict[str, Any]:
    """{"incident", "step", "missing", "why", "branch"}: where its workflow is, as far as one has begun."""
    name = {"incident": f"{incident['object_id']}/{incident['epoch']}"}
    nothing = name | {"step": None, "missing": None, "why": "", "branch": None}
    try:
        described = node.get(path("incidents", incident["object_id"], incident["epoch"]))
    except CliError as error:
        if error.exit_code == Exit.UNREACHABLE:
            raise
        return nothing | {"why": error.what}
    progress = described["progress"] or {}
    return nothing | {part: progress[part] for part in ("step", "missing", "why", "branch") if part in progress}
