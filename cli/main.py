"""The commands and their options. What each does is in a module of its own, imported when it runs.

Importing this must stay cheap (`domicile --help` and completion run it each time), so nothing of the node is imported
at the top.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from domicile.cli.failures import CliError, Exit
from domicile.cli.http import Node, Waits
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
project_app = typer.Typer(name="project", help="Create and list projects.", no_args_is_help=True)
app.add_typer(project_app)

Json = Annotated[bool, typer.Option("--json", help="Print JSON, one line for each result or event.")]
Url = Annotated[str, typer.Option("--url", envvar="DOMICILE_URL", help="The node to ask.")]
WaitSecs = Annotated[float, typer.Option("--wait", min=0, help="Seconds to go on trying what may be tried again.")]
Key = Annotated[str | None, typer.Option("--key", help="Idempotency key: the same key never runs the call twice.")]
Project = Annotated[str, typer.Argument(help="A project's id.", show_default=False)]
Class = Annotated[str, typer.Argument(metavar="CLASS", help="The object's class.", show_default=False)]
Name = Annotated[str, typer.Argument(help="The object's name.", show_default=False)]
App = Annotated[str, typer.Argument(metavar="APP", help="A file or a module: shop.py, shop.main", show_default=False)]

LOCAL = "http://127.0.0.1:8080"


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


def _node(url: str, wait: float) -> Node:
    return Node(url, Waits(wait, time.monotonic, time.sleep), os.environ.get("DOMICILE_TOKEN"))


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

    Output(as_json=json).value(objects.call(_node(url, wait), (project, cls, name), method, arguments, key))


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

    objects.sql(_node(url, wait), Output(as_json=json), (project, database), (statement, params), write=write, key=key)


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

    objects.ls(_node(url, wait), Output(as_json=json), project, cls, prefix)


@app.command()
def inspect(
    project: Project, cls: Class, name: Name, wait: WaitSecs = 10, url: Url = LOCAL, json: Json = False
) -> None:
    """Show where an object is and how safe; wakes nothing."""
    from domicile.cli import objects

    objects.inspect(_node(url, wait), Output(as_json=json), (project, cls, name))


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

    if not yes and not typer.confirm(f"Delete {project}/{cls}/{name} and all it stored?", err=True):
        raise CliError("not deleted", Exit.FAILED)
    Output(as_json=json).value(objects.delete(_node(url, wait), (project, cls, name), if_match, key))


@project_app.command("create")
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

    Output(as_json=json).value(projects.create(_node(url, wait), project, region, on_incident))


@project_app.command("ls")
def project_ls(wait: WaitSecs = 10, url: Url = LOCAL, json: Json = False) -> None:
    """List the projects."""
    from domicile.cli import projects

    projects.ls(_node(url, wait), Output(as_json=json))


@app.command()
def dev(
    application: App,
    port: Annotated[int | None, typer.Option("--port", min=1, max=65535, help="8080; any free one if taken.")] = None,
    data: Annotated[Path, typer.Option("--data", help="Where everything is kept.")] = Path(".domicile"),
    reload: Annotated[bool, typer.Option("--reload/--no-reload", help="Restart when the app's files change.")] = True,
    once: Annotated[bool, typer.Option("--once", help="End when the node ends, instead of starting it again.")] = False,
    json: Json = False,
) -> None:
    """Serve an app on this machine: one node, embedded stores, projects created on first use."""
    from domicile.cli import dev as command

    command.run(command.Dev(application, port, data, reload=reload, once=once), Output(as_json=json))


@app.command()
def up(
    application: Annotated[
        str | None, typer.Option("--app", help="A file or a module; without one there are databases only.")
    ] = None,
    nodes: Annotated[int, typer.Option("--nodes", min=1, max=16, help="How many.")] = 3,
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

    command.run(command.Up(application, nodes, data, port, control=control), Output(as_json=json))


@app.command()
def cluster(wait: WaitSecs = 10, url: Url = LOCAL, json: Json = False) -> None:
    """List the nodes of the cluster: addresses, states, copies."""
    from domicile.cli import cluster as command

    command.show(_node(url, wait), Output(as_json=json))


@app.command()
def node(
    once: Annotated[bool, typer.Option("--once", help="End when the node ends, instead of starting it again.")] = False,
) -> None:
    """Run a production node from its settings (see `domicile config`)."""
    from domicile.cli import serve

    serve.run(dict(os.environ), once=once)


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
def doctor(json: Json = False) -> None:
    """Look at what a node needs on this machine and say what to fix."""
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
