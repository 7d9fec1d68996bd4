"""ReplicateProject and FailoverRegion: the loss is stated, then counted equal; what returns becomes incidents."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from control_plane import ControlPlane, settled
from killed_workers import Killer, intercepted
from temporalio.client import WorkflowFailureError
from whole_nodes import NodeGroup

from domicile import Object
from domicile.activities.object_rows import read_rows
from domicile.placement.embedded import EmbeddedStore
from domicile.placement.records import ObjectKey
from domicile.workflows.failover_region import FailoverRegion
from domicile.workflows.failover_values import FailedOver, Failover, Replicate, Replicated
from domicile.workflows.queues import CONTROL_QUEUE
from domicile.workflows.recover_incident import Recovered, RecoverIncident
from domicile.workflows.replicate_project import ReplicateProject
from domicile.workflows.watch_incidents import WatchIncidents, WatchRegion

SETTINGS = {"object_replicas": 0, "object_quorum": 0, "object_journal_mb": 4}
PROJECT = "demo"


class Notes(Object):
    """Notes by number."""

    def init(self) -> None:
        self.sql.exec("CREATE TABLE notes(n INTEGER PRIMARY KEY, what TEXT)")

    def note(self, n: int, what: str) -> str:
        self.sql.exec("INSERT OR REPLACE INTO notes VALUES (?, ?)", n, what)
        return what

    def all(self) -> list[str]:
        return [row["what"] for row in self.sql.query("SELECT what FROM notes ORDER BY n")]


@pytest.fixture
def regions(temporal: Any, tmp_path: Path, request: pytest.FixtureRequest) -> Callable[..., None]:
    """`regions(scenario)`: two regions of one node each, with the control keyspace in a store of its own."""

    def go(scenario: Callable[[ControlPlane], Awaitable[None]]) -> None:
        async def main() -> None:
            groups = {name: NodeGroup(tmp_path / name, (Notes,), {**SETTINGS, "region": name}) for name in ("a", "b")}
            store = EmbeddedStore(str(tmp_path / "control.db"), groups["a"].watch.monotonic)
            for group in groups.values():
                group.control = store
                await group.start(1)
            plane = ControlPlane(temporal.address, groups, store)
            if record := os.environ.get("DOMICILE_RECORD_HISTORIES"):
                plane.record_into = Path(record) / request.node.name
            await plane.start()
            try:
                await scenario(plane)
            finally:
                await plane.stop()
                for group in groups.values():
                    await group.stop()
                await store.close()

        asyncio.run(main())

    return go


async def replicated(plane: Any, to: str, passes: int = 1) -> Any:
    """A standing copy, made once; the next pass is far away."""
    asked = Replicate(PROJECT, to, every_secs=3600)
    handle = await plane.client.start_workflow(
        ReplicateProject.run, asked, id=f"replicate-{PROJECT}", task_queue=CONTROL_QUEUE
    )

    async def stands() -> bool:
        return bool((await handle.query(ReplicateProject.progress))["passes"] >= passes)

    await plane.until(stands, "the copy stands")
    return handle


async def failover(plane: Any, to: str, **more: Any) -> Any:
    return await plane.client.start_workflow(
        FailoverRegion.run, Failover(PROJECT, to, **more), id=f"failover-{PROJECT}", task_queue=CONTROL_QUEUE
    )


async def at_step(plane: Any, handle: Any, step: str) -> dict[str, Any]:
    async def there() -> bool:
        return bool((await handle.query("progress"))["step"] == step)

    await plane.until(there, f"the workflow is at {step}")
    progress: dict[str, Any] = await handle.query("progress")
    return progress


async def killed(group: Any) -> None:
    """Nodes and placement store; the bucket can still be read."""
    for one in list(group.nodes):
        await one.crash()
    await group.store.close()


async def returned(plane: Any, group: Any) -> Any:
    """As it was, its gate still open."""
    group.store = EmbeddedStore(str(group.root / "placement.db"), group.watch.monotonic)
    plane.world._regions.pop(group.region)
    return await group.add("n0")


async def landed(one: Any, name: str) -> None:
    await one.residency("Notes", name).leg.flush()


async def gate(plane: Any, region: str) -> Any:
    world = await plane.world.region(region)
    seen = await world.gates.get(world.keys.gate_project(PROJECT))
    return seen.row if seen is not None else None


async def recovered(plane: Any, name: str) -> Any:
    """The workflow of the incident of an object in b."""
    watching = await plane.client.start_workflow(
        WatchIncidents.run, WatchRegion("b"), id="incidents-b", task_queue=CONTROL_QUEUE
    )
    await watching.result()
    object_id = ObjectKey(PROJECT, "Notes", name).id
    async for run in plane.client.list_workflows(f"WorkflowId STARTS_WITH 'incident-{object_id}'"):
        return plane.client.get_workflow_handle_for(RecoverIncident.run, run.id)
    raise AssertionError(f"no recovery of {name}")


def test_the_loss_is_stated_then_counted_equal_and_what_returns_is_incidents(regions: Callable[..., None]) -> None:
    """a is killed with answered writes that b's copy lacks: b says how much before it acts; a's gate is closed first
    when it returns; what it had is laid where nothing was written since, else a person decides."""

    async def scenario(plane: Any) -> None:
        a, b = plane.regions["a"].nodes[0], plane.regions["b"].nodes[0]
        for name in ("same", "more", "both"):
            await a.call("Notes", name, "note", 1, "copied")
            await landed(a, name)
        await replicated(plane, "b")
        for name in ("more", "both", "born"):
            await a.call("Notes", name, "note", 2, "lost")
            await landed(a, name)
        await killed(plane.regions["a"])

        handle = await failover(plane, "b")
        stated = await at_step(plane, handle, "ask")
        assert (stated["counted"], stated["lost_objects"], stated["missing_objects"]) == (True, 3, 1)
        assert stated["lag_secs"] > 0
        assert stated["lost_bytes"] > 0
        assert await gate(plane, "b") is None, "nothing was done yet"
        await handle.signal(FailoverRegion.go_on)
        await at_step(plane, handle, "away")
        found = {name: await b.call("Notes", name, "all") for name in ("same", "more", "both")}
        assert found == {"same": ["copied"], "more": ["copied"], "both": ["copied"]}
        rows = await read_rows(await plane.world.region("b"), [ObjectKey(PROJECT, "Notes", "born")])
        lost = sum("lost" not in notes for name, notes in found.items() if name != "same") + (rows[0].lease is None)
        assert lost == stated["lost_objects"]
        await b.call("Notes", "both", "note", 3, "served")

        await returned(plane, plane.regions["a"])
        result: FailedOver = await handle.result()
        assert (result.returned, result.incidents, result.listed_in_all) == (True, 3, 0)
        assert (await gate(plane, "a")).to == "b"
        assert not (await gate(plane, "a")).open
        for name in ("more", "born"):
            done: Recovered = await (await recovered(plane, name)).result()
            assert (name, done.outcome) == (name, "laid")
        asking = await recovered(plane, "both")
        await at_step(plane, asking, "decide")
        await asking.signal(RecoverIncident.apply)
        done = await asking.result()
        assert (done.outcome, done.rows, done.left) == ("applied", 1, 0)
        assert await b.call("Notes", "more", "all") == ["copied", "lost"]
        assert await b.call("Notes", "born", "all") == ["lost"]
        assert await b.call("Notes", "both", "all") == ["copied", "lost", "served"]
        forks = [listed.key async for listed in plane.regions["b"].blobs.list("forks/")]
        assert forks == []
        assert await plane.history_events(handle) < 250

    regions(scenario)


def test_where_the_loss_is_not_accepted_nothing_happens(regions: Callable[..., None]) -> None:
    """Nobody says `go_on`: the gates and the home are as they were, and so it says."""

    async def scenario(plane: Any) -> None:
        a = plane.regions["a"].nodes[0]
        await a.call("Notes", "one", "note", 1, "copied")
        await replicated(plane, "b")
        handle = await failover(plane, "b", ask_secs=0.5)
        with pytest.raises(WorkflowFailureError) as failed:
            await handle.result()
        assert "nobody accepted the loss" in str(failed.value.__cause__)
        assert (await gate(plane, "a")).open
        assert await a.call("Notes", "one", "note", 2, "on") == "on"

    regions(scenario)


def test_without_a_standing_copy_there_is_no_failover(regions: Callable[..., None]) -> None:
    """It says what is missing, for good and at once."""

    async def scenario(plane: Any) -> None:
        await plane.regions["a"].nodes[0].call("Notes", "one", "note", 1, "here")
        with pytest.raises(WorkflowFailureError) as failed:
            await (await failover(plane, "b", accept_loss=True)).result()
        assert "no standing copy" in str(failed.value.__cause__)

    regions(scenario)


def test_a_standing_copy_follows_its_project(regions: Callable[..., None]) -> None:
    """A pass copies what changed and no more; the lag is shown; stopped, it says what it did."""

    async def scenario(plane: Any) -> None:
        a = plane.regions["a"].nodes[0]
        for at in range(5):
            await a.call("Notes", f"o{at}", "note", 1, "first")
            await landed(a, f"o{at}")
        asked = Replicate(PROJECT, "b", every_secs=0.2)
        handle = await plane.client.start_workflow(
            ReplicateProject.run, asked, id=f"replicate-{PROJECT}", task_queue=CONTROL_QUEUE
        )
        await a.call("Notes", "o1", "note", 2, "second")
        await landed(a, "o1")
        position = a.residency("Notes", "o1").leg.manifest.position

        async def followed() -> bool:
            (rows,) = await read_rows(await plane.world.region("b"), [ObjectKey(PROJECT, "Notes", "o1")])
            return rows.lease is not None and rows.state.position == position

        await plane.until(followed, "the copy has the second note")

        async def twice() -> bool:
            return bool((await handle.query(ReplicateProject.progress))["passes"] > 1)

        await plane.until(twice, "a second pass is done")
        assert (await handle.query(ReplicateProject.progress))["lag_secs"] is not None
        await handle.signal(ReplicateProject.stop)
        result: Replicated = await handle.result()
        assert (result.detail, result.passes > 1) == ("stopped", True)
        assert await a.call("Notes", "o1", "all") == ["first", "second"], "the project stays where it is"

    regions(scenario)


def test_workers_killed_at_every_activity_of_a_replication_and_a_failover(regions: Callable[..., None]) -> None:
    """Cut off after each activity that changes something had its effect and before it said so, the copy stands, the
    failover states its loss, opens one gate, and makes one incident of each object that had gone further."""
    to_the_copy = ("move-copy", "move-draw", "replicate-note")
    to_the_gate = ("failover-fork", "move-change-gate", "move-flip", "move-clear")
    to_the_end = ("move-drain", "failover-compare", "failover-unfork")

    async def scenario(plane: Any) -> None:
        a, b = plane.regions["a"].nodes[0], plane.regions["b"].nodes[0]
        await a.call("Notes", "more", "note", 1, "copied")
        await landed(a, "more")
        killer = Killer(to_the_copy)
        await intercepted(plane, killer)
        copying = asyncio.create_task(replicated(plane, "b"))
        await killer.kill(plane)
        standing = await copying
        await a.call("Notes", "more", "note", 2, "lost")
        await landed(a, "more")
        await killed(plane.regions["a"])

        killer.left |= {*to_the_gate, *to_the_end}
        handle = await failover(plane, "b", accept_loss=True)
        await killer.kill(plane, to_the_gate)
        stated = await at_step(plane, handle, "away")
        assert (stated["lost_objects"], stated["missing_objects"]) == (1, 0)
        assert (await gate(plane, "b")).open
        assert await settled(b.call, "Notes", "more", "all") == ["copied"]
        term = (await gate(plane, "b")).term
        await returned(plane, plane.regions["a"])
        await killer.kill(plane, to_the_end)
        result: FailedOver = await handle.result()
        assert (result.returned, result.incidents, result.listed_in_all) == (True, 1, 0)
        assert ((await gate(plane, "b")).term, (await gate(plane, "a")).open) == (term, False)
        done: Recovered = await (await recovered(plane, "more")).result()
        assert (done.outcome, done.rows) == ("laid", 1)
        assert await b.call("Notes", "more", "all") == ["copied", "lost"]
        assert (await standing.query(ReplicateProject.progress))["passes"] == 1

    regions(scenario)
