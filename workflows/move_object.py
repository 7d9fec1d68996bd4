"""MoveObject(project, cls, name, to): one object goes to another region, by itself (PROTOCOLS section 10).

    begin → prepare → copy → hold → last copy → open → forward

It is copied while it serves, then released and held in its row, copied once more, and opened in the target by a gate of
its own. The old row forwards. Before the target's gate opens, a cancel makes the row its release again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError

from domicile.workflows.attributes import mark
from domicile.workflows.copy_values import CopyProgress
from domicile.workflows.endings import to_its_end
from domicile.workflows.steps import in_control, in_region

FORWARDS_MAX = 64  # no circle is longer

T = TypeVar("T")


@dataclass(frozen=True)
class MoveOne:
    """The input: {"project": "acme", "cls": "Auction", "name": "lot-42", "to": "eu-west"}."""

    project: str
    cls: str
    name: str
    to: str


@dataclass(frozen=True)
class ObjectAt:
    """An object in a region; `to` and `term` as the step needs them, `versions` of rows read in an earlier step."""

    region: str
    project: str
    cls: str
    name: str
    to: str = ""
    term: int = 0
    lease: int = 0
    gate: int = 0
    had_gate: bool = False


@dataclass(frozen=True)
class ObjectLooked:
    """`there`: it has its home in the region, by its row; `forwarded` names another one, `moving` the one that a move
    was taking it to. Versions of its lease row and of its own gate, 0 where absent."""

    there: bool
    forwarded: str = ""
    lease: int = 0
    gate: int = 0
    gate_open: bool = False
    moving: str = ""


@dataclass(frozen=True)
class ObjectMoved:
    """`unserved_secs`: from the moment its row held it to its gate's opening in the target."""

    source: str
    to: str
    moved: bool
    bytes: int = 0
    unserved_secs: float = 0.0
    detail: str = ""


@workflow.defn(name="MoveObject")
class MoveObject:
    """Id `move-object-<object id>`."""

    def __init__(self) -> None:
        self._step = "begin"
        self._source = ""
        self._bytes = 0
        self._gate = 0
        self._had_gate = False
        self._held = 0
        self._term = 0
        self._opened = False
        self._undoing = False
        self._began = 0.0
        self._ended = 0.0

    @workflow.run
    async def run(self, asked: MoveOne) -> ObjectMoved:
        """Fails for good, changing nothing, when there is no such object or region, or when its project is moving."""
        mark(project=asked.project, region=asked.to, step=self._step)
        try:
            self._source = await self._found(asked)
            if self._source == asked.to:
                return ObjectMoved(self._source, asked.to, moved=False, detail=f"it is in {asked.to} already")
            await self._until_opened(asked)
        except (ActivityError, ApplicationError, asyncio.CancelledError) as error:
            if not self._opened:
                await self._whole(self._go_back(asked))
                if workflow.cancellation_reason() is not None:
                    raise asyncio.CancelledError("the move was cancelled") from error
                raise
        await self._whole(self._open_and_forward(asked))
        self._at("done")
        return ObjectMoved(self._source, asked.to, moved=True, bytes=self._bytes, unserved_secs=self._unserved())

    @workflow.query
    def progress(self) -> dict[str, Any]:
        """{"step", "source", "bytes", "cancellable", "unserved_secs"}."""
        return {
            "step": "going back" if self._undoing else self._step,
            "source": self._source,
            "bytes": self._bytes,
            "cancellable": not self._opened and not self._undoing,
            "unserved_secs": self._unserved(),
        }

    async def _found(self, asked: MoveOne) -> str:
        """The region it lives in, from its project's home on by forwarding rows."""
        region: str = await in_control("object-begin", asked, str)
        for _ in range(FORWARDS_MAX):
            looked: ObjectLooked = await in_region(region, "object-look", self._there(asked, region), ObjectLooked)
            if looked.moving and not await self._settled(asked, region, looked):
                region = looked.moving
                continue
            if looked.there:
                if looked.gate and not looked.gate_open:  # left by a move here that was ended from outside
                    await in_region(region, "object-drop-gate", self._there(asked, region, gate=looked.gate), None)
                return region
            if not looked.forwarded:
                break
            region = looked.forwarded
        raise ApplicationError(
            f"there is no object {asked.project}/{asked.cls}/{asked.name}", type="NoSuchObject", non_retryable=True
        )

    async def _settled(self, asked: MoveOne, region: str, looked: ObjectLooked) -> bool:
        """An earlier move was ended from outside while its row held it. It goes forward where the new gate is open, for
        calls may have been answered there, else back. Whether it lives in `region` then."""
        to = looked.moving
        there: ObjectLooked = await in_region(to, "object-look", self._there(asked, to), ObjectLooked)
        term = await in_control("move-draw", asked.project, int)
        if there.gate_open:
            forward = self._there(asked, region, to=to, term=term, lease=looked.lease)
            await in_region(region, "object-forward", forward, None)
            return False
        # The gate first: a late attempt of the earlier move to open it finds another version.
        closed = self._there(asked, to, to=region, term=term, gate=there.gate)
        gate = await in_region(to, "object-close-gate", closed, int)
        await in_region(region, "object-let-go", self._there(asked, region, to=to, lease=looked.lease), None)
        undo = self._there(asked, to, to=region, gate=gate, had_gate=looked.gate_open)
        await in_region(to, "object-undo", undo, None)
        return True

    async def _until_opened(self, asked: MoveOne) -> None:
        self._at("prepare")
        before: ObjectLooked = await in_region(asked.to, "object-look", self._there(asked, asked.to), ObjectLooked)
        self._had_gate = before.gate > 0
        self._term = await in_control("move-draw", asked.project, int)
        closed = self._there(asked, asked.to, to=self._source, term=self._term, gate=before.gate)
        self._gate = await self._whole(in_region(asked.to, "object-close-gate", closed, int))
        self._at("copy")
        await self._copy(asked)
        self._at("hold")
        self._began = workflow.now().timestamp()
        held = self._there(asked, self._source, to=asked.to)
        self._held = await in_region(self._source, "object-hold", held, int, secs=3600)
        self._at("last copy")
        await self._copy(asked)
        self._opened = True

    async def _open_and_forward(self, asked: MoveOne) -> None:
        self._at("open")
        there: ObjectLooked = await in_region(asked.to, "object-look", self._there(asked, asked.to), ObjectLooked)
        term = await in_control("move-draw", asked.project, int)
        opened = self._there(asked, asked.to, term=term, lease=there.lease, gate=self._gate)
        await in_region(asked.to, "object-open", opened, int)
        self._ended = workflow.now().timestamp()
        self._at("forward")
        forward = self._there(asked, self._source, to=asked.to, term=term, lease=self._held)
        await in_region(self._source, "object-forward", forward, None)

    async def _copy(self, asked: MoveOne) -> None:
        order = self._there(asked, self._source, to=asked.to, term=self._term)
        copied: CopyProgress = await in_region(asked.to, "object-copy", order, CopyProgress, secs=3600)
        self._bytes += copied.bytes

    async def _go_back(self, asked: MoveOne) -> None:
        """The row is its release again; in the target it is as if nothing had come."""
        self._undoing = True
        if not self._gate:
            return
        held = self._there(asked, self._source, to=asked.to, lease=self._held)
        await in_region(self._source, "object-let-go", held, None)
        undo = self._there(asked, asked.to, to=self._source, gate=self._gate, had_gate=self._had_gate)
        await in_region(asked.to, "object-undo", undo, None)

    def _there(self, asked: MoveOne, region: str, **more: Any) -> ObjectAt:
        return ObjectAt(region, asked.project, asked.cls, asked.name, **more)

    def _at(self, step: str) -> None:
        self._step = step
        mark(step=step)

    def _unserved(self) -> float:
        return round(self._ended - self._began, 3) if self._ended else 0.0

    async def _whole(self, work: Coroutine[Any, Any, T]) -> T:
        return await to_its_end(work, lambda: not self._opened and not self._undoing)
