"""The commands and their options. What each does is in a module of its own, imported when it runs.

Importing this must stay cheap (`domicile --help` and completion run it each time), so nothing of the node is imported
at the top.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from domicile.cli import backup_commands, incident_commands, object_commands, operation_commands, project_commands
from domicile.cli.failures import CliError, Exit
from domicile.cli.options import LOCAL, App, Class, Json, Key, Name, Project, Url, WaitSecs, confirmed, node_at
from domicile.cli.output import Output

app = typer.Typer(
    name="domicile",
    help="Durable objects on your own machines.",
    epilog="Exit codes: 0 done, 1 failed, 2 usage, 3 no node answered, 4 try again later, 5 outcome unknown.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(project_commands.app)
app.add_typer(backup_commands.app)
app.add_typer(incident_commands.app)
app.add_typer(object_commands.app)
app.add_typer(operation_commands.app)


def main() -> None:
    """The console script. Every error of ours ends with its own exit code and a line on what to do."""
    as_json = "--json" in sys.argv
    if "_DOMICILE_COMPLETE" in os.environ:
        from domicile.cli import completion as shells

        shells.answer()
    try:
        app(prog_name="domicile")
    except CliError as error:
        Output(as_json=as_json).failure(error)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(Exit.INTERRUPTED)


@app.command()
def call(
    project: Project,
    cls: Class,
    name: Name,
    method: Annotated[str, typer.Argument(help="A public method.", show_default=False)],
    arguments: Annotated[
        str | None, typer.Argument(metavar="[JSON]", help="An array (positional) or an object (by name).")
    ] = None,
    key: Key = None,
    wait: WaitSecs = 30,
    url: Url = LOCAL,
    json: Json = False,
) -> None:
    """Call a method of an object and print what it returns."""
    from domicile.cli import objects

    Output(as_json=json).value(objects.call(node_at(url, wait), (project, cls, name), method, arguments, key))


@app.command()
def sql(
    project: Project,
    database: Annotated[str, typer.Argument(help="The name of a Database object.", show_default=False)],
    statement: Annotated[str, typer.Argument(metavar="SQL", show_default=False)],
    params: Annotated[str | None, typer.Option("--params", help="JSON: an array, or an object for :names.")] = None,
    write: Annotated[bool, typer.Option("--write", help="Run it as `exec`: it may write.")] = False,
    key: Key = None,
    wait: WaitSecs = 30,
    url: Url = LOCAL,
    json: Json = False,
) -> None:
    """Run SQL in a database of the project. Reads unless --write is given."""
    from domicile.cli import objects

    objects.sql(
        node_at(url, wait), Output(as_json=json), (project, database), (statement, params), write=write, key=key
    )


@app.command()
def ls(
    project: Project,
    cls: Annotated[str | None, typer.Option("--class", help="Only objects of this class.")] = None,
    prefix: Annotated[str | None, typer.Option("--prefix", help="Only names that start with this.")] = None,
    wait: WaitSecs = 10,
    url: Url = LOCAL,
    json: Json = False,
) -> None:
    """List a project's objects."""
    from domicile.cli import objects

    objects.ls(node_at(url, wait), Output(as_json=json), project, cls, prefix)


@app.command()
def inspect(
    project: Project, cls: Class, name: Name, wait: WaitSecs = 10, url: Url = LOCAL, json: Json = False
) -> None:
    """Show where an object is and how safe; wakes nothing."""
    from domicile.cli import objects

    objects.inspect(node_at(url, wait), Output(as_json=json), (project, cls, name))


@app.command()
def delete(
    project: Project,
    cls: Class,
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    if_match: Annotated[str | None, typer.Option("--if-match", help="Only this incarnation of the object.")] = None,
    key: Key = None,
    wait: WaitSecs = 30,
    url: Url = LOCAL,
    json: Json = False,
) -> None:
    """Delete an object and everything it stored."""
    from domicile.cli import objects

    if not yes and not confirmed(f"Delete {project}/{cls}/{name} and all it stored?"):
        raise CliError("not deleted", Exit.FAILED, "--yes does not ask")
    Output(as_json=json).value(objects.delete(node_at(url, wait), (project, cls, name), if_match, key))


@app.command()
def dev(
    application: App,
    port: Annotated[int | None, typer.Option("--port", min=1, max=65535, help="8080; any free one if taken.")] = None,
    data: Annotated[Path, typer.Option("--data", help="Where everything is kept.")] = Path(".domicile"),
    reload: Annotated[bool, typer.Option("--reload/--no-reload", help="Restart when the app's files change.")] = True,
    once: Annotated[bool, typer.Option("--once", help="End when the node ends, instead of starting it again.")] = False,
    temporal: Annotated[bool, typer.Option("--temporal", help="With a Temporal of its own, for operations.")] = False,
    json: Json = False,
) -> None:
    """Serve an app on this machine: one node, embedded stores, projects created on first use."""
    from domicile.cli import dev as command

    command.run(command.Dev(application, port, data, reload, once, temporal), Output(as_json=json))


@app.command()
def up(
    application: Annotated[
        str | None, typer.Option("--app", help="A file or a module; without one there are databases only.")
    ] = None,
    nodes: Annotated[int, typer.Option("--nodes", min=1, max=16, help="How many, in each region.")] = 3,
    regions: Annotated[
        str, typer.Option("--regions", metavar="A,B", help="Several regions, each with its own etcd, bucket and nodes.")
    ] = "",
    data: Annotated[Path, typer.Option("--data", help="Where everything is kept.")] = Path(".domicile-up"),
    port: Annotated[
        int | None, typer.Option("--port", min=1, max=65519, help="Of the first node, and so on; 8080, or free ones.")
    ] = None,
    control: Annotated[
        bool, typer.Option("--control/--no-control", help="With Temporal and the control process, for operations.")
    ] = True,
    json: Json = False,
) -> None:
    """Run a whole cluster on this machine: etcd, Temporal, the control process and several nodes."""
    from domicile.cli import up as command

    names = tuple(name.strip() for name in regions.split(",") if name.strip())
    command.run(command.Up(application, nodes, data, port, control=control, regions=names), Output(as_json=json))


@app.command()
def cluster(wait: WaitSecs = 10, url: Url = LOCAL, json: Json = False) -> None:
    """List the nodes of the cluster: addresses, states, copies."""
    from domicile.cli import cluster as command

    command.show(node_at(url, wait), Output(as_json=json))


@app.command()
def node(
    once: Annotated[bool, typer.Option("--once", help="End when the node ends, instead of starting it again.")] = False,
    control: Annotated[
        bool,
        typer.Option("--control", help="The control plane in the same process, for one node with embedded stores."),
    ] = False,
) -> None:
    """Run a production node from its settings (see `domicile config`)."""
    from domicile.cli import serve

    serve.run(dict(os.environ), once=once, control=control)


@app.command()
def control(
    region: Annotated[
        list[str] | None, typer.Option("--region", help="Only this region's work; may be given several times.")
    ] = None,
) -> None:
    """Run the control plane from its settings: workers for operations, their schedules, and the control API."""
    from domicile.cli import control as command

    command.run(dict(os.environ), command.Control(tuple(region or ())))


@app.command()
def check(
    application: App,
    regions: Annotated[str, typer.Option("--regions", help="Known regions, a,b: pins must name one of them.")] = "",
    json: Json = False,
) -> None:
    """Load an app's classes and migrations and say what is wrong with them; serves nothing."""
    from domicile.cli import check as command

    known = tuple(filter(None, (region.strip() for region in regions.split(","))))
    command.run(application, known, Output(as_json=json))


@app.command()
def config(json: Json = False) -> None:
    """Print every setting: value, where it comes from, what it means."""
    from domicile.cli import settings

    settings.show(dict(os.environ), Output(as_json=json))


@app.command()
def doctor(
    json: Json = False,
    new_term: Annotated[
        bool,
        typer.Option("--new-term", help="After PLACEMENT was put back from a backup: new terms for all projects here."),
    ] = False,
) -> None:
    """Look at what a node needs on this machine and say what to fix."""
    if new_term:
        from domicile.cli import new_term as renewal

        renewal.run(dict(os.environ), Output(as_json=json))
        return
    from domicile.cli import doctor as command

    command.run(dict(os.environ), Output(as_json=json))


@app.command()
def completion(
    shell: Annotated[str, typer.Argument(help="bash, zsh, fish or powershell.")] = "bash",
) -> None:
    """Print the completion script of a shell: source <(domicile completion bash)."""
    from domicile.cli import completion as command

    typer.echo(command.script(shell))


if __name__ == "__main__":
    main()
