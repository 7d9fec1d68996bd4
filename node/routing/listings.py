"""The directory of a project, its home region first, then those its classes are pinned to (API, "HTTP")."""

from __future__ import annotations

from typing import Any

import msgspec

from domicile.node.host import Host
from domicile.node.peering import ask_region
from domicile.node.routing.crossing import Crossing
from domicile.node.routing.home_region import HomeRegion
from domicile.placement.directory import Directory
from domicile.placement.records import ObjectKey


class ListRequest(msgspec.Struct, array_like=True):
    """`region-list` between regions: a page of a directory. The answer is the page of the HTTP surface, JSON."""

    project: str
    cls: str | None
    prefix: str
    token: str | None


class Listings:
    """Pages over all regions of a project; `in_region` is what another region asks of this one."""

    def __init__(self, host: Host, directory: Directory, homes: HomeRegion, crossing: Crossing) -> None:
        self._host = host
        self._directory = directory
        self._homes = homes
        self._crossing = crossing

    async def page(self, project: str, cls: str | None, prefix: str, token: str | None) -> dict[str, Any]:
        """{"objects", "token"}: the token says which region, and where in it. Raises what the directory does, and
        NotServing for a region that cannot be asked."""
        if cls is not None:
            regions = [await self._homes.of(ObjectKey(project, cls, ""), create=False)]
        else:
            regions = await self._homes.all_of(project)
        region, _, inner = (token or "").partition(":")
        at = regions.index(region) if region in regions else 0
        while True:
            found = await self._page_of(regions[at], ListRequest(project, cls, prefix, inner or None))
            if found["token"] is not None:
                return {**found, "token": f"{regions[at]}:{found['token']}"}
            at, inner = at + 1, ""
            if at == len(regions):
                return found
            if found["objects"]:
                return {**found, "token": f"{regions[at]}:"}

    async def in_region(self, body: bytes) -> bytes:
        """One page of this region's directory, without those moved here by themselves: their old region lists them."""
        asked = msgspec.msgpack.decode(body, type=ListRequest)
        page = await self._directory.instances(asked.project, asked.cls, asked.prefix, asked.token)
        objects = [
            {"class": e.key.cls, "name": e.key.name, "id": e.key.id, "created_ms": e.created_ms}
            for e in page.entries
            if not self._homes.moved_here(e.key)
        ]
        return msgspec.json.encode({"objects": objects, "token": page.token})

    async def _page_of(self, region: str, request: ListRequest) -> dict[str, Any]:
        body = msgspec.msgpack.encode(request)
        if region == self._homes.mine:
            answer = await self.in_region(body)
        else:
            ask = ask_region(self._host.peers, "region-list", body)
            answer = await self._crossing.into(region, ask, "reads")
        page: dict[str, Any] = msgspec.json.decode(answer)
        return page
