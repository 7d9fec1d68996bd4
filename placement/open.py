"""The placement store that the settings name (API, "Settings"): `sqlite:` or `etcd://h1:2379,h2:2379`."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol

from domicile.placement.embedded import EmbeddedStore
from domicile.placement.store import Store

ETCD = "etcd://"
SQLITE = "sqlite:"
FILE_NAME = "placement.db"

Sleep = Callable[[float], Awaitable[None]]


class PlacementSettings(Protocol):
    """The settings read here; `node.config.Config` has them. Files are given by path, empty is none."""

    @property
    def data(self) -> str: ...
    @property
    def placement(self) -> str: ...
    @property
    def placement_ca_file(self) -> str: ...
    @property
    def placement_cert_file(self) -> str: ...
    @property
    def placement_key_file(self) -> str: ...
    @property
    def placement_user(self) -> str: ...
    @property
    def placement_password_file(self) -> str: ...


def open_store(
    settings: PlacementSettings,
    monotonic: Callable[[], float],
    sleep: Sleep,
    *,
    on_broken: Callable[[str], None] | None = None,
) -> Store:
    """Opens the embedded store's file; of etcd nothing is asked yet. `sleep` works on any loop. `on_broken` is told
    that the embedded store answers nothing any more until its file is opened anew.

    Raises ValueError for settings that do not fit together, OSError for a file that cannot be read, StoreUnavailable.
    """
    if settings.placement.startswith(SQLITE):
        path = settings.placement.removeprefix(SQLITE)
        return EmbeddedStore(path or os.path.join(settings.data, FILE_NAME), monotonic, on_broken=on_broken)
    # Only here, so that a node on the embedded store does not load a driver it has no use for.
    from domicile.placement.etcd import EtcdStore
    from domicile.placement.etcd_link import EtcdConfig

    cert, key = _file(settings.placement_cert_file), _file(settings.placement_key_file)
    if (cert is None) != (key is None):
        raise ValueError("PLACEMENT_CERT_FILE and PLACEMENT_KEY_FILE go together")
    password = _file(settings.placement_password_file)
    if bool(settings.placement_user) != (password is not None):
        raise ValueError("PLACEMENT_USER and PLACEMENT_PASSWORD_FILE go together")
    config = EtcdConfig(
        endpoints=endpoints_of(settings.placement),
        ca=_file(settings.placement_ca_file),
        cert=cert,
        key=key,
        user=settings.placement_user,
        # Editors end files with a newline; no password of etcd's does.
        password=(password or b"").decode().rstrip("\r\n"),
    )
    return EtcdStore(config, monotonic, sleep)


def endpoints_of(placement: str) -> tuple[str, ...]:
    """host:port of every member that `etcd://…` names. Raises ValueError."""
    if not placement.startswith(ETCD):
        raise ValueError(f"PLACEMENT = {placement} is not understood: it is sqlite: or etcd://host:port,host:port")
    endpoints = tuple(part.strip() for part in placement.removeprefix(ETCD).split(","))
    for endpoint in endpoints:
        host, _, port = endpoint.rpartition(":")
        if not host or not port.isdigit():
            raise ValueError(f"PLACEMENT: {endpoint!r} is no host:port")
    return endpoints


def _file(path: str) -> bytes | None:
    return Path(path).read_bytes() if path else None
