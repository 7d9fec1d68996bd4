"""Incidents over HTTP and by the command line: begun by the watch, shown, decided, exported (API, "HTTP", "CLI")."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import sqlite3
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from lost_branch import THREE, Ledger, back, closed, lose

from domicile.cli import incidents
from domicile.cli.failures import CliError
from domicile.cli.http import Node, Waits
from domicile.cli.output import Output
from domicile.node.app import App
from domicile.node.clock import SystemClock
from domicile.node.http.server import Limits, serve
from domicile.node.operations import Operations
from domicile.workflows.queues import CONTROL_QUEUE
from domicile.workflows.watch_incidents import Watched, WatchIncidents, WatchRegion


@contextlib.asynccontextmanager
async def http(one: Any, temporal: str) -> AsyncIterator[Node]:
    """The node's HTTP surface on a free port, as the command line asks it."""
    config = dataclasses.replace(one.node._host.config, temporal=temporal)
    app = App(
        one.node,
        one.node._host.log,
        lambda: b"",
        body_bytes_max=1 << 20,
        deadline_secs=30.0,
        operations=Operations(config),
    )
    server = await serve(app, "127.0.0.1:0", SystemClock(), Limits(body_bytes_max=1 << 20))
    host, port = server.address
    try:
        yield Node(f"http://{host}:{port}", Waits(10, time.monotonic, time.sleep))
    finally:
        await server.stop(1.0)


async def watch(plane: Any) -> Watched:
    handle = await plane.client.start_workflow(
        WatchIncidents.run, WatchRegion("local"), id="incidents-local", task_queue=CONTROL_QUEUE
    )
    watched: Watched = await handle.result()
    return watched


def test_an_incident_from_its_list_to_its_end(
    control: Callable[..., Any], temporal: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The watch begins the recovery once; the person lists, shows, exports and applies, all by the node asked."""

    async def scenario(plane: Any) -> None:
        group = plane.regions["local"]
        server, members = await lose(group)
        await server.call("Ledger", "one", "note", 4, "served")
        assert (await watch(plane)).started == 1
        assert (await watch(plane)).started == 0, "begun once"
        await back(group, *members)
        async with http(server, temporal.address) as node:

            def run(command: Callable[..., Any], *args: Any) -> Any:
                return asyncio.to_thread(command, node, *args)

            def listed() -> list[dict[str, Any]]:
                capsys.readouterr()
                incidents.ls(node, Output(as_json=True))
                found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
                return found

            async def decides() -> bool:
                return [one["step"] for one in await asyncio.to_thread(listed)] == ["decide"]

            await plane.until(decides, "a person is waited for")
            (listed_one,) = await asyncio.to_thread(listed)
            assert (listed_one["object"], listed_one["missing"]) == ("demo/Ledger/one", [])
            which = listed_one["incident"][:12]
            await run(incidents.show, Output(as_json=False), which)
            shown = capsys.readouterr().out
            assert "entries: 1 added, 1 updated" in shown
            assert '[2, "changed"]' in shown
            with pytest.raises(CliError, match="0 open incidents"):
                await run(incidents.decide, Output(as_json=True), "ffff", "keep")
            file = tmp_path / "lost.db"
            assert (await run(incidents.export, which, file))["bytes"] == file.stat().st_size
            database = sqlite3.connect(file)
            assert (3, "lost") in database.execute("SELECT * FROM entries").fetchall()
            database.close()
            result = await run(incidents.decide, Output(as_json=True), which, "apply")
            assert (result["outcome"], result["left"]) == ("applied", 0)
            assert await asyncio.to_thread(listed) == []
        await closed(plane)

    control(scenario, Ledger, nodes=4, **THREE)
