"""What a node does for RecoverIncident (PROTOCOLS section 10): finds lost branches, stores them, brings them back.

Everything is safe to repeat. The branch comes back, and the incident leaves the manifest, in the object's mailbox: no
call runs meanwhile, and one manifest says both.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec
from blake3 import blake3

from domicile.errors import DomicileError, NoSuchObject, NotServing
from domicile.node.branches import as_file, databases
from domicile.node.chunks import LOST, SERVED, lost_key
from domicile.node.control.branch_sources import BranchSources
from domicile.node.control.incident_messages import (
    BranchesFound,
    BranchStored,
    FindBranches,
    ForgetBranch,
    Repair,
    Repaired,
    StoreBranch,
)
from domicile.node.errors import Ended, NodeError
from domicile.node.host import Host
from domicile.node.replica.replicas import Replicas
from domicile.node.residency import Residency
from domicile.node.residents import Residents
from domicile.node.sqlite.birth import IMAGE
from domicile.node.sqlite.database import Database
from domicile.node.sqlite.row_changes import Left, apply_rows, lay_rows
from domicile.node.sqlite.row_diff import Diff, cell, diff
from domicile.node.wire.messages import Fence, FenceAnswer
from domicile.placement.records import ObjectKey

LEFT_SHOWN_MAX = 50
CELL_CHARS = 80

T = TypeVar("T")


class IncidentDesk:
    """`fence` raises the fence of this node's copy, and ends an older residency here."""

    def __init__(
        self,
        host: Host,
        residents: Residents,
        replicas: Replicas | None,
        fence: Callable[[Fence], Awaitable[FenceAnswer]],
    ) -> None:
        self._host = host
        self._residents = residents
        self._sources = BranchSources(host, replicas, residents.asleep)
        self._fence = fence

    def requests(self) -> dict[str, Callable[[bytes], Awaitable[bytes]]]:
        """By name, for the peer handler."""
        return {
            "incident-find": self.find,
            "incident-store": self.store,
            "incident-repair": self.repair,
            "incident-forget": self.forget,
        }

    async def find(self, body: bytes) -> bytes:
        """What is here. A member is fenced first: what it has now is all it will ever have of before `epoch`."""
        asked = msgspec.msgpack.decode(body, type=FindBranches)
        copy_id = self._host.replicas.copy_id if self._host.replicas is not None else ""
        heard = False
        if copy_id in asked.asked:
            fence = Fence(bytes.fromhex(asked.object_id), asked.served.incarnation, asked.epoch)
            heard = (await self._fence(fence)).copy_id == copy_id and self._sources.heard(asked)
        return msgspec.msgpack.encode(BranchesFound(copy_id, heard, await self._sources.find(asked)))

    async def store(self, body: bytes) -> bytes:
        """The branch as two databases in the blob store. Raises NotServing: ask again, or look anew."""
        asked = msgspec.msgpack.decode(body, type=StoreBranch)
        try:
            branch = await self._sources.read(asked)
            made = await self._host.workers.run(lambda: databases(branch, asked.served, asked.checksum))
            await self._host.blobs.put(lost_key(asked.object_id, asked.epoch, SERVED), made.served)
            await self._host.blobs.put(lost_key(asked.object_id, asked.epoch, LOST), made.lost)
        except NodeError as error:
            raise NotServing(f"the lost branch cannot be stored: {error}") from error
        return msgspec.msgpack.encode(BranchStored(branch.position, len(made.lost)))

    async def forget(self, body: bytes) -> bytes:
        """`lost/` gives up what it kept for the incident."""
        asked = msgspec.msgpack.decode(body, type=ForgetBranch)
        await self._host.workers.run(lambda: self._sources.forget(asked.object_id, asked.epoch))
        return b"\xc0"

    async def repair(self, body: bytes) -> bytes:
        """At the object's home; NotHome names another. Raises NotServing: ask again."""
        asked = msgspec.msgpack.decode(body, type=Repair)
        key = ObjectKey(asked.scope, asked.cls, asked.name)
        try:
            changes = await self._changes(key, asked)
            residency = await self._residents.enter(key, create=asked.incarnation is None)
            async with residency.mailbox.alone():
                repaired = await self._repair(residency, asked, changes)
        except NoSuchObject:
            repaired = Repaired("void")
        except (NodeError, OSError) as error:
            raise NotServing(f"the incident cannot be closed now: {error}") from error
        else:
            if repaired.rows and residency.serving:  # what it keeps in memory is of before
                await self._residents.put_to_sleep(residency)
        return msgspec.msgpack.encode(repaired)

    async def _changes(self, key: ObjectKey, asked: Repair) -> tuple[bytes, Diff] | None:
        """(what was served, what the branch makes of it)."""
        if asked.action == "keep":
            return None
        served = (await self._host.blobs.get(lost_key(key.id, asked.epoch, SERVED))).data
        lost = (await self._host.blobs.get(lost_key(key.id, asked.epoch, LOST))).data
        exactly = asked.action == "lay"
        return served, await self._host.workers.run(lambda: diff(served, lost, exactly=exactly))

    async def _repair(self, residency: Residency, asked: Repair, changes: tuple[bytes, Diff] | None) -> Repaired:
        """The object stands still."""
        open_here = {epoch for epoch, _ in residency.leg.manifest.incidents}
        if asked.incarnation is not None and residency.incarnation != asked.incarnation:
            return Repaired("void")
        if not asked.foreign and asked.epoch not in open_here:
            return Repaired("void")
        if not residency.engine.whole:
            raise NotServing("the object's base is not whole yet")
        repaired = Repaired("kept")
        if changes is not None:
            served, found = changes
            repaired = await (
                self._lay(residency, served, found) if asked.action == "lay" else self._apply(residency, found)
            )
        if asked.foreign:
            await residency.leg.flush()
        elif repaired.outcome in ("laid", "applied", "kept"):
            await self._close(residency, asked)
        return repaired

    async def _lay(self, residency: Residency, served: bytes, found: Diff) -> Repaired:
        """Only over exactly what was served; anything written since waits for a person."""
        if found.altered:
            return Repaired("unfit", why=f"the branch changed or dropped {', '.join(found.altered)}")
        now = await self._host.workers.run(lambda: _image(residency))
        if blake3(now).digest() != blake3(served).digest():
            return Repaired("written")
        try:
            await self._change(residency, lambda db: lay_rows(db, found), exactly=True)
        except DomicileError as error:
            return Repaired("unfit", why=error.detail)
        return Repaired("laid", rows=sum(len(table.changes) for table in found.tables))

    async def _apply(self, residency: Residency, found: Diff) -> Repaired:
        applied = await self._change(residency, lambda db: apply_rows(db, found), exactly=False)
        shown = tuple(_shown(left) for left in applied.left[:LEFT_SHOWN_MAX])
        return Repaired("applied", applied.rows, applied.already, len(applied.left), shown)

    async def _change(self, residency: Residency, change: Callable[[Database], T], *, exactly: bool) -> T:
        """Gives what `change` does. Raises DomicileError, and then nothing lasts."""
        done: list[T] = []
        residency.engine.context.alarms_touched = True
        with residency.engine.db.rebuilding(exactly=exactly):
            await residency.change(lambda db: done.append(change(db)))
        return done[-1]

    async def _close(self, residency: Residency, asked: Repair) -> None:
        """The manifest that has what came back has the incident no more. Raises what broke the residency."""
        residency.leg.closed_incidents.add(asked.epoch)
        await residency.leg.flush()
        if any(epoch == asked.epoch for epoch, _ in residency.leg.manifest.incidents):
            raise Ended(f"{residency.key}: the residency ended before the incident was closed")
        if residency.replicas is not None:
            residency.replicas.speech.incidents = residency.leg.manifest.incidents


def _image(residency: Residency) -> bytes:
    """The object's database as a file, in its thread."""
    db, log = residency.engine.db, residency.log
    size = len(IMAGE) if not log.base.hashes else log.base.size
    return as_file(db.read_base(0, size), log.read(0, log.length))


def _shown(left: Left) -> dict[str, Any]:
    """A row that was left, as a person reads it."""
    row = left.change.new if left.change.new is not None else left.change.old
    return {
        "table": left.table,
        "kind": left.change.kind,
        "row": [cell(value, CELL_CHARS) for value in row or ()],
        "why": left.why,
    }
