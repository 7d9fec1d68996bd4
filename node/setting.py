"""What a setting may be: how its text is read, and what it takes, in words. `config` declares the settings."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import field
from typing import Any, NamedTuple


class Kind(NamedTuple):
    """How a setting's text is read. `parse` raises ValueError; `allowed` says what it takes, in words."""

    parse: Callable[[str], Any]
    allowed: str


def whole(low: int, high: int, unit: str) -> Kind:
    """A whole number of `unit`, from low to high."""
    return Kind(lambda text: _within(int(text), low, high), f"a whole number of {unit} from {low} to {high}, no unit")


def number(low: float, high: float, unit: str) -> Kind:
    """A number of `unit`, from low to high."""
    return Kind(lambda text: _within(float(text), low, high), f"a number of {unit} from {low:g} to {high:g}, no unit")


def words(*allowed: str) -> Kind:
    """One of these words."""
    return Kind(lambda text: allowed[allowed.index(text)], "one of " + ", ".join(word or "(empty)" for word in allowed))


def shaped(pattern: str, allowed: str) -> Kind:
    """Text that matches the whole pattern."""
    return Kind(lambda text: _matching(re.compile(pattern), text), allowed)


TEXT = shaped(r"[^\x00-\x1f]*", "text without control characters")
WORD = shaped(r"[a-z0-9][a-z0-9-]{0,62}", "[a-z0-9][a-z0-9-]{0,62}")
REGION = shaped(r"(?!control$)[a-z0-9][a-z0-9-]{0,62}", "[a-z0-9][a-z0-9-]{0,62}, and not the reserved word control")
STORE = shaped(r"sqlite:.*|etcd://[^/\s]+", "sqlite: or etcd://host:port,host:port")
CONTROL = shaped(r"|sqlite:.*|etcd://[^/\s]+", "empty (as PLACEMENT), sqlite: or etcd://host:port,host:port")
BLOBS = shaped(r"file:.*|s3://[^/\s]+(/.*)?", "file: or s3://bucket/prefix")
_HOST_PORT = r"(?:\[[0-9a-fA-F:.]+\]|[^\s:/,\[\]]+):\d{1,5}"
ADDRESS = shaped(_HOST_PORT, "host:port")
MAYBE_ADDRESS = shaped(f"|{_HOST_PORT}", "empty or host:port")
ADDRESSES = shaped(rf"|{_HOST_PORT}(,{_HOST_PORT})*", "empty or host:port, several with commas")
MAYBE_URL = shaped(r"|https?://[^\s]+", "empty or an http:// or https:// address")
SCRIPT = shaped(r"[A-Za-z0-9_.-]{0,100}", "up to 100 of letters, digits, _ . and -")
DAYS = 86_400  # in seconds


def setting(default: Any, kind: Kind, meaning: str, *, secret: bool = False) -> Any:
    """A field of `Config`; its setting's name is the field's in capitals."""
    return field(default=default, metadata={"kind": kind, "meaning": meaning, "secret": secret})


def _within(value: Any, low: float, high: float) -> Any:
    if not low <= value <= high:  # false for NaN as well
        raise ValueError
    return value


def _matching(pattern: re.Pattern[str], text: str) -> str:
    if not pattern.fullmatch(text):
        raise ValueError
    return text
