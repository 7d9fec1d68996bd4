"""Commands about projects: `domicile project …`; as cheap to import as `main`."""

from __future__ import annotations

from typing import Annotated

import typer

from domicile.cli.operation_commands import Follow
from domicile.cli.options import LOCAL, Class, Json, Project, Url, WaitSecs, confirmed, node_at
from domicile.cli.output import Output

app = typer.Typer(name="project", help="Create, list and move projects.", no_args_is_help=True)


@app.command("create")
def project_create(
    project: Project,
    region: Annotated[str | None, typer.Option("--region", help="Its home; else the region of the node asked.")] = None,
    on_incident: Annotated[
        str | None, typer.Option("--on-incident", help="`serve` or `wait`; see docs/guarantees.md.")
    ] = None,
    wait: WaitSecs = 10,
    url: Url = LOCAL,
    json: Json = False,
) -> None:
    """Create a project; doing it again changes nothing."""
    from domicile.cli import projects

    Output(as_json=json).value(projects.create(node_at(url, wait), project, region, on_incident))


@app.command("move")
def project_move(
    project: Project,
    to: Annotated[str, typer.Option("--to", metavar="REGION", help="Its home from then on.")] = "",
    mb_per_sec: Annotated[float, typer.Option("--mb-per-sec", min=0, help="Copy no faster; 0: as fast as may be.")] = 0,
    keep_hours: Annotated[
        float | None, typer.Option("--keep-hours", min=0, help="How long the old copy is kept; else MOVE_KEEP_HOURS.")
    ] = None,
    follow: Follow = True,
    cancel: Annotated[bool, typer.Option("--cancel", help="Go back, if its home has not been flipped yet.")] = False,
    wait: WaitSecs = 10,
    url: Url = LOCAL,
    json: Json = False,
) -> None:
    """Move a project to another region: it serves while it is copied, then pauses for a moment, and lives there."""
    from domicile.cli import moves

    output, how = Output(as_json=json), moves.How(follow, cancel)
    options = {"to": to, "mb_per_sec": mb_per_sec, "keep_hours": keep_hours}
    output.value(moves.project(node_at(url, wait), output, project, options, how))


@app.command("repin")
def project_repin(
    project: Project,
    cls: Class,
    to: Annotated[str | None, typer.Option("--to", metavar="REGION", help="Where the class lives from now on.")] = None,
    none: Annotated[bool, typer.Option("--none", help="In the project's home, like classes without a pin.")] = False,
    wait: WaitSecs = 10,
    url: Url = LOCAL,
    json: Json = False,
) -> None:
    """Pin a class to another region than the one recorded at its first birth. Its objects must live there already."""
    from domicile.cli import projects

    Output(as_json=json).value(projects.repin(node_at(url, wait), (project, cls), to, none=none))


@app.command("ls")
def project_ls(wait: WaitSecs = 10, url: Url = LOCAL, json: Json = False) -> None:
    """List the projects."""
    from domicile.cli import projects

    projects.ls(node_at(url, wait), Output(as_json=json))


@app.command("replicate")
def project_replicate(
    project: Project,
    to: Annotated[str, typer.Option("--to", help="The region of the standing copy.", show_default=False)] = "",
    every: Annotated[float, typer.Option("--every", min=0, help="Seconds between two passes.")] = 30,
    stop: Annotated[bool, typer.Option("--stop", help="After the pass under way; the copy stays.")] = False,
    wait: WaitSecs = 10,
    url: Url = LOCAL,
    json: Json = False,
) -> None:
    """Keep a standing copy of a project in another region, from which it can go on there."""
    from domicile.cli import standing
    from domicile.cli.failures import CliError, Exit

    node = node_at(url, wait)
    if not (stop or to):
        raise CliError("which region? give --to", Exit.USAGE)
    Output(as_json=json).value(standing.stop(node, project) if stop else standing.replicate(node, project, to, every))


@app.command("failover")
def project_failover(
    project: Project,
    to: Annotated[str, typer.Option("--to", help="The region with the standing copy.", show_default=False)],
    accept_loss: Annotated[bool, typer.Option("--accept-loss", help="Do not ask: go on whatever is lost.")] = False,
    wait: WaitSecs = 10,
    url: Url = LOCAL,
    json: Json = False,
) -> None:
    """Let a project go on in another region while its own is away. Says what would be lost, and asks, first."""
    from domicile.cli import standing

    def confirm(loss: str) -> bool:
        return accept_loss or confirmed(loss)

    output = Output(as_json=json)
    output.value(standing.failover(node_at(url, wait), output, project, to, confirm))
