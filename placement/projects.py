"""Projects: policy in the control keyspace, and the gates that follow from it (PROTOCOLS sections 2 and 4).

Policies are hints for routing: cached, the last one seen stays in use while control is away. The authority for claims
is the gate in the home region's own store. Policy is written first, so a project whose creation stopped half-way has
no gate, and creating it again finishes the work.
"""

from __future__ import annotations

from collections.abc import Callable

from domicile.errors import BadName, BadRequest, NoSuchProject, NotServing
from domicile.placement.followed import Followed, Seen, Sleep, decode
from domicile.placement.gates import Gates
from domicile.placement.keys import PLACE_RE, Keys
from domicile.placement.records import ClassRow, GateRow, ProjectRow, check_scope, encode
from domicile.placement.store import At, Committed, Put, Store, StoreUnavailable

FIRST_TERM = 1
ON_INCIDENT = ("serve", "wait")
REGISTER_TRIES = 3


class Projects:
    """Projects as one region sees them. `control` is the control keyspace's store; `wall_ms` gives ms since 1970.

    Methods that must ask control raise NotServing when it does not answer.
    """

    def __init__(self, control: Store, keys: Keys, gates: Gates, wall_ms: Callable[[], int], sleep: Sleep) -> None:
        self._control = control
        self._keys = keys
        self._gates = gates
        self._wall_ms = wall_ms
        self._seen: dict[str, ProjectRow] = {}
        self._ensured: dict[str, ProjectRow] = {}
        self.followed = Followed(control, keys.control.projects, ProjectRow, sleep)
        self.followed.wanted = lambda key: keys.control.project_of(key) is not None
        self.followed.changed = self._changed

    async def create(self, project: str, region: str | None = None, on_incident: str | None = None) -> ProjectRow:
        """Write the policy if there is none (home: `region`, else this region), then open the gate if home is here.

        The policy is written once: what stands is given back, whatever was asked. Where the home is another region
        the same call there opens the gate. Raises BadName, BadRequest.
        """
        check_scope(project)
        region = region or self._keys.region
        on_incident = on_incident or ON_INCIDENT[0]
        if not PLACE_RE.fullmatch(region) or region == "control":
            raise BadName(f"{region!r} is not a region's name")
        if on_incident not in ON_INCIDENT:
            raise BadRequest(f"on_incident is one of {', '.join(ON_INCIDENT)}")
        key = self._keys.control.project(project)
        row = ProjectRow(region, FIRST_TERM, on_incident, self._wall_ms())
        try:
            await self._control.write([At(key, 0)], [Put(key, encode(row))])
            standing = await self._read(project)
            if standing is None:
                raise NotServing(f"the project {project} was not stored")
            if standing.row.region == self._keys.region:
                gate = GateRow(open=True, term=standing.row.term)
                await self._gates.create(self._keys.gate_project(project), gate)
        except StoreUnavailable as error:
            raise NotServing(f"the project {project} cannot be created now: {error}") from error
        return standing.row

    async def ensure(self, project: str) -> ProjectRow:
        """For `dev` and `up`: the project, created on first use with its home here.

        The first use in a run goes through `create` even for a known project: an earlier run may have stopped between
        policy and gate.
        """
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

    async def register_class(self, project: str, cls: str, pin: str | None) -> ClassRow:
        """At the first birth of a class in a project: record its pin, then open its gate if it is pinned here.

        Done again harmlessly. Raises NotServing when the class is recorded with another pin, until `project repin` has
        run; NoSuchProject.
        """
        try:
            row = await self._recorded(project, cls, pin)
            if row.pin != pin:
                raise NotServing(
                    f"class {cls} of project {project} is pinned to {row.pin or 'no region'}, not {pin or 'none'}:"
                    " run `domicile project repin`"
                )
            if pin == self._keys.region:
                await self._gates.create(self._keys.gate_class(project, cls), GateRow(open=True, term=row.term))
        except StoreUnavailable as error:
            raise NotServing(f"class {cls} of project {project} cannot be registered now: {error}") from error
        return row

    async def _recorded(self, project: str, cls: str, pin: str | None) -> ClassRow:
        key, policy_key = self._keys.control.project_class(project, cls), self._keys.control.project(project)
        for _ in range(REGISTER_TRIES):
            found = await self._control.read([key, policy_key])
            if key in found:
                return decode(found[key], ClassRow).row
            if policy_key not in found:
                raise NoSuchProject(f"there is no project {project}")
            policy = decode(found[policy_key], ProjectRow)
            row = ClassRow(pin, policy.row.term)
            # On the policy's version too: a move that takes a new term meanwhile must not find an older one born here.
            outcome = await self._control.write([At(key, 0), At(policy_key, policy.version)], [Put(key, encode(row))])
            if isinstance(outcome, Committed):
                return row
        raise StoreUnavailable(f"the policy of {project} keeps changing")

    async def _read(self, project: str) -> Seen[ProjectRow] | None:
        key = self._keys.control.project(project)
        record = (await self._control.read([key])).get(key)
        if record is None:
            return None
        seen = decode(record, ProjectRow)
        self._seen[project] = seen.row
        return seen

    def _changed(self, key: str, before: Seen[ProjectRow] | None, after: Seen[ProjectRow] | None) -> None:
        project = self._keys.control.project_of(key)
        if project is not None and after is not None:
            self._seen[project] = after.row
