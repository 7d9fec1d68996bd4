"""Which class of a project is pinned to which region: recorded at the class's first birth (PROTOCOLS section 4).

The row is in the control keyspace; the gate that follows from it is in the pinned region's own store, and is the
authority there. Rows once seen stay in use while control is away, so that a class that was ever registered is born on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from domicile.errors import NoSuchProject, NotServing
from domicile.placement.followed import Followed, Seen, Sleep, decode
from domicile.placement.gates import Gates
from domicile.placement.keys import Keys
from domicile.placement.records import ClassRow, GateRow, ProjectRow, encode
from domicile.placement.regions import Regions
from domicile.placement.store import At, Committed, Put, Store, StoreUnavailable

REGISTER_TRIES = 3


class Pins:
    """The classes' rows as one region sees them. `changed(project, cls)` is told of every row that is new."""

    def __init__(self, control: Store, keys: Keys, gates: Gates, regions: Regions, sleep: Sleep) -> None:
        self._control = control
        self._keys = keys
        self._gates = gates
        self._regions = regions
        self._seen: dict[str, dict[str, ClassRow]] = {}
        self.changed: Callable[[str, str], None] = lambda project, cls: None
        self.followed = Followed(control, keys.control.projects, ClassRow, sleep)
        self.followed.wanted = lambda key: keys.control.class_of(key) is not None
        self.followed.changed = self._changed

    def known(self, project: str, cls: str) -> ClassRow | None:
        """As last seen, without asking anyone."""
        return self.of_project(project).get(cls)

    def of_project(self, project: str) -> Mapping[str, ClassRow]:
        """Likewise, all of a project's, by class."""
        return self._seen.get(project, {})

    def all_known(self) -> Mapping[str, Mapping[str, ClassRow]]:
        """Likewise, by project."""
        return self._seen

    def remember(self, rows: Mapping[str, Mapping[str, ClassRow]]) -> None:
        """Kept from an earlier run; what was seen in this one stands."""
        for project, classes in rows.items():
            self._seen[project] = {**classes, **self.of_project(project)}

    async def register(self, project: str, cls: str, pin: str | None) -> ClassRow:
        """At the first birth of a class in a project: record its pin, then open its gate if it is pinned here.

        Done again harmlessly. A gate is opened by what control says now, never by a row remembered: it may have been
        pinned elsewhere since. Raises NotServing when the class is recorded with another pin, until `project repin` has
        run, or when control is needed and does not answer; NoSuchProject.
        """
        gate = self._keys.gate_class(project, cls)
        try:
            row = self.known(project, cls)
            here = pin is not None and await self._regions.place(pin, self._keys.region) == self._keys.region
            opens = here and gate not in self._gates.followed.rows
            if row is None or row.pin != pin or opens:
                row = await self._recorded(project, cls, pin)
            if row.pin != pin:
                raise NotServing(
                    f"class {cls} of project {project} is pinned to {row.pin or 'no region'}, and in this node's code"
                    f" to {pin or 'no region'}: serve code that has the pin, or run `domicile project repin`"
                )
            if opens:
                await self._gates.create(gate, GateRow(open=True, term=row.term))
        except StoreUnavailable as error:
            raise NotServing(f"class {cls} of project {project} cannot be registered now: {error}") from error
        return row

    async def _recorded(self, project: str, cls: str, pin: str | None) -> ClassRow:
        key, policy_key = self._keys.control.project_class(project, cls), self._keys.control.project(project)
        for _ in range(REGISTER_TRIES):
            found = await self._control.read([key, policy_key])
            if key in found:
                return self._saw(project, cls, decode(found[key], ClassRow).row)
            if policy_key not in found:
                raise NoSuchProject(f"there is no project {project}")
            policy = decode(found[policy_key], ProjectRow)
            row = ClassRow(pin, policy.row.term)
            # On the policy's version too: a move that takes a new term meanwhile must not find an older one born here.
            outcome = await self._control.write([At(key, 0), At(policy_key, policy.version)], [Put(key, encode(row))])
            if isinstance(outcome, Committed):
                return self._saw(project, cls, row)
        raise StoreUnavailable(f"the policy of {project} keeps changing")

    def _changed(self, key: str, before: Seen[ClassRow] | None, after: Seen[ClassRow] | None) -> None:
        of = self._keys.control.class_of(key)
        if of is not None and after is not None:
            self._saw(*of, after.row)

    def _saw(self, project: str, cls: str, row: ClassRow) -> ClassRow:
        before = self.known(project, cls)
        self._seen.setdefault(project, {})[cls] = row
        if before != row:
            self.changed(project, cls)
        return row
