"""Options and arguments that commands share, and the node they ask. Cheap to import: see `main`."""

from __future__ import annotations

import os
import time
from typing import Annotated

import typer

from domicile.cli.http import Node, Waits

Json = Annotated[bool, typer.Option("--json", help="Print JSON, one line for each result or event.")]
Url = Annotated[str, typer.Option("--url", envvar="DOMICILE_URL", help="The node to ask.")]
WaitSecs = Annotated[float, typer.Option("--wait", min=0, help="Seconds to go on trying what may be tried again.")]
Key = Annotated[str | None, typer.Option("--key", help="Idempotency key: the same key never runs the call twice.")]
Project = Annotated[str, typer.Argument(help="A project's id.", show_default=False)]
Class = Annotated[str, typer.Argument(metavar="CLASS", help="The object's class.", show_default=False)]
Name = Annotated[str, typer.Argument(help="The object's name.", show_default=False)]
App = Annotated[str, typer.Argument(metavar="APP", help="A file or a module: shop.py, shop.main", show_default=False)]

LOCAL = "http://127.0.0.1:8080"


def confirmed(question: str) -> bool:
    """Asked on stderr. False also where nobody answers: Ctrl-C, or no terminal."""
    try:
        return typer.confirm(question, err=True)
    except typer.Abort:
        typer.echo(err=True)
        return False


def node_at(url: str, wait: float) -> Node:
    """The node to ask, tried again for `wait` seconds where that may help."""
    return Node(url, Waits(wait, time.monotonic, time.sleep), os.environ.get("DOMICILE_TOKEN"))
