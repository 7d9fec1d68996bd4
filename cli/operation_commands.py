"""Commands that start, follow and cancel operations, at the top level beside those of `main`; as cheap to import."""

from __future__ import annotations

from typing import Annotated

import typer

from domicile.cli.options import LOCAL, Json, Url, WaitSecs, node_at
from domicile.cli.output import Output

app = typer.Typer()
Follow = Annotated[bool, typer.Option("--follow/--no-follow", help="Wait until it has ended, with a progress bar.")]


@app.command()
def drain(
    which: Annotated[str, typer.Argument(metavar="NODE", help="A node's id or HTTP address.", show_default=False)],
    follow: Follow = True,
    cancel: Annotated[bool, typer.Option("--cancel", help="Take back a drain: the node serves again.")] = False,
    wait: WaitSecs = 10,
    url: Url = LOCAL,
    json: Json = False,
) -> None:
    """Empty a node before it is taken away: its objects go to others, and it takes nothing new."""
    from domicile.cli import drain as command

    output = Output(as_json=json)
    output.value(command.run(node_at(url, wait), output, which, wait=follow, cancel=cancel))
