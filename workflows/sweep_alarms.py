"""SweepAlarms(region): wakes whatever has an alarm that is due, page by page, each row once (PROTOCOLS section 9)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import RetryPolicy

from domicile.workflows.attributes import mark
from domicile.workflows.queues import region_queue

PASSES_MAX = 200  # then the run goes on as a new one


@dataclass(frozen=True)
class Swept:
    """What a run did: rows looked at, and of them: objects woken (or awake already and told), ghosts removed, rows
    skipped because their project or object is moving, rows left for the next run because nobody could wake them."""

    rows: int = 0
    woken: int = 0
    ghosts: int = 0
    skipped: int = 0
    left: int = 0

    def plus(self, other: Swept) -> Swept:
        """The sum of both."""
        return Swept(
            self.rows + other.rows,
            self.woken + other.woken,
            self.ghosts + other.ghosts,
            self.skipped + other.skipped,
            self.left + other.left,
        )


@dataclass(frozen=True)
class SweepRegion:
    """The workflow's input: {"region": "local"}. The rest is how far a run has come that goes on as a new one."""

    region: str
    rows: int = 256
    until_ms: int = 0
    after: str = ""
    swept: Swept = field(default_factory=Swept)


@dataclass(frozen=True)
class Pass:
    """One activity's part: up to `rows` due at `until_ms` (0: now), those after the key `after`."""

    region: str
    rows: int
    until_ms: int
    after: str
    token: str


@dataclass(frozen=True)
class Passed:
    """What a pass did, and where the next one begins; `more` is False after the last."""

    swept: Swept
    until_ms: int
    after: str
    token: str
    more: bool


@workflow.defn(name="SweepAlarms")
class SweepAlarms:
    """Run by the schedule `sweep-<region>`: a run that takes long is not overlapped."""

    def __init__(self) -> None:
        self._swept = Swept()
        self._passes = 0

    @workflow.run
    async def run(self, asked: SweepRegion) -> Swept:
        """The totals."""
        mark(region=asked.region)
        self._swept = asked.swept
        at = Passed(Swept(), asked.until_ms, asked.after, "", more=True)
        while at.more:
            at = await workflow.execute_activity(
                "sweep-pass",
                Pass(asked.region, asked.rows, at.until_ms, at.after, at.token),
                result_type=Passed,
                task_queue=region_queue(asked.region),
                start_to_close_timeout=timedelta(minutes=5),
                heartbeat_timeout=timedelta(seconds=30),
                retry_policy=RetryPolicy(maximum_interval=timedelta(seconds=30)),
            )
            self._passes += 1
            self._swept = self._swept.plus(at.swept)
            long = self._passes >= PASSES_MAX or workflow.info().is_continue_as_new_suggested()
            if at.more and long:
                onward = replace(asked, until_ms=at.until_ms, after=at.after, swept=self._swept)
                workflow.continue_as_new(onward)
        return self._swept

    @workflow.query
    def progress(self) -> dict[str, Any]:
        """{"rows", "woken", "ghosts", "skipped", "left", "passes"}; passes are of this run's history."""
        swept = self._swept
        return {
            "rows": swept.rows,
            "woken": swept.woken,
            "ghosts": swept.ghosts,
            "skipped": swept.skipped,
            "left": swept.left,
            "passes": self._passes,
        }
