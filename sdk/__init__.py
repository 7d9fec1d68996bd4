"""Durable objects on your own machines: subclass `Object`, serve it, call it by name with a `Client`.

Names are imported when first used, so that `import domicile` costs an application nothing it does not need (the HTTP
client above all).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from domicile import errors as errors
    from domicile.client import Client as Client
    from domicile.client import SyncClient as SyncClient
    from domicile.context import Alarm as Alarm
    from domicile.database import Database as Database
    from domicile.errors import DomicileError as DomicileError
    from domicile.marks import Region as Region
    from domicile.marks import cron as cron
    from domicile.marks import read as read
    from domicile.object import Object as Object
    from domicile.requests import Call as Call

_HOMES = {
    "Alarm": "context",
    "Call": "requests",
    "Client": "client",
    "Database": "database",
    "DomicileError": "errors",
    "Object": "object",
    "Region": "marks",
    "SyncClient": "client",
    "cron": "marks",
    "read": "marks",
}

__all__ = [
    "Alarm",
    "Call",
    "Client",
    "Database",
    "DomicileError",
    "Object",
    "Region",
    "SyncClient",
    "cron",
    "errors",
    "read",
]


def __getattr__(name: str) -> Any:
    if name == "errors":
        return importlib.import_module("domicile.errors")
    if name not in _HOMES:
        raise AttributeError(f"module 'domicile' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"domicile.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
