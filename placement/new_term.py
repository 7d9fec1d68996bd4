"""A new term for every project of a region whose placement store was put back from a backup (PROTOCOLS section 4).

Such a store counts its versions anew from an older one, so that no claim would exceed the epochs that the bucket's
manifests already carry. The next term does, whatever the version. It is drawn from the project's counter in control,
which may have been put back along with the store: so it exceeds every term that the caller has seen elsewhere, too.

A store that is older than a move says that the project's gate here is open, while another region's is. The policy
decides: where home is elsewhere the gate is closed. One that is closed although home is here stays so.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field

import msgspec

from domicile.placement.followed import Seen, decode
from domicile.placement.keys import OBJECT_ID_RE, Keys
from domicile.placement.records import ClassRow, GateRow, LeaseRow, ProjectRow, StandinRow, encode
from domicile.placement.store import At, Committed, Put, Record, Store, StoreUnavailable

TRIES = 8


@dataclass(slots=True)
class Renewed:
    """What became of one project. `rewritten`: how many gates; `closed`: gate keys that were open against the policy;
    `shut`: the project's own gate is closed although its home is here."""

    project: str
    before: int
    term: int
    rewritten: int = 0
    closed: list[str] = field(default_factory=list)
    shut: bool = False


class NewTerm:
    """One region's store and the control keyspace. Everything raises StoreUnavailable, and ScanExpired."""

    def __init__(self, store: Store, control: Store, keys: Keys) -> None:
        self._store = store
        self._control = control
        self._keys = keys

    async def seen(self) -> dict[str, int]:
        """The highest term of each project that this region's rows tell of."""
        terms: dict[str, int] = defaultdict(int)
        async for record in _all(self._store, self._keys.leases):
            row = decode(record, LeaseRow).row
            terms[row.scope] = max(terms[row.scope], row.term)
        return dict(terms)

    async def renew(self, above: Mapping[str, int]) -> list[Renewed]:
        """Draw a new term for each project that control knows, above `above`'s, and write it into its gates here.

        Done again it takes one term more, and does no harm.
        """
        gates = await self._gates_by_project()
        renewed = []
        async for record in _all(self._control, self._keys.control.projects):
            project = self._keys.control.project_of(record.key)
            if project is not None:
                renewed.append(await self._renew(project, gates.get(project, {}), above.get(project, 0)))
        return renewed

    async def _renew(self, project: str, gates: dict[str, Seen[GateRow]], above: int) -> Renewed:
        highest = max([above, *(seen.row.term for seen in gates.values())])
        before, policy = await self._draw(project, highest)
        result = Renewed(project, before, policy.term)
        home = await self._placed(policy.region)
        for key, seen in gates.items():
            of = self._keys.gate_of(key)
            place: str | None = home
            if _object_of(of) is not None:
                place = None
            elif len(of) == 2 and (pin := await self._pin(project, of[1])) is not None:
                place = await self._placed(pin)
            await self._rewrite(key, seen, policy.term, place, result)
        return result

    async def _draw(self, project: str, above: int) -> tuple[int, ProjectRow]:
        """The term before, and the policy with the new one, which stands."""
        key = self._keys.control.project(project)
        for _ in range(TRIES):
            record = (await self._control.read([key])).get(key)
            if record is None:
                raise StoreUnavailable(f"the project {project} is gone")
            seen = decode(record, ProjectRow)
            row = msgspec.structs.replace(seen.row, term=max(seen.row.term, above) + 1)
            if isinstance(await self._control.write([At(key, seen.version)], [Put(key, encode(row))]), Committed):
                return seen.row.term, row
        raise StoreUnavailable(f"the policy of {project} keeps changing")

    async def _rewrite(self, key: str, seen: Seen[GateRow], term: int, place: str | None, result: Renewed) -> None:
        """`place`: the region that the policy has the gate open in; None: nothing is said of it."""
        for _ in range(TRIES):
            row, elsewhere = seen.row, place not in (None, self._keys.region)
            wrong = row.open and elsewhere
            wanted = GateRow(row.open and not wrong, max(term, row.term), place if wrong else row.to)
            if isinstance(await self._store.write([At(key, seen.version)], [Put(key, encode(wanted))]), Committed):
                result.rewritten += 1
                if wrong:
                    result.closed.append(key)
                result.shut |= key == self._keys.gate_project(result.project) and not (wanted.open or elsewhere)
                return
            record = (await self._store.read([key])).get(key)
            if record is None:
                return
            seen = decode(record, GateRow)
        raise StoreUnavailable(f"the gate {key} keeps changing")

    async def _gates_by_project(self) -> dict[str, dict[str, Seen[GateRow]]]:
        found: dict[str, dict[str, Seen[GateRow]]] = defaultdict(dict)
        async for record in _all(self._store, self._keys.gates):
            of = self._keys.gate_of(record.key)
            object_id = _object_of(of)
            project = await self._scope(object_id) if object_id is not None else of[0]
            if project is not None:
                found[project][record.key] = decode(record, GateRow)
        return found

    async def _scope(self, object_id: str) -> str | None:
        """Of an object's own gate: by its lease row."""
        key = self._keys.lease(object_id)
        record = (await self._store.read([key])).get(key)
        return decode(record, LeaseRow).row.scope if record is not None else None

    async def _pin(self, project: str, cls: str) -> str | None:
        key = self._keys.control.project_class(project, cls)
        record = (await self._control.read([key])).get(key)
        return decode(record, ClassRow).row.pin if record is not None else None

    async def _placed(self, region: str) -> str:
        """Where what belongs to `region` is, without making anyone stand in for it."""
        key = self._keys.control.standin(region)
        record = (await self._control.read([key])).get(key)
        return decode(record, StandinRow).row.region if record is not None else region


def _object_of(gate: tuple[str, ...]) -> str | None:
    """The object's id, of an object's own gate."""
    return gate[1] if len(gate) == 2 and gate[0] == "o" and OBJECT_ID_RE.fullmatch(gate[1]) else None


async def _all(store: Store, prefix: str) -> AsyncIterator[Record]:
    token: str | None = None
    while True:
        page = await store.scan(prefix, token=token)
        for record in page.records:
            yield record
        token = page.token
        if token is None:
            return
