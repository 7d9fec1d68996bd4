"""An incident made on purpose: answered writes that only stopped replicas have, and an object served without them."""

from __future__ import annotations

from typing import Any

from domicile import Object
from domicile.node import manifest as manifests
from domicile.node.blobs.base import Blobs, Precondition
from domicile.node.chunks import manifest_key
from domicile.node.errors import BlobUnavailable
from domicile.placement.incidents import Incidents
from domicile.placement.keys import Keys
from domicile.placement.records import ObjectKey

THREE = {"object_replicas": 3, "object_quorum": 2, "object_takeover_wait_ms": 300}
KEY = ObjectKey("demo", "Ledger", "one")


class Ledger(Object):
    """Entries, each with a text."""

    def init(self) -> None:
        self.sql.exec("CREATE TABLE entries(id INTEGER PRIMARY KEY, what TEXT)")

    def note(self, id: int, what: str) -> str:
        self.sql.exec("INSERT OR REPLACE INTO entries VALUES (?, ?)", id, what)
        return what

    def all(self) -> dict[str, str]:
        return {str(row["id"]): row["what"] for row in self.sql.query("SELECT * FROM entries ORDER BY id")}


class CutOff:
    """The bucket as a node sees it whose way there is cut: what it writes lasts with its members alone."""

    def __init__(self, blobs: Blobs) -> None:
        self.get, self.list, self.delete = blobs.get, blobs.list, blobs.delete

    async def put(self, key: str, data: bytes, condition: Precondition = None) -> str:
        raise BlobUnavailable("cut off")

    async def close(self) -> None: ...


async def lose(group: Any) -> tuple[Any, list[Any]]:
    """Answered writes that only two stopped replicas have: (the node that serves without them, the two)."""
    first = group.nodes[0]
    await first.call("Ledger", "one", "note", 1, "before")
    await first.call("Ledger", "one", "note", 2, "before")
    home = group.home("Ledger", "one")
    await home.residency("Ledger", "one").leg.flush()
    members = [one for one in group.nodes if one is not home]
    behind = members.pop()
    await behind.crash()
    home.node._host.blobs = CutOff(group.blobs)
    for id, what in ((2, "changed"), (3, "lost")):
        await home.call("Ledger", "one", "note", id, what, key=f"key {id}")
    group.killed = home
    for one in (home, *members):
        await one.crash()
    await back(group, behind)
    return behind, members


async def back(group: Any, *ones: Any) -> None:
    """Nodes that return with the disk they had."""
    for one in ones:
        await one.start()
        group.nodes.append(one)


async def closed(plane: Any) -> None:
    """Neither row nor manifest has an incident, and nothing is kept for one."""
    group = plane.regions["local"]
    assert not await Incidents(group.store, Keys("domicile", "local")).open()
    manifest = manifests.decode((await group.blobs.get(manifest_key(KEY.id))).data)
    assert manifest.incidents == ()
    for one in group.nodes:
        lost = one.root / "lost" / KEY.id
        assert not lost.exists() or not list(lost.iterdir())
