"""How activities fail, and how much of what they say goes into a history."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

DETAIL_MAX = 500


def refused(kind: str, detail: str) -> ApplicationError:
    """Fails for good: trying again would say the same. A text of any length may be given.

    It is an answer, which whoever asked is told; benign, so that the worker logs no trace of it.
    """
    return ApplicationError(cut(detail), type=kind, non_retryable=True, category=ApplicationErrorCategory.BENIGN)


def cut(text: str) -> str:
    """At most 500 characters: a history keeps what is put into it for ever."""
    return text if len(text) <= DETAIL_MAX else text[: DETAIL_MAX - 1] + "…"


def told(progress: Any) -> dict[str, Any]:
    """A dataclass as a heartbeat carries it."""
    return asdict(progress)
