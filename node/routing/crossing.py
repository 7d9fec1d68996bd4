"""Hops between regions (PROTOCOLS section 4): to the region's ingress, over the same wire as between nodes.

Only the node that a client asked crosses; whoever it asks says where the object is, if that is not there, and never
passes the call on to a third region. So a call crosses once by policy, pin or gate, and once more by a row or a gate
that it met there; what it met is remembered. An object that has gone through more regions than that costs the caller an
answer to try again on, and is found from where the last one ended.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Literal, TypeVar

from domicile.errors import DomicileError, Moving, NotHome, NotServing, OutcomeUnknown
from domicile.node.errors import PeerBusy, PeerGone
from domicile.node.routing.home_region import HomeRegion
from domicile.node.telemetry import Telemetry
from domicile.placement.records import ObjectKey
from domicile.placement.regions import Regions

CROSSINGS_MAX = 2
Twice = Literal["harmful", "keyed", "reads"]
"""What happens when it is asked twice: it may be done twice, it is done once all the same, it does nothing."""

T = TypeVar("T")
Here = Callable[[], Awaitable[T]]
There = Callable[[str], Awaitable[T]]


class Crossing:
    """`homes` says where an object is; `regions` how each region is reached."""

    def __init__(self, homes: HomeRegion, regions: Regions, telemetry: Telemetry) -> None:
        self.homes = homes
        self._regions = regions
        self._telemetry = telemetry
        self._ingress: dict[str, str] = {}  # of each region, the address that answered last

    async def ask(self, key: ObjectKey, region: str, here: Here[T], there: There[T], twice: Twice) -> T:
        """Answered `here`, or by `there(peer address)` in the object's region, to begin with in `region`.

        Raises what is raised there, and errors of `domicile.errors` that say whether it can have run.
        """
        crossed = 0
        came_here = False
        while True:
            try:
                if region == self.homes.mine:
                    came_here = True
                    return await here()
                crossed += 1
                return await self.into(region, there, twice)
            except NotHome as error:
                named = error.extra.get("region")
                if named is None:
                    raise
                self.homes.learn(key, str(named))
                if named == region or (named == self.homes.mine and came_here):
                    raise Moving() from error  # each names the other: it is on its way
                if crossed == CROSSINGS_MAX:
                    raise
                region = str(named)
            except NotServing:
                self.homes.forget(key.id)
                raise

    async def into(self, region: str, there: There[T], twice: Twice) -> T:
        """At the region's ingress: the address that answered last, or the first that does.

        Raises NotServing, OutcomeUnknown, and what is raised there.
        """
        lost: DomicileError | None = None
        for address in self._addresses(region):
            self._telemetry.region_hops.of(region).add()
            try:
                answer = await there(address)
            except PeerBusy as error:
                raise lost or NotServing(str(error)) from error
            except PeerGone as error:
                if error.sent:
                    lost = OutcomeUnknown(f"region {region} gave no answer")
                    if twice == "harmful":
                        raise lost from error
            except DomicileError as error:
                # That it did not run here says nothing of the attempt before, whose answer was lost.
                if lost is not None and error.outcome == "not_run" and twice != "reads":
                    raise lost from error
                self._ingress[region] = address
                raise
            else:
                self._ingress[region] = address
                return answer
        raise lost or NotServing(f"region {region} does not answer")

    def _addresses(self, region: str) -> list[str]:
        row = self._regions.known(region)
        addresses = [a for a in row.ingress.split(",") if a] if row is not None else []
        if not addresses:
            raise NotServing(f"region {region} has no ingress: set INGRESS on its nodes")
        last = self._ingress.get(region)
        return sorted(addresses, key=lambda address: address != last)
