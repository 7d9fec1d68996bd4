"""What a copy between two regions is told and tells (PROTOCOLS section 10): values of workflows and activities."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class CopyOrder:
    """One pass over a project's objects, from one region's stores into another's.

    `term` was drawn from the project's counter for this copy: above every term of the objects in either region, below
    that of the gate that opens after it. `mb_per_sec` limits what is copied; 0 does not. `since` is the `version` of an
    earlier pass of this copy that left nothing out (see `CopyProgress.next_since`): what has not changed in the source
    after it is not looked at again; 0: everything is.
    """

    project: str
    source: str
    target: str
    term: int
    mb_per_sec: float = 0.0
    since: int = 0


@dataclass
class CopyProgress:
    """How far a pass is, and what it found; where to go on is all in here (`phase`, `token`).

    `looked`: entries of a directory that were looked at; `objects`: those that the source has. `differing`: those whose
    rows or bytes in the target were others; they are equal now. `unclean`: objects not released clean, whose copy is as
    of their last landed manifest. `given_up`: those of them that changed faster than they were copied. `bytes`: moved
    between the buckets. `failing`: up to ten objects that could not be copied, and why. `version`: where the source's
    store was when the pass began.
    """

    phase: str = "objects"
    token: str | None = None
    looked: int = 0
    objects: int = 0
    differing: int = 0
    unclean: int = 0
    given_up: int = 0
    bytes: int = 0
    version: int = 0
    failing: list[str] = field(default_factory=list)

    @property
    def done(self) -> bool:
        return self.phase == "done"

    @property
    def next_since(self) -> int:
        """For the next pass, once this one is done."""
        return 0 if self.given_up or self.failing else self.version
