"""Commands about objects: call, sql, ls, inspect, delete (API, "HTTP")."""

from __future__ import annotations

import json
import uuid
from typing import Any

from domicile.cli.failures import CliError, Exit
from domicile.cli.http import Node, path
from domicile.cli.output import Output, plain

PAGES_MAX = 1000


def call(node: Node, key: tuple[str, str, str], method: str, arguments: str | None, idempotency_key: str | None) -> Any:
    """The method's result. `arguments` is JSON text: an array, an object, or None."""
    project, cls, name = key
    if arguments is not None:
        parsed = parse(arguments, "the arguments")
        if not isinstance(parsed, list | dict):
            raise CliError(
                "the arguments are neither an array nor an object",
                Exit.USAGE,
                f"for one argument write '[{arguments}]'",
            )
    at = path(project, "objects", cls, name, method)
    return node.send("POST", at, arguments, {"Idempotency-Key": idempotency_key or new_key()})


def sql(
    node: Node,
    output: Output,
    database: tuple[str, str],
    statement: tuple[str, str | None],
    *,
    write: bool,
    key: str | None,
) -> None:
    """Runs (SQL, params as JSON text) in (project, name) and prints the rows, or what a write changed."""
    project, name = database
    text, params = statement
    body: dict[str, Any] = {"sql": text}
    if params is not None:
        body["params"] = parse(params, "--params")
    headers = {"Idempotency-Key": key or new_key()} if write else {}
    at = path(project, "databases", name, "exec" if write else "read")
    try:
        answer = node.send("POST", at, json.dumps(body), headers)
    except CliError as error:
        if not write and (error.problem or {}).get("code") == "sql_refused":
            error.advice = "this command reads; --write runs the statement as `exec`"
        raise
    rows = answer if isinstance(answer, list) else None
    if rows and not output.as_json:
        output.rows(rows, list(rows[0]), "")
    elif rows is not None:
        output.rows(rows, [], "no rows")
    else:
        output.value(answer)


def ls(node: Node, output: Output, project: str, cls: str | None, prefix: str | None) -> None:
    """All pages of the project's directory."""
    found: list[dict[str, Any]] = []
    token: str | None = None
    for _ in range(PAGES_MAX):
        page = node.get(path(project, "objects"), {"class": cls, "prefix": prefix, "token": token})
        found += page["objects"]
        token = page.get("token")
        if not token:
            break
    output.rows(found, ["class", "name", "id"], f"no such objects in {project}")


def inspect(node: Node, output: Output, key: tuple[str, str, str]) -> None:
    """What the node knows of the object."""
    project, cls, name = key
    found: dict[str, Any] = node.get(path(project, "objects", cls, name))
    if output.as_json:
        output.value(found)
        return
    width = max(map(len, found))
    for field, value in found.items():
        output.say(f"{field:<{width}}  {plain(value)}".rstrip())


def delete(node: Node, key: tuple[str, str, str], if_match: str | None, idempotency_key: str | None) -> Any:
    """The node's answer: the tombstone's epoch."""
    project, cls, name = key
    headers = {"Idempotency-Key": idempotency_key or new_key()}
    if if_match:
        headers["If-Match"] = if_match
    return node.send("DELETE", path(project, "objects", cls, name), None, headers)


def parse(text: str, what: str) -> Any:
    """JSON from the command line. Raises CliError that shows where it is wrong."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise CliError(
            f"{what} are no JSON: {error}", Exit.USAGE, """quote them for the shell, for example '["ada", 25]'"""
        ) from None


def new_key() -> str:
    """An idempotency key for one run of a command, so that its own retries never run a call twice."""
    return str(uuid.uuid4())
