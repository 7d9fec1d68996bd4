"""Regions: which there are, how each is reached, and who stands in for one that is not there (PROTOCOLS section 4).

The rows are in the control keyspace. They are hints for routing: cached by watching, the last ones seen stay in use
while control is away. A region that nobody has registered is stood in for by the one where something of it landed
first; that is written once, on the region's absence, and all go by it from then on, also after it was registered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from domicile.errors import BadName, NotServing
from domicile.placement.followed import Followed, Seen, Sleep, decode
from domicile.placement.keys import PLACE_RE, ControlKeys
from domicile.placement.records import RegionRow, StandinRow, encode
from domicile.placement.store import At, Committed, Put, Record, Store, StoreUnavailable

REGISTER_TRIES = 5


class Regions:
    """The regions of a cluster, as one process sees them. `control` is the control keyspace's store.

    `followed` and `standins` are to be run as tasks where decisions must not ask control each time. `changed` is called
    when anything new was seen.
    """

    def __init__(self, control: Store, keys: ControlKeys, sleep: Sleep) -> None:
        self._control = control
        self._keys = keys
        self._rows: dict[str, RegionRow] = {}
        self._standins: dict[str, str] = {}
        self.changed: Callable[[], None] = lambda: None
        self.followed = Followed(control, keys.regions, RegionRow, sleep)
        self.standins = Followed(control, keys.standins, StandinRow, sleep)
        self.followed.changed = self._region_changed
        self.standins.changed = self._standin_changed

    async def register(self, row: RegionRow) -> RegionRow:
        """Write the region's row if it is new or says something else; gives what stands.

        What is empty leaves the standing one as it is; `since_ms` is that of the first registration.
        Raises BadName, StoreUnavailable.
        """
        check_region(row.name)
        key, standin_key = self._keys.region(row.name), self._keys.standin(row.name)
        for _ in range(REGISTER_TRIES):
            found = await self._control.read([key, standin_key])
            self._learn(row.name, found)
            seen = decode(found[key], RegionRow) if key in found else None
            wanted = _over(seen.row, row) if seen is not None else row
            if seen is not None and seen.row == wanted:
                return wanted
            # On the stand-in too: none may come between, unseen by the region itself.
            at = [At(k, found[k].version if k in found else 0) for k in (key, standin_key)]
            if isinstance(await self._control.write(at, [Put(key, encode(wanted))]), Committed):
                self._rows[row.name] = wanted
                return wanted
        raise StoreUnavailable(f"the row of region {row.name} keeps changing")

    async def get(self, name: str) -> RegionRow | None:
        """By the store. Raises StoreUnavailable."""
        key = self._keys.region(name)
        record = (await self._control.read([key])).get(key)
        if record is None:
            return None
        row = self._rows[name] = decode(record, RegionRow).row
        return row

    async def registered(self, name: str) -> bool:
        """Whether there is such a region: as last seen, else by the store. Raises BadName, StoreUnavailable."""
        check_region(name)
        return name in self._rows or await self.get(name) is not None

    async def list(self) -> dict[str, RegionRow]:
        """All regions, by name, from one snapshot of control. Raises StoreUnavailable, ScanExpired."""
        found: dict[str, RegionRow] = {}
        token: str | None = None
        while True:
            page = await self._control.scan(self._keys.regions, token=token)
            found.update({self._keys.region_of(r.key): decode(r, RegionRow).row for r in page.records})
            token = page.token
            if token is None:
                return found

    def known(self, name: str) -> RegionRow | None:
        """As last seen, without asking anyone."""
        return self._rows.get(name)

    def all_known(self) -> Mapping[str, RegionRow]:
        """Likewise, all of them."""
        return self._rows

    def standins_known(self) -> Mapping[str, str]:
        """Likewise: unregistered region → the one that stands in for it."""
        return self._standins

    def remember(self, rows: Mapping[str, RegionRow], standins: Mapping[str, str]) -> None:
        """Kept from an earlier run; what was seen in this one stands."""
        self._rows = {**rows, **self._rows}
        self._standins = {**standins, **self._standins}

    def placed(self, region: str) -> str | None:
        """The region that takes what belongs to `region`, as last seen; None: neither it nor a stand-in is known."""
        standin = self._standins.get(region)
        return standin if standin is not None else region if region in self._rows else None

    async def place(self, region: str, mine: str) -> str:
        """The same, asking control where that is needed: `mine` stands in for a region that nobody has registered.

        Raises BadName, and NotServing when control does not answer.
        """
        placed = self.placed(region)
        if placed is not None:
            return placed
        try:
            return await self._land(region, mine)
        except StoreUnavailable as error:
            raise NotServing(f"region {region} is not known here, and control does not answer: {error}") from error

    async def _land(self, region: str, mine: str) -> str:
        """Write the stand-in on the absence of both rows; whatever stands afterwards rules.

        A region that needs itself before it has registered stands in for itself: so nobody else does.
        """
        check_region(region)
        row_key, standin_key = self._keys.region(region), self._keys.standin(region)
        outcome = await self._control.write(
            [At(row_key, 0), At(standin_key, 0)], [Put(standin_key, encode(StandinRow(mine)))]
        )
        if isinstance(outcome, Committed):
            self._standins[region] = mine
            self.changed()
        else:
            self._learn(region, outcome.current)
        return self.placed(region) or region

    def _learn(self, region: str, found: Mapping[str, Record | None]) -> None:
        if (record := found.get(self._keys.region(region))) is not None:
            self._rows[region] = decode(record, RegionRow).row
        if (record := found.get(self._keys.standin(region))) is not None:
            self._standins[region] = decode(record, StandinRow).row.region
        self.changed()

    def _region_changed(self, key: str, before: Seen[RegionRow] | None, after: Seen[RegionRow] | None) -> None:
        if after is not None:
            self._rows[self._keys.region_of(key)] = after.row
            self.changed()

    def _standin_changed(self, key: str, before: Seen[StandinRow] | None, after: Seen[StandinRow] | None) -> None:
        if after is not None:
            self._standins[self._keys.standin_of(key)] = after.row.region
            self.changed()


def check_region(name: str) -> None:
    """Raises BadName unless it may be a region's name."""
    if not PLACE_RE.fullmatch(name) or name == "control":
        raise BadName(f"{name!r} is not a region's name")


def _over(standing: RegionRow, row: RegionRow) -> RegionRow:
    return RegionRow(
        row.name,
        row.ingress or standing.ingress,
        row.http or standing.http,
        row.placement or standing.placement,
        row.blobs or standing.blobs,
        row.blobs_endpoint or standing.blobs_endpoint,
        standing.since_ms or row.since_ms,
    )
