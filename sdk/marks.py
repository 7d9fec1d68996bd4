"""What an app writes on its classes and functions: `Region`, `@read` and `@cron`. Marks only; `registry` reads them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from domicile.crontab import Crontab

READ_MARK = "__domicile_read__"
CRON_MARK = "__domicile_cron__"

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Region:
    """Pins a class to a region, by name: `placement = Region("eu-west")`."""

    name: str


@dataclass(frozen=True, slots=True)
class CronMark:
    """One schedule of a function. `name` is the name of the `Cron` object that stands for it."""

    crontab: Crontab
    name: str


def read(method: F) -> F:
    """Declare a method read-only: it runs on a snapshot and may not write, arm or call (PROTOCOLS section 8)."""
    setattr(method, READ_MARK, True)
    return method


def cron(expression: str, *, name: str | None = None) -> Callable[[F], F]:
    """Schedule a function of the app's module; `name` defaults to the function's. Raises BadArguments.

    Times are UTC. The schedule is an object of class `Cron` under the app's script, `s.<script>`: nodes that load the
    app see to it that it is there.
    """
    crontab = Crontab.parse(expression)

    def mark(function: F) -> F:
        marks: tuple[CronMark, ...] = getattr(function, CRON_MARK, ())
        setattr(function, CRON_MARK, (*marks, CronMark(crontab, name or function.__name__)))
        return function

    return mark
