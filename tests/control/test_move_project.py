"""MoveProject over two regions: whole nodes, real copies, Temporal's dev server (PROTOCOLS section 10)."""

from __future__ import annotations

from typing import Any

import pytest
from control_plane import settled
from counting import Ledger
from moves import PROJECT, REGIONS, begin, gate, rows
from temporalio.client import WorkflowFailureError

from domicile.activities.copy_content import read_register
from domicile.placement.records import Deleted, ObjectKey
from domicile.workflows.queues import CONTROL_QUEUE


def test_a_project_moves_with_everything_it_has(control: Any) -> None:
    """Writes, idempotency records, alarms, deletions and databases are in b after the move; a serves no one and sends
    its callers there; the terms grow; the result says what was done and how long nobody was served."""

    async def scenario(plane: Any) -> None:
        a, b = plane.regions["a"].nodes[0], plane.regions["b"].nodes[0]
        for name in ("x", "y", "gone"):
            for _ in range(3):
                await a.call("Ledger", name, "add")
        await a.call("Ledger", "y", "fill", 300_000)
        await a.call("Ledger", "x", "add", key="once")
        await a.call("Ledger", "x", "ring", 3_600_000)
        await a.call("Database", "d", "exec", "CREATE TABLE t (n)")
        await a.call("Database", "d", "exec", "INSERT INTO t VALUES (7)")
        await a.node.delete(ObjectKey(PROJECT, "Ledger", "gone"), None, "burial")
        died = (await rows(plane, "a", "gone")).epoch_of_deletion
        before = await gate(plane, "a")
        moved = await (await begin(plane, "b")).result()
        assert (moved["moved"], moved["source"], moved["to"], moved["objects"]) == (True, "a", "b", 3)
        assert 0 < moved["unserved_secs"] < 5
        old, new = await gate(plane, "a"), await gate(plane, "b")
        assert not old.open
        assert old.to == "b"
        assert new.open
        assert new.term > before.term
        assert await b.call("Ledger", "x", "look") == 4
        assert await b.call("Ledger", "x", "add", key="once") == 4, "the record came along"
        assert await b.call("Ledger", "x", "add") == 5
        assert await b.call("Ledger", "y", "look") == 3
        assert await b.call("Database", "d", "query", "SELECT n FROM t") == [{"n": 7}]
        assert b.home_of("Ledger", "x")
        assert await settled(a.call, "Ledger", "x", "add") == 6, "a sends its callers on"
        assert not a.home_of("Ledger", "x")
        moved_rows = await rows(plane, "b", "x")
        assert moved_rows.alarm.row is not None
        assert moved_rows.lease.row.term == new.term
        buried = await rows(plane, "b", "gone")
        assert isinstance(buried.state, Deleted)
        assert buried.epoch_of_deletion == died
        assert await b.node.delete(ObjectKey(PROJECT, "Ledger", "gone"), None, "burial") == died, "a late repeat"
        tombstone = await read_register((await plane.world.region("b")).blobs, ObjectKey(PROJECT, "Ledger", "gone").id)
        assert tombstone.manifest.deleted
        assert await b.call("Ledger", "gone", "add") == 1, "its next life"

    control(scenario, Ledger, regions=REGIONS)


def test_there_and_back_epochs_only_grow(control: Any) -> None:
    """b's store counts versions from near 1: there and back epochs only grow, what was written in b is in
    a, what was deleted in b is not there, and only what changed was copied."""

    async def scenario(plane: Any) -> None:
        a, b = plane.regions["a"].nodes[0], plane.regions["b"].nodes[0]
        for name in ("x", "idle", "gone"):
            await a.call("Ledger", name, "add")
        await a.call("Ledger", "idle", "fill", 1_500_000)
        for _ in range(40):  # a's versions are ahead of b's
            await a.call("Ledger", "x", "add")
            await a.node._residents.put_to_sleep(a.residency("Ledger", "x"))
        epochs = [(await rows(plane, "a", "x")).lease.row.state.position.generation.epoch]
        there = await (await begin(plane, "b")).result()
        assert await b.call("Ledger", "x", "add") == 42
        epochs.append(b.residency("Ledger", "x").epoch)
        await b.node.delete(ObjectKey(PROJECT, "Ledger", "gone"), None, None)
        await b.call("Ledger", "born", "add")
        back = await (await begin(plane, "a")).result()
        assert there["copied_bytes"] > 1_500_000
        assert back["copied_bytes"] < 100_000, "what a had already was not copied again"
        assert await a.call("Ledger", "x", "add") == 43
        epochs.append(a.residency("Ledger", "x").epoch)
        assert epochs == sorted(set(epochs)), epochs
        assert await a.call("Ledger", "idle", "look") == 1
        assert await a.call("Ledger", "born", "add") == 2
        assert isinstance((await rows(plane, "a", "gone")).state, Deleted)
        listed = await a.node.list_objects(PROJECT, "Ledger", "", None)
        assert sorted(entry["name"] for entry in listed["objects"]) == ["born", "idle", "x"]
        assert not (await gate(plane, "b")).open

    control(scenario, Ledger, regions=REGIONS)


def test_a_move_to_where_it_is_changes_nothing(control: Any) -> None:
    """Case 119: A→A is no move; an unknown region or project is refused by name, and nothing is marked or closed."""

    async def scenario(plane: Any) -> None:
        a = plane.regions["a"].nodes[0]
        await a.call("Ledger", "x", "add")
        moved = await (await begin(plane, "a")).result()
        assert moved["moved"] is False
        assert "is already in a" in moved["detail"]
        for asked, why in (
            ({"project": PROJECT, "to": "c"}, "no region c"),
            ({"project": "nobody", "to": "b"}, "no project nobody"),
            ({"project": "No Name!", "to": "b"}, "not a project id"),
        ):
            with pytest.raises(WorkflowFailureError) as failed:
                await plane.client.execute_workflow("MoveProject", asked, id="move-x", task_queue=CONTROL_QUEUE)
            assert why in str(failed.value.cause.cause)
        assert await a.call("Ledger", "x", "add") == 2
        assert (await gate(plane, "a")).open

    control(scenario, Ledger, regions=REGIONS)


def test_what_is_kept_expires(control: Any) -> None:
    """After the time it is kept the old copy names nothing, its blobs are gone and its rows point to b; a move back
    copies everything anew, under keys that are new too."""

    async def scenario(plane: Any) -> None:
        a, b = plane.regions["a"].nodes[0], plane.regions["b"].nodes[0]
        await a.call("Ledger", "x", "fill", 1_500_000)
        await (await begin(plane, "b", keep_hours=0)).result()
        expired = await plane.client.get_workflow_handle(f"expire-{PROJECT}-a").result()
        assert (expired["expired"], expired["stopped"]) == (1, False)
        region = await plane.world.region("a")
        key = ObjectKey(PROJECT, "Ledger", "x")
        assert (await read_register(region.blobs, key.id)).manifest.deleted
        assert [listed.key async for listed in region.blobs.list(f"{key.id}/")] == []
        assert (await rows(plane, "a", "x")).state.region == "b"
        assert await b.call("Ledger", "x", "add") == 1
        back = await (await begin(plane, "a")).result()
        assert back["copied_bytes"] > 1_500_000
        assert await a.call("Ledger", "x", "add") == 2

    control(scenario, Ledger, regions=REGIONS)
