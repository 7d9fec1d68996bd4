"""Inputs, results and steps of MoveProject and ExpireCopy, as workflow and activities pass them on (section 10)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from domicile.workflows.copy_values import CopyOrder, CopyProgress

KEEP_HOURS = 72.0
AFTER_FLIP = ("open", "name", "clear", "done")


@dataclass(frozen=True)
class Begun:
    """What stood before: `moving` when there is something to do; `flipped` when an earlier run got that far, and `was`
    the region that it left. `cut_off`: an earlier run that was to leave this home ended without going back."""

    source: str
    moving: bool
    flipped: bool = False
    mark: int = 0
    term: int = 0
    was: str = ""
    cut_off: bool = False


@dataclass(frozen=True)
class Marked:
    """The move's mark in control stands at version `mark`; `term` was drawn with it."""

    mark: int
    term: int


@dataclass(frozen=True)
class MarkStep:
    """A step on control's rows, conditioned on the mark at version `mark` (0: absent). `run` names the move, `source`
    the region whose gate it closes."""

    project: str
    to: str
    mark: int
    run: str
    source: str = ""


@dataclass(frozen=True)
class GateAt:
    """Which gate: the project's own in a region."""

    region: str
    project: str


@dataclass(frozen=True)
class GateSeen:
    """A gate as read, with its version; 0 and closed when absent. `host`: the region whose worker looked."""

    region: str
    version: int
    open: bool
    term: int
    to: str | None = None


@dataclass(frozen=True)
class GateChange:
    """Make a gate so, if it still is at `version`, which an earlier step has read."""

    region: str
    project: str
    version: int
    open: bool
    term: int
    to: str | None = None


@dataclass(frozen=True)
class CopyStep:
    """A slice of a pass: go on from `progress`, at most `objects_max` more."""

    order: CopyOrder
    progress: CopyProgress
    objects_max: int


@dataclass(frozen=True)
class DrainOrder:
    """Land and release everything of the project in a region whose gate is closed. `accept`: incidents do not stop."""

    project: str
    region: str
    accept: bool = False


@dataclass
class DrainResult:
    """`objects` were looked at, `landed` by drain claims. `incidents`: up to ten objects that may lack answered writes,
    left as they are. `incidents_in_all`: how many there are."""

    objects: int = 0
    landed: int = 0
    incidents: list[str] = field(default_factory=list)
    incidents_in_all: int = 0


@dataclass
class MoveState:
    """Where a run of MoveProject is; carried over to the next run of a long one.

    Versions are of the rows the next writes are conditioned on. Times are Temporal's, in seconds since 1970.
    """

    step: str = "begin"
    source: str = ""
    mark: int = 0
    term: int = 0
    passes: int = 0
    since: int = 0
    progress: CopyProgress = field(default_factory=CopyProgress)
    source_gate: GateSeen | None = None
    target_gate: GateSeen | None = None
    opens_with: int = 0
    copied_bytes: int = 0
    copied_objects: int = 0
    last_bytes: int = 0
    objects: int = 0
    landed: int = 0
    accept: bool = False
    incidents: list[str] = field(default_factory=list)
    closed_at: float = 0.0
    opened_at: float = 0.0

    @property
    def past_return(self) -> bool:
        """Whether the home may have been flipped."""
        return self.step in AFTER_FLIP

    @property
    def unserved_secs(self) -> float:
        return round(self.opened_at - self.closed_at, 3) if self.opened_at and self.closed_at else 0.0

    def shown(self) -> dict[str, Any]:
        """For the query."""
        return {
            "step": self.step,
            "source": self.source,
            "cancellable": not self.past_return,
            "pass": self.passes,
            "objects": max(self.objects, self.progress.objects),
            "done": self.progress.objects,
            "total": self.objects or None,
            "copied_objects": self.copied_objects,
            "copied_bytes": self.copied_bytes,
            "landed": self.landed,
            "incidents": self.incidents,
            "unserved_secs": self.unserved_secs,
        }

    def moved(self, asked: Move, *, moved: bool, detail: str = "") -> Moved:
        """The result."""
        return Moved(
            project=asked.project,
            source=self.source,
            to=asked.to,
            moved=moved,
            objects=self.objects,
            copied_objects=self.copied_objects,
            copied_bytes=self.copied_bytes,
            last_pass_bytes=self.last_bytes,
            passes=self.passes,
            landed=self.landed,
            unserved_secs=self.unserved_secs,
            detail=detail,
        )


@dataclass(frozen=True)
class Move:
    """MoveProject's input: {"project": "acme", "to": "eu-west"}.

    `mb_per_sec` limits the copy, 0 does not. The old copy is kept `keep_hours`. A drain that meets an incident waits
    `ask_secs` for `go_on` or a cancel, then goes back. `objects_per_step` and `history_max` bound one step and one run.
    `state` is where an earlier run left off.
    """

    project: str
    to: str
    mb_per_sec: float = 0.0
    keep_hours: float = KEEP_HOURS
    ask_secs: float = 600.0
    objects_per_step: int = 20_000
    history_max: int = 2_000
    state: MoveState | None = None


@dataclass(frozen=True)
class Moved:
    """MoveProject's result. `unserved_secs`: from the old gate's closing to the new one's opening."""

    project: str
    source: str
    to: str
    moved: bool
    objects: int = 0
    copied_objects: int = 0
    copied_bytes: int = 0
    last_pass_bytes: int = 0
    passes: int = 0
    landed: int = 0
    unserved_secs: float = 0.0
    detail: str = ""


@dataclass(frozen=True)
class Expire:
    """ExpireCopy's input: {"project": "acme", "region": "eu-west", "gate": 17, "after_secs": 259200}: the copy that a
    move left in `region`, while the gate there is at version `gate`."""

    project: str
    region: str
    gate: int
    to: str
    term: int
    after_secs: float = KEEP_HOURS * 3600
    objects_per_step: int = 20_000


@dataclass
class ExpireProgress:
    """`token` of the listing; `stopped`: the project has come back, or is about to."""

    token: str | None = None
    objects: int = 0
    expired: int = 0
    done: bool = False
    stopped: bool = False
