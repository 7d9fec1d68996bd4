"""Which region an object is to be found in, by what this node knows without asking (PROTOCOLS section 4).

    an open gate here           → here: it is the authority, whatever any policy says
    a place once learned        → that region (a forwarding row, or another region's gate, told it), until a gate of
                                  the object or its class changes here
    a closed gate that names    → the region it names; the object may have gone further since
    its class is pinned         → the pin, or who stands in for it
    else                        → the home of its project, or who stands in for that

Of several gates the most specific that exists decides; a project's gate says nothing of a class that is pinned.
Policies and pins are hints: a wrong one costs a hop, and the gate where the call arrives puts it right.
"""

from __future__ import annotations

from collections import OrderedDict

from domicile.errors import NoSuchProject
from domicile.placement.gates import Gates
from domicile.placement.pins import Pins
from domicile.placement.projects import Projects
from domicile.placement.records import GateRow, ObjectKey
from domicile.placement.regions import Regions
from domicile.registry import Registry

LEARNED_MAX = 200_000


class HomeRegion:
    """`mine` is this node's region. `first_use_creates`: a project that nobody knows is created with its home here."""

    def __init__(
        self, registry: Registry, gates: Gates, projects: Projects, pins: Pins, regions: Regions, *, first_use: bool
    ) -> None:
        self.mine = gates.keys.region
        self._registry = registry
        self._gates = gates
        self._projects = projects
        self._pins = pins
        self._regions = regions
        self._first_use = first_use
        self._learned: OrderedDict[str, tuple[str, int]] = OrderedDict()  # and the version of the gate it is newer than

    async def of(self, key: ObjectKey, *, create: bool = True) -> str:
        """Asks control only for what was never seen. With `create` False nothing is created: what nobody knows is here.

        Raises NoSuchProject, NotServing, BadName.
        """
        by_gate = self._by_gate(key)
        if by_gate is not None:
            return by_gate
        if (learned := self._learned.get(key.id)) is not None:
            return learned[0]
        home = await self.of_project(key.scope, create=create)  # first: it may be the project's first use
        pin = self._pin(key)
        return home if pin is None else await self._regions.place(pin, self.mine)

    async def of_project(self, project: str, *, create: bool = True) -> str:
        """The home by policy. Raises NoSuchProject, NotServing, BadName."""
        known = self._projects.known(project)
        if known is None:
            try:
                ensured = create and self._first_use
                known = await (self._projects.ensure(project) if ensured else self._projects.get(project))
            except NoSuchProject:
                if create:
                    raise
                return self.mine
        return await self._regions.place(known.region, self.mine)

    async def all_of(self, project: str) -> list[str]:
        """Every region that objects of the project are born in, its home first. Raises NotServing, BadName."""
        found = [await self.of_project(project, create=False)]
        for row in self._pins.of_project(project).values():
            if row.pin is not None:
                found.append(await self._regions.place(row.pin, self.mine))
        return list(dict.fromkeys(found))

    def moved_here(self, key: ObjectKey) -> bool:
        """Whether the object was moved by itself to this region from the one its class and project say."""
        if self._gates.seen(key).seen[0][1] is None:
            return False
        policy, pin = self._projects.known(key.scope), self._pin(key)
        born = pin if pin is not None else policy.region if policy is not None else self.mine
        return self._regions.placed(born) not in (None, self.mine)

    def learn(self, key: ObjectKey, region: str) -> None:
        """A row or a gate of another region says that the object is in this one."""
        self._learned.pop(key.id, None)
        if region != self.mine:
            of_object, of_class, _ = self._gates.seen(key).seen
            gate = of_object[1] or of_class[1]
            self._learned[key.id] = (region, gate.version if gate is not None else 0)
        if len(self._learned) > LEARNED_MAX:
            self._learned.popitem(last=False)

    def forget(self, object_id: str) -> None:
        """What was learned of it led nowhere."""
        self._learned.pop(object_id, None)

    def policy_changed(self) -> None:
        """Somebody moved: what was learned before may be of the past."""
        self._learned.clear()

    def _pin(self, key: ObjectKey) -> str | None:
        """As recorded; for a class without a record as declared."""
        recorded = self._pins.known(key.scope, key.cls)
        if recorded is not None:
            return recorded.pin
        spec = self._registry.classes.get(key.cls)
        return spec.placement.name if spec is not None and spec.placement is not None else None

    def _by_gate(self, key: ObjectKey) -> str | None:
        of_object, of_class, of_project = self._gates.seen(key).seen
        learned = self._learned.get(key.id)
        if (seen := of_object[1] or of_class[1]) is not None:
            passed_on = not seen.row.open and learned is not None and learned[1] == seen.version
            return None if passed_on else self._said(seen.row)
        if of_project[1] is None or learned is not None or self._pin(key) is not None:
            return None
        return self._said(of_project[1].row)

    def _said(self, gate: GateRow) -> str:
        return self.mine if gate.open or gate.to is None else gate.to
