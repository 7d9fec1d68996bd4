"""RecoverIncident: what an object was served without comes back, or a person decides (PROTOCOLS section 10)."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lost_branch import KEY, THREE, Ledger, back, closed, lose

from domicile.placement.incidents import Incidents
from domicile.placement.keys import Keys
from domicile.workflows.queues import CONTROL_QUEUE
from domicile.workflows.recover_incident import Incident, Recovered, RecoverIncident


async def incident(plane: Any, region: str = "local") -> Incident:
    """The one that is on record."""
    (found,) = await Incidents(plane.regions[region].store, Keys("domicile", region)).open()
    assert found.object_id == KEY.id
    return Incident(region, found.object_id, found.epoch)


async def recover(plane: Any, asked: Incident) -> Any:
    return await plane.client.start_workflow(
        RecoverIncident.run, asked, id=f"incident-{asked.object_id}-{asked.epoch}", task_queue=CONTROL_QUEUE
    )


async def at_step(plane: Any, handle: Any, step: str) -> dict[str, Any]:
    async def there() -> bool:
        return bool((await handle.query(RecoverIncident.progress))["step"] == step)

    await plane.until(there, f"the workflow is at {step}")
    progress: dict[str, Any] = await handle.query(RecoverIncident.progress)
    return progress


def test_where_nothing_was_written_since_it_repairs_by_itself(control: Callable[..., Any]) -> None:
    """Two of three replicas stopped, the owner killed, served from the store; they return, and all is as answered."""

    async def scenario(plane: Any) -> None:
        group = plane.regions["local"]
        server, members = await lose(group)
        assert await server.call("Ledger", "one", "all") == {"1": "before", "2": "before"}
        handle = await recover(plane, await incident(plane))
        progress = await at_step(plane, handle, "look")
        await plane.until(lambda: _heard(handle, 1), "the one that answered is shown")
        assert progress["branch"] is None
        await back(group, *members)
        result: Recovered = await handle.result()
        assert (result.outcome, result.rows, result.left) == ("laid", 4, 0), "two entries, two idempotency records"
        assert await server.call("Ledger", "one", "all") == {"1": "before", "2": "changed", "3": "lost"}
        assert await server.call("Ledger", "one", "note", 3, "lost", key="key 3") == "lost"
        await closed(plane)
        assert await plane.history_events(handle) < 80

    control(scenario, Ledger, nodes=4, **THREE)


async def _heard(handle: Any, count: int) -> bool:
    return len((await handle.query(RecoverIncident.progress))["heard"]) == count


def test_where_it_was_written_since_a_person_applies(control: Callable[..., Any]) -> None:
    """The person sees what, how much, which rows; `apply` brings back what contradicts nothing, and lists the rest."""

    async def scenario(plane: Any) -> None:
        group = plane.regions["local"]
        server, members = await lose(group)
        await server.call("Ledger", "one", "note", 2, "served")
        await server.call("Ledger", "one", "note", 4, "served")
        await back(group, *members)
        handle = await recover(plane, await incident(plane))
        progress = await at_step(plane, handle, "decide")
        assert progress["why"] == "the object was written since"
        tables = {table["table"]: table for table in progress["branch"]["tables"]}
        assert (tables["entries"]["added"], tables["entries"]["updated"]) == (1, 1)
        assert {"kind": "updated", "was": [2, "before"], "is": [2, "changed"]} in tables["entries"]["rows"]
        await handle.signal(RecoverIncident.apply)
        result: Recovered = await handle.result()
        assert (result.outcome, result.rows, result.left) == ("applied", 3, 1)
        assert result.left_rows == [
            {"table": "entries", "kind": "updated", "row": [2, "changed"], "why": "another row is here"}
        ]
        assert await server.call("Ledger", "one", "all") == {"1": "before", "2": "served", "3": "lost", "4": "served"}
        await closed(plane)

    control(scenario, Ledger, nodes=4, **THREE)


def test_a_person_keeps_what_is_served_and_has_the_branch_as_a_file(
    control: Callable[..., Any], tmp_path: Path
) -> None:
    """`export` names a database that any SQLite opens; `keep` closes the incident and changes nothing."""

    async def scenario(plane: Any) -> None:
        group = plane.regions["local"]
        server, members = await lose(group)
        await server.call("Ledger", "one", "note", 4, "served")
        await back(group, *members)
        handle = await recover(plane, await incident(plane))
        progress = await at_step(plane, handle, "decide")
        await handle.signal(RecoverIncident.export)
        (tmp_path / "lost.db").write_bytes((await group.blobs.get(progress["branch"]["blob"])).data)
        with sqlite3.connect(tmp_path / "lost.db") as file:
            assert file.execute("SELECT * FROM entries").fetchall() == [(1, "before"), (2, "changed"), (3, "lost")]
        file.close()
        await handle.signal(RecoverIncident.keep)
        result: Recovered = await handle.result()
        assert (result.outcome, result.branch) == ("kept", progress["branch"]["blob"])
        assert await server.call("Ledger", "one", "all") == {"1": "before", "2": "before", "4": "served"}
        await closed(plane)

    control(scenario, Ledger, nodes=4, **THREE)


def test_copies_that_return_with_nothing_more_are_no_loss(control: Callable[..., Any]) -> None:
    """The takeover could not know that it had everything; the workflow does, and says so."""

    async def scenario(plane: Any) -> None:
        group = plane.regions["local"]
        await group.nodes[0].call("Ledger", "one", "note", 1, "before")
        home = group.home("Ledger", "one")
        await home.residency("Ledger", "one").leg.flush()
        server, *others = group.others(home)
        for one in (home, *others):
            await one.crash()
        await server.call("Ledger", "one", "note", 2, "served")
        asked = await incident(plane)
        await back(group, *others)
        handle = await recover(plane, asked)
        result: Recovered = await handle.result()
        assert (result.outcome, result.rows) == ("harmless", 0)
        assert await server.call("Ledger", "one", "all") == {"1": "before", "2": "served"}
        await closed(plane)

    control(scenario, Ledger, nodes=4, **THREE)


def test_a_branch_that_a_newer_owner_would_cut_waits_in_lost(control: Callable[..., Any]) -> None:
    """The replicas return before anybody asks: they put the branch aside before they follow the new owner."""

    async def scenario(plane: Any) -> None:
        group = plane.regions["local"]
        server, members = await lose(group)
        await server.call("Ledger", "one", "note", 4, "served")
        await back(group, *members)
        asked = await incident(plane)
        for at in range(3):
            await server.call("Ledger", "one", "note", 5, f"after {at}")
        aside = [one.root / "lost" / KEY.id / asked.epoch / "meta" for one in members]
        await plane.until(lambda: all(meta.exists() for meta in aside), "the branch is put aside")
        handle = await recover(plane, asked)
        await at_step(plane, handle, "decide")
        await handle.signal(RecoverIncident.apply)
        result: Recovered = await handle.result()
        assert (result.outcome, result.left) == ("applied", 0)
        everything = {"1": "before", "2": "changed", "3": "lost", "4": "served", "5": "after 2"}
        assert await server.call("Ledger", "one", "all") == everything
        await closed(plane)

    control(scenario, Ledger, nodes=4, **THREE)


def test_what_the_killed_owner_left_is_found_where_its_members_are_lost(control: Callable[..., Any]) -> None:
    """Both members return wiped, as other copies: nobody can say that nothing is missing. The owner's file is shown."""

    async def scenario(plane: Any) -> None:
        group = plane.regions["local"]
        server, members = await lose(group)
        await server.call("Ledger", "one", "note", 4, "served")
        for one in members:
            shutil.rmtree(one.root / "replicas")
        await back(group, group.killed, *members)
        handle = await recover(plane, await incident(plane))
        await plane.until(lambda: _heard(handle, 1), "only the one that answered is heard")
        progress = await handle.query(RecoverIncident.progress)
        assert (progress["step"], len(progress["missing"])) == ("look", 2)
        await handle.signal(RecoverIncident.apply)
        result: Recovered = await handle.result()
        assert (result.outcome, result.left, len(result.missing)) == ("applied", 0, 2)
        everything = {"1": "before", "2": "changed", "3": "lost", "4": "served"}
        assert await server.call("Ledger", "one", "all") == everything
        await closed(plane)

    control(scenario, Ledger, nodes=4, **THREE)


def test_a_deleted_object_has_no_incident(control: Callable[..., Any]) -> None:
    """A deletion ends the life that the branch belonged to; the record goes."""

    async def scenario(plane: Any) -> None:
        group = plane.regions["local"]
        server, members = await lose(group)
        await server.call("Ledger", "one", "note", 4, "served")
        asked = await incident(plane)
        await server.node.delete(KEY, None, None)
        await back(group, *members)
        result: Recovered = await (await recover(plane, asked)).result()
        assert result.outcome == "void"
        assert not await Incidents(group.store, Keys("domicile", "local")).open()

    control(scenario, Ledger, nodes=4, **THREE)


def test_a_worker_that_dies_anywhere_changes_nothing(control: Callable[..., Any]) -> None:
    """Killed again and again while it recovers: the branch comes back once, the incident is closed."""

    async def scenario(plane: Any) -> None:
        group = plane.regions["local"]
        server, members = await lose(group)
        await server.call("Ledger", "one", "note", 4, "served")
        await back(group, *members)
        handle = await recover(plane, await incident(plane))
        await handle.signal(RecoverIncident.apply)
        result = asyncio.ensure_future(handle.result())
        for pause in (0.1, 0.3):
            await asyncio.wait([result], timeout=pause)
            await plane.stop_worker()
            await plane.start_worker()
        recovered: Recovered = await result
        assert recovered.outcome in ("applied", "void")
        assert (await server.call("Ledger", "one", "all"))["3"] == "lost"
        await closed(plane)

    control(scenario, Ledger, nodes=4, **THREE)


def test_an_incident_moves_with_its_object(control: Callable[..., Any]) -> None:
    """The project moves while the copies are away; they return in the old region, the branch is laid in the new one."""

    async def scenario(plane: Any) -> None:
        a, b = plane.regions["a"], plane.regions["b"]
        server, members = await lose(a)
        assert await server.call("Ledger", "one", "all") == {"1": "before", "2": "before"}
        in_a = await incident(plane, "a")
        waiting = await recover(plane, in_a)
        await at_step(plane, waiting, "look")
        moved = await plane.client.start_workflow(
            "MoveProject", {"project": "demo", "to": "b"}, id="move-demo", task_queue=CONTROL_QUEUE
        )
        assert (await moved.result())["moved"]
        await back(a, *members)
        assert (await waiting.result()).outcome == "moved"
        handle = await recover(plane, await incident(plane, "b"))
        result: Recovered = await handle.result()
        assert (result.outcome, result.left) == ("laid", 0)
        assert await b.nodes[0].call("Ledger", "one", "all") == {"1": "before", "2": "changed", "3": "lost"}
        assert not await Incidents(b.store, Keys("domicile", "b")).open()

    control(scenario, Ledger, regions=("a", "b"), nodes=4, **THREE)
