"""Inputs, results and steps of ReplicateProject and FailoverRegion (PROTOCOLS section 10)."""

from __future__ import annotations

from dataclasses import dataclass, field

from domicile.workflows.copy_values import CopyProgress
from domicile.workflows.move_values import GateSeen


@dataclass(frozen=True)
class Standing:
    """A standing copy of a project in region `to`, as of `at`, seconds since 1970: everything that had landed in the
    bucket of `source` by then is in it. `unclean`: objects that were awake then."""

    project: str
    source: str
    to: str
    at: float
    objects: int
    unclean: int


@dataclass
class ReplicateState:
    """Where a run of ReplicateProject is; carried over to the next run."""

    source: str = ""
    term: int = 0
    passes: int = 0
    bytes: int = 0
    progress: CopyProgress = field(default_factory=CopyProgress)
    began: float = 0.0
    standing: Standing | None = None


@dataclass(frozen=True)
class Replicate:
    """ReplicateProject's input: {"project": "acme", "to": "eu-west"}. A pass begins `every_secs` after the last."""

    project: str
    to: str
    every_secs: float = 30.0
    mb_per_sec: float = 0.0
    objects_per_step: int = 20_000
    history_max: int = 2_000
    state: ReplicateState | None = None


@dataclass(frozen=True)
class Replicated:
    """ReplicateProject's result, when it was stopped or the project came to live where its copy stands."""

    project: str
    to: str
    passes: int
    bytes: int
    detail: str


@dataclass(frozen=True)
class Loss:
    """What a failover would lose. `lag_secs`: age of the standing copy, -1 where there is none.

    Where the old region's bucket can be read (`counted`): `objects` that are behind there or not there at all
    (`missing` of them), and how many `bytes` of their logs. What only its nodes have is never counted.
    """

    lag_secs: float
    counted: bool = False
    objects: int = 0
    missing: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class FailoverBegun:
    """What stood: the home, the version of the mark (0: none), the standing copy; `flipped`: an earlier attempt of this
    run got that far, with `term`."""

    source: str
    mark: int
    standing: Standing | None
    flipped: bool = False
    term: int = 0


@dataclass(frozen=True)
class AssessOrder:
    """The input of `failover-assess`."""

    project: str
    source: str
    to: str
    standing_at: float


@dataclass(frozen=True)
class ForkOrder:
    """The input of `failover-fork`, `failover-compare` and `failover-unfork`; `term` is that of the new gate."""

    project: str
    source: str
    to: str
    term: int = 0


@dataclass(frozen=True)
class Compared:
    """What the old region had more: `incidents` are on record in the new one. `listed`: up to ten objects that no rows
    can bring back: deleted there, or born there again."""

    objects: int = 0
    incidents: int = 0
    listed_in_all: int = 0
    listed: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Failover:
    """FailoverRegion's input: {"project": "acme", "to": "eu-west"}.

    It states the loss and waits `ask_secs` for the signal `go_on`, unless `accept_loss`. Then it opens the new gate;
    the old region is waited for `return_days`.
    """

    project: str
    to: str
    accept_loss: bool = False
    ask_secs: float = 86_400.0
    return_days: float = 30.0


@dataclass
class FailoverState:
    """Where it is, for `progress`."""

    step: str = "begin"
    source: str = ""
    loss: Loss | None = None
    mark: int = 0
    term: int = 0
    target_gate: GateSeen | None = None
    opened_at: float = 0.0


@dataclass(frozen=True)
class FailedOver:
    """The result. `returned`: the old region came back in time, its gate is closed, and what it had answered more is
    `incidents`."""

    project: str
    source: str
    to: str
    loss: Loss
    returned: bool
    incidents: int = 0
    listed_in_all: int = 0
    listed: list[str] = field(default_factory=list)
