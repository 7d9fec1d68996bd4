"""`domicile config`, and where a command finds its settings: the environment, and domicile.toml where it runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from domicile.cli.failures import CliError, Exit
from domicile.cli.output import Output
from domicile.node.config import ConfigError, Loaded, load, rows

TOML = Path("domicile.toml")
CLIENT_NAMES = ("DOMICILE_URL", "DOMICILE_TOKEN")  # read by commands that ask a node; no settings of one


def for_node(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment a node is given: everything but what only the command line reads."""
    return {name: value for name, value in environ.items() if name not in CLIENT_NAMES}


def loaded(environ: Mapping[str, str], flags: Mapping[str, Any] | None = None) -> Loaded:
    """The settings as a node started here would have them. Raises CliError that lists everything wrong."""
    toml = TOML.read_text() if TOML.exists() else None
    try:
        return load(for_node(environ), toml, flags)
    except ConfigError as error:
        raise CliError(
            "these settings cannot be used:\n    " + "\n    ".join(error.problems),
            Exit.FAILED,
            "nothing was started; `domicile config` prints all settings once these are right",
        ) from None


def show(environ: Mapping[str, str], output: Output) -> None:
    """Every setting: name, value, source, meaning."""
    table = [row._asdict() for row in rows(loaded(environ))]
    output.rows(table, ["name", "value", "source", "meaning"], "")
