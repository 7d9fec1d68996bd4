"""Commands about where single objects are: `domicile object …`; as cheap to import as `main`."""

from __future__ import annotations

from typing import Annotated

import typer

from domicile.cli.operation_commands import Follow
from domicile.cli.options import LOCAL, Class, Json, Name, Project, Url, WaitSecs, node_at
from domicile.cli.output import Output

app = typer.Typer(name="object", help="Move single objects between regions.", no_args_is_help=True)


@app.callback()
def group() -> None:
    """Move single objects between regions."""


@app.command("move")
def object_move(
    project: Project,
    cls: Class,
    name: Name,
    to: Annotated[str, typer.Option("--to", metavar="REGION", help="Where it lives from then on.")] = "",
    follow: Follow = True,
    cancel: Annotated[bool, typer.Option("--cancel", help="Leave it where it is, if it has not moved yet.")] = False,
    wait: WaitSecs = 10,
    url: Url = LOCAL,
    json: Json = False,
) -> None:
    """Move one object to another region; its project stays, and it stays there when its project moves."""
    from domicile.cli import moves

    output, how = Output(as_json=json), moves.How(follow, cancel)
    which = {"project": project, "cls": cls, "name": name, "to": to}
    output.value(moves.one(node_at(url, wait), output, which, how))
