"""Commands about incidents: `domicile incident …`; as cheap to import as `main`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from domicile.cli.options import LOCAL, Json, Url, WaitSecs, node_at
from domicile.cli.output import Output

app = typer.Typer(name="incident", help="Takeovers that may lack answered writes.", no_args_is_help=True)
Which = Annotated[
    str, typer.Argument(metavar="INCIDENT", help="OBJECT_ID/EPOCH as `incident ls` shows it; its beginning will do.")
]


@app.command("ls")
def incident_ls(wait: WaitSecs = 10, url: Url = LOCAL, json: Json = False) -> None:
    """List the open ones, and how far each recovery is."""
    from domicile.cli import incidents

    incidents.ls(node_at(url, wait), Output(as_json=json))


@app.command("show")
def incident_show(which: Which, wait: WaitSecs = 10, url: Url = LOCAL, json: Json = False) -> None:
    """Show what was found: which copies are missing, how much differs, which rows."""
    from domicile.cli import incidents

    incidents.show(node_at(url, wait), Output(as_json=json), which)


@app.command("apply")
def incident_apply(which: Which, wait: WaitSecs = 10, url: Url = LOCAL, json: Json = False) -> None:
    """Bring back the rows the object lacks, and updates whose old values still stand; list the rest, and close."""
    from domicile.cli import incidents

    output = Output(as_json=json)
    output.value(incidents.decide(node_at(url, wait), output, which, "apply"))


@app.command("keep")
def incident_keep(which: Which, wait: WaitSecs = 10, url: Url = LOCAL, json: Json = False) -> None:
    """Keep the object as it is now, and close."""
    from domicile.cli import incidents

    output = Output(as_json=json)
    output.value(incidents.decide(node_at(url, wait), output, which, "keep"))


@app.command("export")
def incident_export(
    which: Which,
    file: Annotated[Path, typer.Argument(help="Where to write the lost branch as a SQLite file.", show_default=False)],
    wait: WaitSecs = 10,
    url: Url = LOCAL,
    json: Json = False,
) -> None:
    """Write the lost branch into a SQLite file; it decides nothing."""
    from domicile.cli import incidents

    Output(as_json=json).value(incidents.export(node_at(url, wait), which, file))
