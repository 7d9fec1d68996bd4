"""Scrub: what rots in the bucket or on a replica is found and named; what is well is said to be (PROTOCOLS 10)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from domicile import Object
from domicile.node import manifest as manifests
from domicile.node.chunks import chunk_key, manifest_key
from domicile.placement.records import ObjectKey
from domicile.workflows.queues import CONTROL_QUEUE
from domicile.workflows.scrub import Scrub, Scrubbed, ScrubRegion

SMALL = {"object_wal_rotate_kb": 64, "object_wal_rotate_fraction": 0.01, "object_store_interval_ms": 10}
NAMES = ("a", "b", "c")


class Filled(Object):
    """A few hundred KiB each."""

    def fill(self, rows: int) -> int:
        self.sql.exec("CREATE TABLE IF NOT EXISTS t(i INTEGER PRIMARY KEY, v BLOB)")
        for _ in range(rows):
            self.sql.exec("INSERT INTO t(v) VALUES (randomblob(2000))")
        return rows


async def filled(group: Any) -> None:
    """Objects with chunks, segments and tails, all landed, and copies that have it all."""
    for name in NAMES:
        for _ in range(6):
            await group.nodes[0].call("Filled", name, "fill", 40)
    for name in NAMES:
        residency = group.home("Filled", name).residency("Filled", name)
        await group.nodes[0].call("Filled", name, "fill", 1)
        await group.until(
            lambda residency=residency: at_rest(residency), "what was due to be folded is, and has landed"
        )
        leg = residency.replicas
        await group.until(lambda leg=leg: not leg.lagging(), "the members have all of it")


def at_rest(residency: Any) -> bool:
    return not (residency.leg.behind or residency.rotation.due or residency.rotation.running)


async def scrub(plane: Any, **given: Any) -> Scrubbed:
    asked = ScrubRegion("local", **given)
    handle = await plane.client.start_workflow(Scrub.run, asked, id="scrub-local", task_queue=CONTROL_QUEUE)
    scrubbed: Scrubbed = await handle.result()
    assert (await handle.query(Scrub.progress))["done"] == len(asked.shards)
    return scrubbed


def test_what_is_well_is_read_and_said_to_be(control: Callable[..., Any]) -> None:
    """Every blob, every copy, and, of the sample, the database that the bucket alone makes."""

    async def scenario(plane: Any) -> None:
        await filled(plane.regions["local"])
        scrubbed = await scrub(plane, sample=1.0)
        assert scrubbed.problems == []
        assert (scrubbed.objects, scrubbed.restored, scrubbed.copies) == (3, 3, 6)
        assert scrubbed.blobs >= 3
        assert (await scrub(plane, sample=0.0)).restored == 0

    control(scenario, Filled, nodes=3, **SMALL)


def test_rot_in_the_bucket_is_named(control: Callable[..., Any]) -> None:
    """A chunk that is gone, and one that has other content; the others are still well."""

    async def scenario(plane: Any) -> None:
        group = plane.regions["local"]
        await filled(group)
        keys = []
        for name in ("a", "b"):
            object_id = ObjectKey("demo", "Filled", name).id
            manifest = manifests.decode((await group.blobs.get(manifest_key(object_id))).data)
            keys.append(chunk_key(object_id, manifest.incarnation, manifest.base[0]))
        await group.blobs.delete(keys[0])
        data = bytearray((await group.blobs.get(keys[1])).data)
        data[5000] ^= 1
        await group.blobs.put(keys[1], bytes(data))
        scrubbed = await scrub(plane, sample=1.0)
        assert scrubbed.problems_in_all == 2
        said = sorted(problem.partition(": ")[2] for problem in scrubbed.problems)
        assert said == sorted([f"{keys[0]} is missing", f"{keys[1]} has other content"])
        assert scrubbed.restored == 1

    control(scenario, Filled, nodes=3, **SMALL)


def test_rot_on_a_replica_is_named(control: Callable[..., Any]) -> None:
    """One bit of one copy's base: the copy is named, the bucket is well."""

    async def scenario(plane: Any) -> None:
        group = plane.regions["local"]
        await filled(group)
        object_id = ObjectKey("demo", "Filled", "a").id
        home = group.home("Filled", "a")
        other = group.others(home)[0]
        await other.hood.replicas.checkpoint()
        state = other.hood.replicas.state_of(object_id)
        path = Path(other.root) / "replicas" / object_id / str(state.held.base.file)
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(bytes(data))
        scrubbed = await scrub(plane, sample=1.0)
        assert scrubbed.problems_in_all == 1
        assert f"copy {other.hood.replicas.copy_id}: chunks [0] of the copy's base" in scrubbed.problems[0]

    control(scenario, Filled, nodes=3, **SMALL)
