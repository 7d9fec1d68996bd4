"""`domicile node`: becomes the supervisor of a node, once its settings have been checked."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any, NoReturn

from domicile.cli import settings
from domicile.cli.failures import CliError, Exit
from domicile.node import supervisor
from domicile.node.config import Config
from domicile.placement.keys import Keys
from domicile.placement.open import ETCD, endpoints_of

CHILD = ("-m", "domicile.node.main")
WITH_CONTROL = ("-m", "domicile.cli.node_with_control")


def run(environ: Mapping[str, str], *, once: bool, control: bool = False) -> NoReturn:
    """This process is the supervisor from here on. Raises CliError when the settings cannot be used."""
    config = settings.loaded(environ).config
    if control and not config.temporal:
        raise CliError("--control needs TEMPORAL", Exit.FAILED, "it is Temporal's frontend, host:port")
    child = [sys.executable, *(WITH_CONTROL if control else CHILD)]
    for_people = config.log == "console"
    command = supervisor.command_line(
        os.path.abspath(config.data), child, once=once, quiet=for_people, etcd=_etcd_of(config)
    )
    os.execve(command[0], command, settings.for_node(environ))  # noqa: S606 - no shell is wanted


def _etcd_of(config: Config) -> dict[str, Any] | None:
    """What the supervisor is to know of etcd, where that is the placement store."""
    if not config.placement.startswith(ETCD):
        return None
    access = {
        "endpoints": endpoints_of(config.placement),
        "ca_file": config.placement_ca_file,
        "cert_file": config.placement_cert_file,
        "key_file": config.placement_key_file,
        "user": config.placement_user,
        "password_file": config.placement_password_file,
    }
    return {"access": access, "root": Keys(config.cluster, config.region).root, "ttl_secs": config.node_ttl_secs}
