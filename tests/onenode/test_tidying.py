"""A node without a control plane removes what its own rotations and deletions leave in the store."""

from __future__ import annotations

from domicile import Object
from domicile.node.chunks import chunk_key, object_prefix, segment_key

SEGMENTS_MAX = 2
WRITES = 60


class Page(Object):
    def init(self):
        self.sql.exec("CREATE TABLE t (id INTEGER PRIMARY KEY, x BLOB)")

    def put(self, size: int) -> int:
        self.sql.exec("INSERT INTO t (id, x) VALUES (1, randomblob(?)) ON CONFLICT DO UPDATE SET x = excluded.x", size)
        return self.sql.one("SELECT length(x) AS n FROM t")["n"]


async def stored(home, name):
    return {listed.key async for listed in home.bucket.quiet.list(object_prefix(home.key("Page", name).id))}


def named(manifest):
    chunks = {chunk_key(manifest.object_id, manifest.incarnation, ref) for ref in manifest.base}
    return chunks | {segment_key(manifest.object_id, manifest.incarnation, piece) for piece in manifest.segments}


async def only_what_is_named(home, name):
    manifest = (await home.landed("Page", name)).manifest
    return await stored(home, name) <= named(manifest)


def test_what_rotations_leave_goes_and_what_is_named_stays(run):
    """After many rotations the store holds what the manifest names, and the object is whole from the store alone."""

    async def scenario(home):
        first = None
        for at in range(WRITES):
            await home.call("Page", "a", "put", 20_000 + at)
            leg = await home.landed("Page", "a")
            first = first or leg.manifest.generation
        assert leg.manifest.generation.counter > first.counter + 3
        await home.until(lambda: only_what_is_named(home, "a"), "the garbage is gone")
        await home.manifest("Page", "a")  # every chunk and every segment it names is there
        await home.sleep_object("Page", "a")
        await home.restart(cold=True)
        assert await home.call("Page", "a", "put", 7) == 7

    run(scenario, Page, object_max_segments=SEGMENTS_MAX)


def test_a_deleted_object_leaves_nothing_but_its_tombstone(run):
    """A deletion frees the bytes too."""

    async def scenario(home):
        for _ in range(5):
            await home.call("Page", "a", "put", 20_000)
            await home.landed("Page", "a")
        assert await stored(home, "a")
        await home.node.delete(home.key("Page", "a"), None, None)

        async def empty():
            return not await stored(home, "a")

        await home.until(empty, "its bytes are gone")

    run(scenario, Page)


def test_the_control_plane_collects_where_there_is_one(run):
    """With TEMPORAL configured a node deletes nothing by itself."""

    async def scenario(home):
        for at in range(WRITES):
            await home.call("Page", "a", "put", 20_000 + at)
            leg = await home.landed("Page", "a")
        assert leg.manifest.generation.counter > 3
        assert not await only_what_is_named(home, "a")

    run(scenario, Page, object_max_segments=SEGMENTS_MAX, temporal="127.0.0.1:1")
