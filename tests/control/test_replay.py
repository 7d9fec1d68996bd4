"""Running workflows survive a new version: recorded histories are replayed against the code as it is now.

A change that breaks one breaks every run that is under way when it is deployed. Histories lie in `histories/`; to
record new ones: DOMICILE_RECORD_HISTORIES=FOLDER pytest tests/control, and keep small ones of every ending.
"""

from __future__ import annotations

import asyncio
import inspect
import re
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio import workflow
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner

from domicile.activities.worker import WORKFLOWS
from domicile.workflows import queues

HISTORIES = sorted((Path(__file__).parent / "histories").glob("*.json"))
BYTES_MAX = 100_000


def name_of(kind: type[Any]) -> str:
    return str(workflow._Definition.must_from_class(kind).name)


@pytest.mark.parametrize("path", HISTORIES, ids=lambda path: path.stem)
def test_a_recorded_history_replays(path: Path) -> None:
    """The code takes the decisions it took when the history was recorded."""
    history = WorkflowHistory.from_json(path.stem, path.read_text())
    asyncio.run(Replayer(workflows=list(WORKFLOWS)).replay_workflow(history))


def test_every_workflow_has_a_history() -> None:
    """None is shipped without one, and none is kept that is too large to look at."""
    kept = {path.name.partition(".")[0] for path in HISTORIES}
    assert kept == {name_of(kind) for kind in WORKFLOWS}
    assert not [path.name for path in HISTORIES if path.stat().st_size > BYTES_MAX]


def test_workflows_use_nothing_that_orders_by_chance() -> None:
    """Field case 121: asyncio.wait and as_completed go through sets, whose order is another one at each replay."""
    workflows = Path(inspect.getfile(queues)).parent
    found = [
        path.name
        for path in sorted(workflows.glob("*.py"))
        if re.search(r"asyncio\.(wait|as_completed)\(|\bset\(|frozenset\(", path.read_text())
    ]
    assert not found


LOADS = """
import sys, pkgutil, importlib
import domicile.workflows
for module in pkgutil.iter_modules(domicile.workflows.__path__):
    importlib.import_module(f"domicile.workflows.{module.name}")
print(*sorted(sys.modules))
"""
IN_THE_SANDBOX = """
import asyncio, logging, structlog, httpx, rich.logging
logging.basicConfig(handlers=[rich.logging.RichHandler()])
structlog.configure()
from temporalio import workflow
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner
from domicile.activities.worker import WORKFLOWS
async def load():
    for kind in WORKFLOWS:
        SandboxedWorkflowRunner().prepare_workflow(workflow._Definition.must_from_class(kind))
asyncio.run(load())
"""


def test_workflows_load_in_the_sandbox(tmp_path: Path) -> None:
    """Field case 126: whatever else a worker has imported, and wherever it runs; and a workflow's own module loads
    nothing that touches disk, sockets or the stores."""
    subprocess.run([sys.executable, "-c", IN_THE_SANDBOX], cwd=tmp_path, check=True, timeout=60)
    loaded = subprocess.run([sys.executable, "-c", LOADS], cwd=tmp_path, check=True, capture_output=True, text=True)
    strays = [
        name
        for name in loaded.stdout.split()
        if name.startswith(("domicile.node", "domicile.placement", "domicile.activities", "apsw", "httpx"))
    ]
    assert not strays


@workflow.defn(name="SweepAlarms")
class AnotherSweep:
    """What an incompatible change looks like: another step comes first."""

    @workflow.run
    async def run(self, asked: dict[str, Any]) -> dict[str, Any]:
        await workflow.execute_activity("look-first", start_to_close_timeout=timedelta(seconds=1))
        return {}


def test_an_incompatible_change_fails() -> None:
    """A workflow that decides otherwise than its history is found: replaying can fail."""
    path = next(path for path in HISTORIES if path.name.startswith("SweepAlarms.completed"))
    history = WorkflowHistory.from_json(path.stem, path.read_text())
    replayer = Replayer(workflows=[AnotherSweep], workflow_runner=UnsandboxedWorkflowRunner())
    with pytest.raises(workflow.NondeterminismError):
        asyncio.run(replayer.replay_workflow(history))
