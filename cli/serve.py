"""`domicile node`: hands this process to the supervisor, with settings that have been checked."""

from __future__ import annotations

from collections.abc import Mapping

from domicile.cli import settings


def run(environ: Mapping[str, str], *, once: bool) -> None:
    """Does not return while the node runs. Raises CliError when the settings cannot be used."""
    settings.loaded(environ)
    raise NotImplementedError
