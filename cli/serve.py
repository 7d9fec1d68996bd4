"""`domicile node`: becomes the supervisor of a node, once its settings have been checked."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import NoReturn

from domicile.cli import settings
from domicile.node import supervisor

CHILD = ("-m", "domicile.node.main")


def run(environ: Mapping[str, str], *, once: bool) -> NoReturn:
    """This process is the supervisor from here on. Raises CliError when the settings cannot be used."""
    config = settings.loaded(environ).config
    child, for_people = [sys.executable, *CHILD], config.log == "console"
    command = supervisor.command_line(os.path.abspath(config.data), child, once=once, quiet=for_people)
    os.execve(command[0], command, settings.for_node(environ))  # noqa: S606 - no shell is wanted
