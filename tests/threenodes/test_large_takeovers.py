"""A large base that another node takes over: in pages, from whoever has it."""

from __future__ import annotations

from domicile import Object
from domicile.node.chunks import chunk_key
from domicile.node.errors import BlobUnavailable

MIB = 1 << 20
PAGED = {"object_paged_mb": 1, "object_wal_rotate_kb": 1024, "object_journal_mb": 32}
ROWS = 6


class Shelf(Object):
    def init(self) -> None:
        self.sql.exec("CREATE TABLE books (n INTEGER PRIMARY KEY, x BLOB)")

    def put(self, size: int) -> int:
        self.sql.exec("INSERT INTO books (x) VALUES (randomblob(?))", size)
        return int(self.sql.one("SELECT count(*) AS n FROM books")["n"])

    def sizes(self) -> list[int]:
        return [row["n"] for row in self.sql.query("SELECT length(x) AS n FROM books ORDER BY books.n")]


async def away(*_):
    raise BlobUnavailable("the store is away")


async def filled(c):
    """A home with a base of several chunks in the store and at both members."""
    home = c.nodes[0]
    for _ in range(ROWS):
        await home.call("Shelf", "a", "put", MIB)
    residency = home.residency("Shelf", "a")

    def at_rest() -> bool:
        residency.leg.hurry()
        settled = not residency.leg.behind and not residency.rotation.running
        marks = residency.replicas.held().values()
        return settled and residency.log.rotations > 0 and all(mark >= residency.flights.mark for mark in marks)

    await c.until(at_rest, "base and log are everywhere")
    return home, residency


def test_a_member_that_has_more_is_laid_in_pages(cluster):
    """The store has the base and not the last write: that comes from a member, the base in pages, and all is there."""

    async def scenario(c):
        home, residency = await filled(c)
        put, c.blobs.put = c.blobs.put, away
        assert await home.call("Shelf", "a", "put", 10) == ROWS + 1
        await c.until(lambda: all(m >= residency.flights.mark for m in residency.replicas.held().values()), "acked")
        assert residency.leg.behind
        await home.crash()
        c.blobs.put = put
        other = c.nodes[0]
        assert await other.call("Shelf", "a", "put", 20) == ROWS + 2
        assert other.residency("Shelf", "a").engine.paged is not None
        assert await other.call("Shelf", "a", "sizes") == [MIB] * ROWS + [10, 20]
        await c.until(lambda: other.residency("Shelf", "a").engine.paged.settled, "the base is whole")

    cluster(scenario, Shelf, **PAGED)


def test_a_chunk_the_store_has_lost_comes_from_a_member(cluster):
    """And goes back into the store."""

    async def scenario(c):
        home, residency = await filled(c)
        manifest = residency.leg.manifest
        key = chunk_key(manifest.object_id, manifest.incarnation, manifest.base[2])
        await c.blobs.delete(key)
        await home.crash()
        other = c.nodes[0]
        assert await other.call("Shelf", "a", "sizes") == [MIB] * ROWS
        await c.until(lambda: other.residency("Shelf", "a").engine.paged.settled, "the base is whole")
        assert len((await c.blobs.get(key)).data) == MIB

    cluster(scenario, Shelf, **PAGED)
