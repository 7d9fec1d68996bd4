"""What `domicile doctor` found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Finding:
    """One thing looked at. `fix` says what to do unless all is well."""

    check: str
    state: Literal["ok", "warning", "broken"]
    found: str
    fix: str = ""
