"""What MoveObject does to the world (PROTOCOLS section 10): one object's rows and gate in two regions, and its copy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from temporalio import activity

from domicile.activities.copying import CopyPass, NothingToCopyError, TargetOpenError, TermTooLowError
from domicile.activities.node_questions import NodeQuestions
from domicile.activities.object_rows import ObjectRows, Wanted, changes, read_rows
from domicile.activities.project_rows import ProjectRows
from domicile.activities.refusals import refused, told
from domicile.activities.world import RegionUnknownError, RegionWorld, World
from domicile.errors import BadName
from domicile.node.control.messages import SettleObject
from domicile.placement.followed import decode
from domicile.placement.records import (
    ClassRow,
    Deleted,
    Forwarded,
    GateRow,
    Held,
    LeaseRow,
    LeaseState,
    MovingTo,
    ObjectKey,
    Released,
    encode,
)
from domicile.placement.store import At, Committed, Condition, Delete, Mutation, Put
from domicile.workflows.copy_values import CopyOrder, CopyProgress
from domicile.workflows.move_object import MoveOne, ObjectAt, ObjectLooked

LOOK_SECS = 0.05


class ObjectMovingActivities:
    """The steps of MoveObject."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rows = ProjectRows(world)

    def steps(self) -> Sequence[Callable[..., Any]]:
        """The activities."""
        return (
            self.begin,
            self.look,
            self.close_gate,
            self.copy,
            self.hold,
            self.open,
            self.forward,
            self.let_go,
            self.undo,
            self.drop_gate,
        )

    @activity.defn(name="object-begin")
    async def begin(self, asked: MoveOne) -> str:
        """The region where the class has its home. Fails for good: bad names, no such project or region."""
        try:
            ObjectKey.checked(asked.project, asked.cls, asked.name)
        except BadName as error:
            raise refused("BadName", error.detail) from error
        seen = await self._rows.read(asked.project)
        if seen.policy is None:
            raise refused("NoSuchProject", f"there is no project {asked.project}")
        if not await self._rows.registered(asked.to):
            raise refused("NoSuchRegion", f"there is no region {asked.to}")
        key = self._world.control_keys.project_class(asked.project, asked.cls)
        record = (await self._world.control.read([key])).get(key)
        pin = decode(record, ClassRow).row.pin if record is not None else None
        return await self._rows.place(pin or seen.policy.row.region)

    @activity.defn(name="object-look")
    async def look(self, at: ObjectAt) -> ObjectLooked:
        """What the region's rows say of it. Fails for good when the region is not known."""
        _, rows = await self._read(at)
        state = rows.state
        there = isinstance(state, Held | MovingTo) or (isinstance(state, Released) and state.tag is not None)
        gate = rows.gate.seen[0][1]
        return ObjectLooked(
            there=there,
            forwarded=state.region if isinstance(state, Forwarded) else "",
            lease=rows.lease.version if rows.lease is not None else 0,
            gate=gate.version if gate is not None else 0,
            gate_open=gate is not None and gate.row.open,
            moving=state.to if isinstance(state, MovingTo) else "",
        )

    @activity.defn(name="object-close-gate")
    async def close_gate(self, at: ObjectAt) -> int:
        """A gate of its own, closed, naming where it still is; gives its version. Fails for good when overtaken."""
        return await self._change_gate(at, GateRow(False, at.term, at.to))

    @activity.defn(name="object-copy")
    async def copy(self, order: ObjectAt) -> CopyProgress:
        """As it is now, or as its release says."""
        source, target = await self._world.region(order.region), await self._world.region(order.to)
        copy_order = CopyOrder(order.project, order.region, order.to, order.term)
        passing = CopyPass(source, target, copy_order, self._world.clock, self._world.rng)
        try:
            return await passing.copy_object(_key(order), lambda now: activity.heartbeat(told(now)))
        except (NothingToCopyError, TargetOpenError, TermTooLowError) as error:
            raise refused(type(error).__name__, str(error)) from error

    @activity.defn(name="object-hold")
    async def hold(self, at: ObjectAt) -> int:
        """Released clean by whoever has it, its row then says that it is moving; gives the row's version.

        Only while its gate is open: a project that is moving takes it along. Fails for good then, or when it is gone.
        """
        region, rows = await self._read(at)
        questions = NodeQuestions(region, self._world.log)
        key = _key(at)
        while True:
            activity.heartbeat()
            state = rows.state
            if isinstance(state, MovingTo) and state.to == at.to and rows.lease is not None:
                return rows.lease.version
            if not rows.gate.open:
                raise refused("Moving", f"the gate of {key} in {at.region} is closed: its project is moving")
            if isinstance(state, Held):
                body = msgspec.msgpack.encode(SettleObject(key.scope, key.cls, key.name))
                await questions.ask_about(rows, "settle-object", body)
            elif isinstance(state, Released) and state.tag is not None:
                held = _with_state(rows, MovingTo(at.to, state))
                if (version := await self._written(region, rows, held, rows.gate.conditions())) is not None:
                    return version
            else:
                raise refused("NoSuchObject", f"there is no object {key} in {at.region} any more")
            await self._world.clock.sleep(LOOK_SECS)
            (rows,) = await read_rows(region, [key])

    @activity.defn(name="object-open")
    async def open(self, at: ObjectAt) -> int:
        """Its own gate opens in the target, over the row that the copy has written; gives the gate's version."""
        region, rows = await self._read(at)
        seen, wanted = rows.gate.seen[0], GateRow(open=True, term=at.term)
        if seen[1] is not None and seen[1].row.open:
            return seen[1].version  # by an earlier attempt; the terms drawn after it are lost
        conditions: list[Condition] = [At(region.keys.lease(_key(at).id), at.lease), At(seen[0], at.gate)]
        outcome = await region.store.write(conditions, [Put(seen[0], encode(wanted))])
        if not isinstance(outcome, Committed):
            raise refused("Overtaken", f"the rows of {_key(at)} in {at.region} were changed by another")
        return outcome.version

    @activity.defn(name="object-forward")
    async def forward(self, at: ObjectAt) -> None:
        """The old row forwards, the alarm's row goes, a gate of its own that let claims in here is closed."""
        region, rows = await self._read(at)
        if rows.lease is None or isinstance(rows.state, Forwarded):
            return
        if rows.lease.version != at.lease:
            raise refused("Overtaken", f"the row of {_key(at)} in {at.region} was changed by another")
        gate: list[Mutation] = []
        if rows.own_gate:
            gate = [Put(rows.gate.seen[0][0], encode(GateRow(False, at.term, at.to)))]
        wanted = Wanted(_with_state(rows, Forwarded(at.to, at.term)), None, rows.instance, rows.deleted)
        conditions, mutations = changes(region.keys, rows, wanted)
        await region.store.write(conditions, [*mutations, *gate])

    @activity.defn(name="object-let-go")
    async def let_go(self, at: ObjectAt) -> None:
        """A row that is moving is its release again; one that is released gets another version, so that an attempt to
        hold it that was cut off finds it changed."""
        region, rows = await self._read(at)
        state = rows.state.release if isinstance(rows.state, MovingTo) and rows.state.to == at.to else rows.state
        if isinstance(state, Released):
            await self._written(region, rows, _with_state(rows, state), [])

    @activity.defn(name="object-undo")
    async def undo(self, at: ObjectAt) -> None:
        """In the target the object is elsewhere, as before: its row forwards, and a gate that was made for it goes."""
        region, rows = await self._read(at)
        name, seen = rows.gate.seen[0]
        if seen is None or seen.version != at.gate:
            return
        conditions: list[Condition] = [At(name, at.gate)]
        mutations: list[Mutation] = [] if at.had_gate else [Delete(name)]
        if rows.lease is not None and not isinstance(rows.state, Forwarded | Deleted):
            wanted = Wanted(_with_state(rows, Forwarded(at.to, seen.row.term)), None, rows.instance, None)
            more, changed = changes(region.keys, rows, wanted)
            conditions, mutations = more, [*changed, *mutations]
        if mutations:
            await region.store.write(conditions, mutations)

    @activity.defn(name="object-drop-gate")
    async def drop_gate(self, at: ObjectAt) -> None:
        """The object lives here, and a closed gate of its own says that it does not: it goes."""
        region, rows = await self._read(at)
        name, seen = rows.gate.seen[0]
        if seen is not None and seen.version == at.gate and not seen.row.open:
            await region.store.write([At(name, at.gate)], [Delete(name)])

    async def _read(self, at: ObjectAt) -> tuple[RegionWorld, ObjectRows]:
        try:
            region = await self._world.region(at.region)
        except RegionUnknownError as error:
            raise refused("NoSuchRegion", str(error)) from error
        (rows,) = await read_rows(region, [_key(at)])
        return region, rows

    async def _change_gate(self, at: ObjectAt, wanted: GateRow) -> int:
        region = await self._world.region(at.region)
        name = region.keys.gate_object(_key(at).id)
        await region.gates.change(name, at.gate, wanted)
        seen = await region.gates.get(name)
        if seen is None or seen.row != wanted:
            raise refused("Overtaken", f"the gate of {_key(at)} in {at.region} was changed by another")
        return seen.version

    async def _written(
        self, region: RegionWorld, rows: ObjectRows, row: LeaseRow, more: Sequence[Condition]
    ) -> int | None:
        """The lease row alone, on the version seen; None when it is another by now."""
        assert rows.lease is not None
        name = region.keys.lease(rows.key.id)
        outcome = await region.store.write([At(name, rows.lease.version), *more], [Put(name, encode(row))])
        return outcome.version if isinstance(outcome, Committed) else None


def _key(at: ObjectAt) -> ObjectKey:
    return ObjectKey(at.project, at.cls, at.name)


def _with_state(rows: ObjectRows, state: LeaseState) -> LeaseRow:
    assert rows.lease is not None
    return msgspec.structs.replace(rows.lease.row, state=state)
