"""The names of all rows, in both directions (PROTOCOLS section 2). Pure; an object's name is the raw last component.

A name may contain `/`, so it is always last; everything before it cannot. Prefixes end with `/` (or inside a name), so
that a project `a` never lists what belongs to `a-b`.
"""

from __future__ import annotations

import re

from domicile.errors import BadName
from domicile.placement.records import ObjectKey

PLACE_RE = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
OBJECT_ID_RE = re.compile(r"[0-9a-f]{64}")
DUE_DIGITS = 13
DUE_MS_MAX = 10**DUE_DIGITS - 1


class ControlKeys:
    """Rows under `/<cluster>/control/`."""

    def __init__(self, cluster: str) -> None:
        """Raises BadName."""
        self.root = f"/{_place(cluster, 'a cluster')}/control/"
        self.projects = f"{self.root}projects/"
        self.regions = f"{self.root}regions/"
        self.standins = f"{self.root}standins/"
        self.tokens = f"{self.root}tokens/"

    def project(self, project: str) -> str:
        return self.projects + project

    def move(self, project: str) -> str:
        """The mark of a move under way."""
        return f"{self.projects}{project}/move"

    def project_class(self, project: str, cls: str) -> str:
        return f"{self.classes(project)}{cls}"

    def classes(self, project: str) -> str:
        """Prefix of a project's class rows."""
        return f"{self.projects}{project}/classes/"

    def region(self, name: str) -> str:
        return self.regions + name

    def standin(self, region: str) -> str:
        return self.standins + region

    def region_of(self, key: str) -> str:
        """Raises ValueError for a key of another table."""
        return _rest(key, self.regions)

    def standin_of(self, key: str) -> str:
        """The unregistered region. Raises ValueError for a key of another table."""
        return _rest(key, self.standins)

    def token(self, digest: str) -> str:
        return self.tokens + digest

    def project_of(self, key: str) -> str | None:
        """The project whose policy row this is; None for its class rows."""
        rest = _rest(key, self.projects)
        return None if "/" in rest else rest

    def class_of(self, key: str) -> tuple[str, str] | None:
        """(project, class) of a class row; None for a policy row."""
        project, slash, cls = _rest(key, self.projects).partition("/classes/")
        return (project, cls) if slash else None


class Keys:
    """Rows under `/<cluster>/<region>/`; those of control are in `control`."""

    def __init__(self, cluster: str, region: str) -> None:
        """Raises BadName: `control` is no region."""
        if region == "control":
            raise BadName("control is no region's name")
        self.region = region
        self.control = ControlKeys(cluster)
        self.root = f"/{cluster}/{_place(region, 'a region')}/"
        self.nodes = f"{self.root}nodes/"
        self.gates = f"{self.root}gates/"
        self.leases = f"{self.root}leases/"
        self.alarms = f"{self.root}alarms/"
        self.departures = f"{self.root}departures/"
        self.incidents = f"{self.root}incidents/"
        self._instances = f"{self.root}instances/"
        self._deleted = f"{self.root}deleted/"

    def node(self, node_id: str) -> str:
        return self.nodes + node_id

    def departure(self, node_id: str) -> str:
        return self.departures + node_id

    def lease(self, object_id: str) -> str:
        return self.leases + object_id

    def gate_project(self, project: str) -> str:
        return self.gates + project

    def gate_class(self, project: str, cls: str) -> str:
        """Raises BadName for the one name that an object's gate could have."""
        if project == "o" and OBJECT_ID_RE.fullmatch(cls):
            raise BadName("in the project 'o' a class cannot be named like an object id")
        return f"{self.gates}{project}/{cls}"

    def gate_object(self, object_id: str) -> str:
        return f"{self.gates}o/{object_id}"

    def gates_of(self, key: ObjectKey) -> tuple[str, str, str]:
        """The gates that can decide for an object, the most specific first. Raises BadName."""
        return self.gate_object(key.id), self.gate_class(key.scope, key.cls), self.gate_project(key.scope)

    def alarm(self, due_ms: int, object_id: str) -> str:
        """Raises ValueError outside 0 to 13 digits: text order must be time order."""
        if not 0 <= due_ms <= DUE_MS_MAX:
            raise ValueError(f"{due_ms} ms is outside what an alarm row can say")
        return f"{self.alarms}{due_ms:0{DUE_DIGITS}d}/{object_id}"

    def alarm_of(self, object_id: str) -> str:
        return f"{self.root}alarm-of/{object_id}"

    def incident(self, object_id: str, epoch: str) -> str:
        return f"{self.incidents}{object_id}/{epoch}"

    def instance(self, key: ObjectKey) -> str:
        return self.instances(key.scope, key.cls, key.name)

    def instances(self, scope: str, cls: str | None = None, name_prefix: str = "") -> str:
        """Prefix of a listing: of a scope, of a class in it, of names in that that start with `name_prefix`."""
        return self._instances + _listing(scope, cls, name_prefix)

    def deleted(self, key: ObjectKey) -> str:
        return self.deletions(key.scope, key.cls, key.name)

    def deletions(self, scope: str, cls: str | None = None, name_prefix: str = "") -> str:
        """Prefix of a listing of deletions, as `instances`."""
        return self._deleted + _listing(scope, cls, name_prefix)

    def node_of(self, key: str) -> str:
        """Every reverse raises ValueError for a key of another table or region."""
        return _rest(key, self.nodes)

    def object_of_lease(self, key: str) -> str:
        return _rest(key, self.leases)

    def gate_of(self, key: str) -> tuple[str, ...]:
        """(project,), (project, class) or ("o", object id)."""
        return tuple(_rest(key, self.gates).split("/"))

    def alarm_at(self, key: str) -> tuple[int, str]:
        """(due in ms since 1970, object id)."""
        due, _, object_id = _rest(key, self.alarms).partition("/")
        return int(due), object_id

    def instance_of(self, key: str) -> ObjectKey:
        return _object(_rest(key, self._instances))

    def deletion_of(self, key: str) -> ObjectKey:
        return _object(_rest(key, self._deleted))

    def incident_of(self, key: str) -> tuple[str, str]:
        """(object id, epoch as text)."""
        object_id, _, epoch = _rest(key, self.incidents).partition("/")
        return object_id, epoch

    def departure_of(self, key: str) -> str:
        return _rest(key, self.departures)


def _listing(scope: str, cls: str | None, name_prefix: str) -> str:
    if cls is None:
        if name_prefix:
            raise ValueError("names are listed within a class")
        return f"{scope}/"
    return f"{scope}/{cls}/{name_prefix}"


def _object(rest: str) -> ObjectKey:
    scope, cls, name = rest.split("/", 2)
    return ObjectKey(scope, cls, name)


def _rest(key: str, prefix: str) -> str:
    if not key.startswith(prefix):
        raise ValueError(f"{key!r} is not under {prefix!r}")
    return key[len(prefix) :]


def _place(name: str, what: str) -> str:
    if not PLACE_RE.fullmatch(name):
        raise BadName(f"{name!r} is not {what}'s name: [a-z0-9][a-z0-9-]{{0,62}}")
    return name
