"""Pinning a class anew (PROTOCOLS section 4): which gates and rows change, in which order, and what stands in the way.

First the class's gate is closed in every region but the one that takes it, each naming that one; then the row in
control says the new pin, with the term drawn for it; then the gate there opens. Closed gates stay: a node that goes by
an old row is refused, and sent on. Objects are not moved by it: while one lives in another region it is refused.
"""

from __future__ import annotations

import msgspec

from domicile.errors import BadRequest, NoSuchProject, NotServing
from domicile.placement.claims import lease_seen
from domicile.placement.directory import Directory, Instance
from domicile.placement.followed import decode
from domicile.placement.gates import Gates
from domicile.placement.records import ClassRow, Deleted, Forwarded, GateRow, ObjectKey, ProjectRow, encode
from domicile.placement.store import At, Committed, Delete, Mutation, Put, Store

TRIES = 5
READ_AT_ONCE = 100


class ClassOrder(msgspec.Struct, array_like=True):
    """What a region is to do with a class's gate. `to` takes the class, by a gate of its `own` or by the project's."""

    project: str
    cls: str
    to: str
    term: int = 0
    own: bool = True


class PinRows:
    """The part in control. Raises StoreUnavailable."""

    def __init__(self, control: Store, gates: Gates) -> None:
        self._control = control
        self._keys = gates.keys.control

    async def draw_term(self, project: str) -> ProjectRow:
        """The policy with the next term, drawn for this. Raises NoSuchProject, NotServing while the project moves."""
        key, mark = self._keys.project(project), self._keys.move(project)
        for _ in range(TRIES):
            found = await self._control.read([key, mark])
            if key not in found:
                raise NoSuchProject(f"there is no project {project}")
            if mark in found:
                raise NotServing(f"the project {project} is moving: pin the class anew when it has arrived")
            seen = decode(found[key], ProjectRow)
            row = msgspec.structs.replace(seen.row, term=seen.row.term + 1)
            if isinstance(
                await self._control.write([At(key, seen.version), At(mark, 0)], [Put(key, encode(row))]), Committed
            ):
                return row
        raise NotServing(f"the policy of {project} keeps changing")

    async def record(self, project: str, cls: str, row: ClassRow) -> None:
        """Unless a later term stands there. Raises NotServing when somebody else pins it at the same time."""
        key = self._keys.project_class(project, cls)
        for _ in range(TRIES):
            record = (await self._control.read([key])).get(key)
            if record is not None and decode(record, ClassRow).row.term > row.term:
                break
            at = At(key, record.version if record else 0)
            if isinstance(await self._control.write([at], [Put(key, encode(row))]), Committed):
                return
        raise NotServing(f"class {cls} of project {project} is being pinned by somebody else")


class ClassGates:
    """The part in a region's own store. Raises StoreUnavailable; done again harmlessly."""

    def __init__(self, store: Store, gates: Gates, directory: Directory) -> None:
        self._store = store
        self._gates = gates
        self._keys = gates.keys
        self._directory = directory

    async def check_empty(self, project: str, cls: str) -> None:
        """Raises BadRequest, naming one, while objects of the class live here."""
        token: str | None = None
        while True:
            page = await self._directory.instances(project, cls, token=token)
            if (living := await self._living(page.entries)) is not None:
                raise BadRequest(
                    f"objects of class {cls} live in region {self._keys.region}, {living.name!r} for one:"
                    " move them first with `domicile object move`, or delete them"
                )
            token = page.token
            if token is None:
                return

    async def close(self, order: ClassOrder) -> None:
        """No claim of the class commits here any more; whoever comes is sent to `to`. Raises BadRequest, NotServing.

        A birth that committed before is seen after: then the gate is put back as it was.
        """
        key = self._keys.gate_class(order.project, order.cls)
        for _ in range(TRIES):
            seen = await self._gates.get(key)
            closed = GateRow(open=False, term=max(order.term, seen.row.term if seen else 0), to=order.to)
            if seen is not None and not seen.row.open and seen.row.to == order.to:
                return
            outcome = await self._store.write([At(key, seen.version if seen else 0)], [Put(key, encode(closed))])
            if not isinstance(outcome, Committed):
                continue
            try:
                await self.check_empty(order.project, order.cls)
            except BadRequest:
                back = Put(key, encode(msgspec.structs.replace(seen.row, term=closed.term))) if seen else Delete(key)
                await self._store.write([At(key, outcome.version)], [back])
                raise
            return
        raise NotServing(f"the gate of class {order.cls} keeps changing in region {self._keys.region}")

    async def open(self, order: ClassOrder) -> None:
        """Claims of the class commit here. Raises NotServing where the project's gate is to decide and is closed."""
        key, project_key = self._keys.gate_class(order.project, order.cls), self._keys.gate_project(order.project)
        for _ in range(TRIES):
            seen, of_project = await self._gates.get(key), await self._gates.get(project_key)
            at = At(key, seen.version if seen else 0)
            if order.own:
                if seen is not None and seen.row.open:
                    return
                conditions: list[At] = [at]
                mutations: list[Mutation] = [Put(key, encode(GateRow(open=True, term=order.term)))]
            elif seen is None:
                return
            elif of_project is None or not of_project.row.open:
                raise NotServing(f"the project {order.project} is not open in region {self._keys.region}")
            else:  # the project's gate goes on with the term, so that no epoch falls back
                gate = msgspec.structs.replace(of_project.row, term=max(order.term, of_project.row.term))
                conditions = [at, At(project_key, of_project.version)]
                mutations = [Delete(key), Put(project_key, encode(gate))]
            if isinstance(await self._store.write(conditions, mutations), Committed):
                return
        raise NotServing(f"the gate of class {order.cls} keeps changing in region {self._keys.region}")

    async def _living(self, entries: tuple[Instance, ...]) -> ObjectKey | None:
        """One that was neither deleted nor sent to another region."""
        for start in range(0, len(entries), READ_AT_ONCE):
            some = [entry.key for entry in entries[start : start + READ_AT_ONCE]]
            found = await self._store.read([self._keys.lease(key.id) for key in some])
            for key in some:
                seen = lease_seen(found.get(self._keys.lease(key.id)))
                if seen is None or not isinstance(seen.row.state, Forwarded | Deleted):
                    return key
        return None
