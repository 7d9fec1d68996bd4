"""Completion scripts."""

from __future__ import annotations

from typer._completion_classes import completion_init
from typer._completion_shared import get_completion_script

from domicile.cli.failures import CliError, Exit

SHELLS = ("bash", "zsh", "fish", "powershell")


def script(shell: str) -> str:
    """The script that a shell sources. Raises CliError for a shell without one."""
    if shell not in SHELLS:
        raise CliError(f"no completion for {shell!r}", Exit.USAGE, f"there is one for {', '.join(SHELLS)}")
    return get_completion_script(prog_name="domicile", complete_var="_DOMICILE_COMPLETE", shell=shell)


def answer() -> None:
    """Make the application answer a shell that asks what may come next, when it is called."""
    completion_init()
