"""RecoverIncident(object, epoch): what an object was served without is found, compared and brought back (section 10).

The copies that did not answer are waited for; then the branch they hold is laid, where nothing was written since, or
shown, row by row, to a person who says `apply`, `keep` or, first, `export`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.common import RetryPolicy

from domicile.workflows.attributes import mark
from domicile.workflows.queues import region_queue

WAIT_DAYS = 7.0

T = TypeVar("T")


@dataclass(frozen=True)
class Incident:
    """The workflow's input: {"region": "local", "object_id": "<64 hex>", "epoch": "1.42"}.

    Copies are waited for `wait_days`.
    """

    region: str
    object_id: str
    epoch: str
    wait_days: float = WAIT_DAYS


@dataclass(frozen=True)
class Look:
    """What can be found now. `named`: the object; `asked` and `heard` are copy ids; enough of them `suffices`.

    `node`, `source` and `position` are the branch's; empty where there is none. `open`: the incident is on record here;
    `moved`: the object took it to another region.
    """

    open: bool
    named: str = ""
    heard: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    suffices: bool = False
    node: str = ""
    source: str = ""
    position: str = ""
    moved: bool = False

    @property
    def told(self) -> list[str]:
        """By what one look differs from the next."""
        return [*self.heard, self.position]


@dataclass(frozen=True)
class LookFor:
    """The input of `incident-look`: it answers when something else than `known` can be told, at once where that is
    None, and after an hour in any case."""

    incident: Incident
    known: list[str] | None


@dataclass(frozen=True)
class Branch:
    """The lost branch, stored and compared. `tables`: per table the rows added, updated and deleted, and some of them.

    `blob` is the database's key in the region's store, `rows` how many differ, `full` the key of the whole difference.
    """

    blob: str
    size: int
    full: str
    rows: int
    tables: list[dict[str, Any]]
    altered: list[str]


@dataclass(frozen=True)
class Decision:
    """One activity's input: bring the branch back as `action` says, and close the incident."""

    incident: Incident
    action: str


@dataclass(frozen=True)
class Closed:
    """How the node left it. `outcome`: laid, applied, kept, void; or still open: written, unfit (`why`)."""

    outcome: str
    rows: int = 0
    already: int = 0
    left: int = 0
    left_rows: list[dict[str, Any]] = field(default_factory=list)
    why: str = ""


@dataclass(frozen=True)
class Recovered:
    """The result. `outcome`: harmless (nothing was lost), laid, applied, kept, void (the object is gone, or closed it
    before), moved (recovered in the region the object went to), or open (the copies never returned: `missing`)."""

    object_id: str
    epoch: str
    outcome: str
    rows: int = 0
    left: int = 0
    left_rows: list[dict[str, Any]] = field(default_factory=list)
    branch: str = ""
    missing: list[str] = field(default_factory=list)


@workflow.defn(name="RecoverIncident")
class RecoverIncident:
    """Id `incident-<object>-<epoch>`. Signals `apply`, `keep`, `export`; a decision may come at any time."""

    def __init__(self) -> None:
        self._step = "look"
        self._look = Look(True)
        self._branch: Branch | None = None
        self._decision = ""
        self._exported = False
        self._why = ""

    @workflow.run
    async def run(self, asked: Incident) -> Recovered:
        """Ends when the incident is closed, or when the copies have not returned in time."""
        await self._find(asked)
        recovered = await self._close(asked)
        self._at("done", asked)
        return recovered

    async def _find(self, asked: Incident) -> None:
        """Until every answered write has been heard of, somebody has decided, or the time is up."""
        until = workflow.now() + timedelta(days=asked.wait_days)
        self._at("look", asked)
        known: list[str] | None = None
        while self._look.open and not (self._look.suffices or self._decided):
            if known is not None and workflow.now() >= until:
                return
            looking = self._do("incident-look", LookFor(asked, known), Look, asked, hours=2)
            look: Look | None = await _unless(looking, lambda: self._decided)
            if look is None:
                return
            self._look, known = look, look.told

    @property
    def _decided(self) -> bool:
        """Whether somebody's word ends the search. What is not found yet cannot be applied."""
        return self._decision == "keep" or (self._decision == "apply" and bool(self._look.source))

    async def _close(self, asked: Incident) -> Recovered:
        if self._look.moved:
            return self._result(asked, Closed("moved"))
        if not self._look.open:
            return await self._forgotten(asked, Closed("void"))
        if self._look.source:
            self._at("compare", asked)
            comparing = self._do("incident-compare", asked, Branch, asked, hours=2)
            self._branch = await _unless(comparing, lambda: self._decision == "keep")
        elif not (self._look.suffices or self._decision == "keep"):
            return self._result(asked, Closed("open"))
        if self._branch is None or not (self._branch.rows or self._branch.altered):
            closed = await self._decide(asked, "keep")
            return await self._forgotten(asked, closed, harmless=self._look.suffices)
        if not self._decision:
            self._at("lay", asked)
            closed = await self._decide(asked, "lay")
            if closed.outcome in ("laid", "void", "moved"):
                return await self._forgotten(asked, closed)
            self._why = closed.why or "the object was written since"
            self._at("decide", asked)
            await workflow.wait_condition(lambda: bool(self._decision))
        self._at(self._decision, asked)
        return await self._forgotten(asked, await self._decide(asked, self._decision))

    async def _decide(self, asked: Incident, action: str) -> Closed:
        closed: Closed = await self._do("incident-repair", Decision(asked, action), Closed, asked, hours=24)
        return closed

    async def _forgotten(self, asked: Incident, closed: Closed, *, harmless: bool = False) -> Recovered:
        """It is closed: what was kept for it may go. Of one that moved meanwhile, the other region takes it up."""
        if closed.outcome == "moved":
            return self._result(asked, closed)
        await self._do("incident-forget", asked, None, asked)
        return self._result(asked, closed, outcome="harmless" if harmless and closed.outcome == "kept" else "")

    def _result(self, asked: Incident, closed: Closed, outcome: str = "") -> Recovered:
        return Recovered(
            asked.object_id,
            asked.epoch,
            outcome or closed.outcome,
            closed.rows,
            closed.left,
            closed.left_rows,
            self._branch.blob if self._branch is not None else "",
            self._look.missing,
        )

    @workflow.signal
    def apply(self) -> None:
        """Bring back the rows the object lacks, and the updates whose old values still stand; list the rest."""
        self._decision = self._decision or "apply"

    @workflow.signal
    def keep(self) -> None:
        """Keep what the object is now."""
        self._decision = self._decision or "keep"

    @workflow.signal
    def export(self) -> None:
        """Decides nothing: the branch is a database in the region's store, and `progress` names it."""
        self._exported = True

    @workflow.query
    def progress(self) -> dict[str, Any]:
        """{"step", "object", "heard", "missing", "branch", "why", "decision"}: `step` is look, compare, lay, decide
        (a person is waited for), apply, keep or done; `branch` says what, how much and which rows."""
        branch = self._branch
        return {
            "step": self._step,
            "object": self._look.named,
            "heard": self._look.heard,
            "missing": self._look.missing,
            "branch": None
            if branch is None
            else {
                "blob": branch.blob,
                "size": branch.size,
                "full": branch.full,
                "rows": branch.rows,
                "tables": branch.tables,
                "altered": branch.altered,
            },
            "why": self._why,
            "decision": self._decision,
            "exported": self._exported,
        }

    def _at(self, step: str, asked: Incident) -> None:
        self._step = step
        mark(region=asked.region, step=step)

    async def _do(self, name: str, given: Any, result: Any, asked: Incident, *, hours: int = 1) -> Any:
        return await workflow.execute_activity(
            name,
            given,
            result_type=result,
            task_queue=region_queue(asked.region),
            start_to_close_timeout=timedelta(hours=hours),
            heartbeat_timeout=timedelta(minutes=1),
            retry_policy=RetryPolicy(maximum_interval=timedelta(seconds=30)),
        )


async def _unless(work: Coroutine[Any, Any, T], decided: Callable[[], bool]) -> T | None:
    """What `work` gives; None, and it is cancelled, once somebody has decided what it was for."""
    working = asyncio.ensure_future(work)
    deciding = asyncio.ensure_future(workflow.wait_condition(decided))
    await workflow.wait([working, deciding], return_when=asyncio.FIRST_COMPLETED)
    deciding.cancel()
    if working.done():
        return working.result()
    working.cancel()
    return None
