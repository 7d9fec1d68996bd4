"""Projects: policy in the control keyspace, and the gates that follow from it (PROTOCOLS sections 2 and 4).

Policies are hints for routing: cached, the last one seen stays in use while control is away. The authority for claims
is the gate in the home region's own store. Policy is written first, so a project whose creation stopped half-way has
no gate, and creating it again finishes the work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from domicile.errors import BadRequest, NoSuchProject, NotServing
from domicile.placement.followed import Followed, Seen, Sleep, decode
from domicile.placement.gates import Gates
from domicile.placement.records import GateRow, ProjectRow, check_scope, encode
from domicile.placement.regions import Regions, check_region
from domicile.placement.store import At, Put, Store, StoreUnavailable

FIRST_TERM = 1
ON_INCIDENT = ("serve", "wait")


class Projects:
    """Projects as one region sees them. `control` is the control keyspace's store; `wall_ms` gives ms since 1970.

    Methods that must ask control raise NotServing when it does not answer. `changed(project)` is told of every policy
    that is new.
    """

    def __init__(
        self, control: Store, gates: Gates, regions: Regions, wall_ms: Callable[[], int], sleep: Sleep
    ) -> None:
        self._control = control
        self._keys = keys = gates.keys
        self._gates = gates
        self._regions = regions
        self._wall_ms = wall_ms
        self.changed: Callable[[str], None] = lambda project: None
        self._seen: dict[str, ProjectRow] = {}
        self._ensured: dict[str, ProjectRow] = {}
        self.followed = Followed(control, keys.control.projects, ProjectRow, sleep)
        self.followed.wanted = lambda key: keys.control.project_of(key) is not None
        self.followed.changed = self._row_changed

    async def create(self, project: str, region: str | None = None, on_incident: str | None = None) -> ProjectRow:
        """Write the policy if there is none (home: `region`, else this region), then open the gate if home is here.

        The policy is written once: what stands is given back, whatever was asked. Where the home is another region
        the same call there opens the gate. Raises BadName, BadRequest.
        """
        check_scope(project)
        region = region or self._keys.region
        on_incident = on_incident or ON_INCIDENT[0]
        check_region(region)
        if on_incident not in ON_INCIDENT:
            raise BadRequest(f"on_incident is one of {', '.join(ON_INCIDENT)}")
        key = self._keys.control.project(project)
        row = ProjectRow(region, FIRST_TERM, on_incident, self._wall_ms())
        try:
            if region == self._keys.region:
                # Before anybody reads that the home is here: one that has not registered yet would be stood in for.
                await self._regions.place(region, region)
            await self._control.write([At(key, 0)], [Put(key, encode(row))])
            standing = await self._read(project)
            if standing is None:
                raise NotServing(f"the project {project} was not stored")
            if await self._regions.place(standing.row.region, self._keys.region) == self._keys.region:
                gate = GateRow(open=True, term=standing.row.term)
                await self._gates.create(self._keys.gate_project(project), gate)
        except StoreUnavailable as error:
            raise NotServing(f"the project {project} cannot be created now: {error}") from error
        return standing.row

    async def ensure(self, project: str) -> ProjectRow:
        """For `dev` and `up`: the project, created on first use with its home here.

        The first use in a run goes through `create` even for a known project: an earlier run may have stopped between
        policy and gate. Not if its gate is seen here, or its home elsewhere: control may be away, and there is nothing
        to finish.
        """
        known = self._seen.get(project)
        if known is not None:
            here = self._keys.gate_project(project) in self._gates.followed.rows
            if here or self._regions.placed(known.region) not in (None, self._keys.region):
                return known
        if project not in self._ensured:
            self._ensured[project] = await self.create(project)
        return self._seen.get(project, self._ensured[project])

    async def get(self, project: str) -> ProjectRow:
        """The last policy seen, else what control says, else what the project's gate here says.

        Raises NoSuchProject when control has none.
        """
        if (row := self._seen.get(project)) is not None:
            return row
        check_scope(project)
        try:
            seen = await self._read(project)
        except StoreUnavailable as error:
            if (gate := self._gates.followed.rows.get(self._keys.gate_project(project))) is not None:
                return ProjectRow(gate.row.to or self._keys.region, gate.row.term)
            raise NotServing(f"the project {project} is not known here, and control does not answer") from error
        if seen is None:
            raise NoSuchProject(f"there is no project {project}")
        return seen.row

    def known(self, project: str) -> ProjectRow | None:
        """The last policy seen, without asking anyone."""
        return self._seen.get(project)

    def remember(self, policies: dict[str, ProjectRow]) -> None:
        """Policies kept from an earlier run; what was seen in this one stands."""
        self._seen = {**policies, **self._seen}

    def all_known(self) -> Mapping[str, ProjectRow]:
        """All policies last seen, without asking anyone."""
        return self._seen

    async def list(self) -> dict[str, ProjectRow]:
        """All projects, by id, from one snapshot of control."""
        found: dict[str, ProjectRow] = {}
        token: str | None = None
        try:
            while True:
                page = await self._control.scan(self._keys.control.projects, token=token)
                for record in page.records:
                    if (project := self._keys.control.project_of(record.key)) is not None:
                        found[project] = decode(record, ProjectRow).row
                token = page.token
                if token is None:
                    return found
        except StoreUnavailable as error:
            raise NotServing(f"control does not answer: {error}") from error

    async def _read(self, project: str) -> Seen[ProjectRow] | None:
        key = self._keys.control.project(project)
        record = (await self._control.read([key])).get(key)
        if record is None:
            return None
        seen = decode(record, ProjectRow)
        self._saw(project, seen.row)
        return seen

    def _row_changed(self, key: str, before: Seen[ProjectRow] | None, after: Seen[ProjectRow] | None) -> None:
        project = self._keys.control.project_of(key)
        if project is not None and after is not None:
            self._saw(project, after.row)

    def _saw(self, project: str, row: ProjectRow) -> None:
        before = self._seen.get(project)
        self._seen[project] = row
        if before != row:
            self.changed(project)
