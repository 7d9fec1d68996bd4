"""Commands about what is stored: `domicile backup …`; as cheap to import as `main`."""

from __future__ import annotations

from typing import Annotated

import typer

from domicile.cli.options import LOCAL, Json, Url, WaitSecs, node_at
from domicile.cli.output import Output

app = typer.Typer(name="backup", help="What the blob store holds.", no_args_is_help=True)


@app.callback()
def backup() -> None:
    """What the blob store holds."""


@app.command("verify")
def backup_verify(
    region: Annotated[str | None, typer.Option("--region", help="Which; else that of the node asked.")] = None,
    sample: Annotated[
        float, typer.Option("--sample", min=0, max=1, help="Share of objects restored from the store alone.")
    ] = 0.02,
    mb_per_sec: Annotated[float, typer.Option("--mb-per-sec", min=0, help="Limit on what is read; 0: none.")] = 0,
    follow: Annotated[bool, typer.Option("--follow/--no-follow", help="Wait until it has ended.")] = True,
    wait: WaitSecs = 10,
    url: Url = LOCAL,
    json: Json = False,
) -> None:
    """Re-hash all that is stored, compare the copies on nodes, and restore a sample. Exits 1 if anything is wrong."""
    from domicile.cli import backup as command

    asked = {"sample": sample, "mb_per_sec": mb_per_sec}
    command.verify(node_at(url, wait), Output(as_json=json), region, asked, follow=follow)
