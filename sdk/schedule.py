"""`Cron`, the platform class: one object for each `@domicile.cron` of an app's module, under the script's own scope.

The object holds the expression and the alarm; the function is the app's. It runs like any handler: in a transaction of
the object, within `OBJECT_CALL_SECS`, again after a failure with growing waits. What was missed while nobody could run
it is run once. It is paused, resumed, listed and deleted like any object.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypedDict

from domicile.context import Alarm
from domicile.crontab import Crontab
from domicile.marks import CronMark
from domicile.object import Object

ALARM = "cron"


@dataclass(frozen=True, slots=True)
class CronSpec:
    """A schedule of a module's function: the object (`s.<script>`, `Cron`, name)."""

    mark: CronMark
    function: Any
    is_async: bool

    @property
    def name(self) -> str:
        return self.mark.name


class Schedule(TypedDict):
    """What is known of a schedule. Times in milliseconds since 1970; `next_ms` is None while it is paused.

    `occurrence_ms` is the time that ran last, `ran_ms` when it did; `failures` counts the tries of the next one.
    """

    cron: str | None
    paused: bool
    next_ms: int | None
    occurrence_ms: int | None
    ran_ms: int | None
    runs: int
    failures: int


class Cron(Object):
    """One schedule, by the name of its `@domicile.cron`. `schedules`: those the app has."""

    schedules: ClassVar[Mapping[str, CronSpec]] = {}

    def schedule(self, expression: str) -> Schedule:
        """Run by this expression from now on. Nodes call it when they load the app; the same again changes nothing."""
        Crontab.parse(expression)
        if self.kv.get("cron") != expression:
            self.kv.put("cron", expression)
            if not self.kv.get("paused", False):
                self.set_alarm(name=ALARM, cron=expression)
        return self.status()

    def pause(self) -> Schedule:
        """Nothing runs until `resume`, and nothing is caught up with then."""
        if not self.kv.get("paused", False):
            self.kv.put("paused", True)
            self.clear_alarm(ALARM)
        return self.status()

    def resume(self) -> Schedule:
        """Run again, from the next occurrence on."""
        if self.kv.get("paused", False):
            self.kv.put("paused", False)
            if (expression := self.kv.get("cron")) is not None:
                self.set_alarm(name=ALARM, cron=expression)
        return self.status()

    def status(self) -> Schedule:
        """When it ran, and when it runs next."""
        alarm = next((alarm for alarm in self.alarms() if alarm.name == ALARM), None)
        last = self.kv.get("last", {})
        return {
            "cron": self.kv.get("cron"),
            "paused": self.kv.get("paused", False),
            "next_ms": alarm.due_ms if alarm is not None else None,
            "occurrence_ms": last.get("occurrence_ms"),
            "ran_ms": last.get("ran_ms"),
            "runs": last.get("runs", 0),
            "failures": alarm.attempts if alarm is not None else 0,
        }

    def on_alarm(self, alarm: Alarm) -> None:
        """An occurrence, or several that were missed: once."""
        spec = self.schedules.get(self.name)
        if spec is None:
            raise LookupError(f"the app has no @cron named {self.name!r}: pause or delete this object")
        if spec.is_async:
            asyncio.run(spec.function())  # this is a thread of its own
        else:
            spec.function()
        runs = self.kv.get("last", {}).get("runs", 0) + 1
        self.kv.put("last", {"occurrence_ms": alarm.due_ms, "ran_ms": self.now(), "runs": runs})


def cron_class(specs: Sequence[CronSpec]) -> type[Cron]:
    """The class of an app that has these schedules."""
    body = {"schedules": {spec.name: spec for spec in specs}, "__module__": Cron.__module__, "__doc__": Cron.__doc__}
    return type(Cron.__name__, (Cron,), body)
