"""Schedules of a real cluster whose workers stand still for long: what is left out, and what comes after (section 9).

`DOMICILE_CONTROL_AWAY_SECS` makes it as long as one likes (900 for the field case).
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from etcd_servers import until
from temporalio.client import Client
from up_cluster import WAIT_SECS, UpCluster

AWAY_SECS = float(os.environ.get("DOMICILE_CONTROL_AWAY_SECS", "20"))
SWEEP_SECS = 2.0
LOOK_SECS = 0.5
APP = """
from domicile import Object

class Bell(Object):
    def arm(self, when: str) -> None:
        self.set_alarm(when)

    def on_alarm(self) -> None:
        self.kv.put("rung", self.rung() + 1)

    def rung(self) -> int:
        return self.kv.get("rung", 0)
"""


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpCluster]:
    running = UpCluster(tmp_path_factory.mktemp("o"), APP, "--nodes", "3", OBJECT_SWEEP_SECS=str(SWEEP_SECS))
    yield running
    running.end()


class Sweeps:
    """The runs of the schedule, as Temporal has them."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._handle = client.get_schedule_handle("sweep-local")

    async def all(self) -> list[Any]:
        """The first one first."""
        found = [run async for run in self._client.list_workflows('WorkflowType = "SweepAlarms"')]
        return sorted(found, key=lambda run: run.start_time)

    async def ended(self, since: datetime) -> list[Any]:
        """All up to the first that began since then, once they have ended."""
        async with asyncio.timeout(WAIT_SECS):
            while True:
                runs = await self.all()
                upto = next((at for at, run in enumerate(runs, 1) if run.start_time > since), 0)
                if upto and all(run.close_time for run in runs[:upto]):
                    return runs[:upto]
                await asyncio.sleep(LOOK_SECS)

    async def left_out(self, count: int = 0, secs: float = WAIT_SECS) -> int:
        """How many never began, once they are so many."""
        async with asyncio.timeout(secs):
            while (now := (await self._handle.describe()).info.num_actions_skipped_overlap) < count:
                await asyncio.sleep(LOOK_SECS)
        return now


@pytest.mark.timeout(AWAY_SECS + 300)
def test_workers_stand_still_for_long(cluster: UpCluster) -> None:
    """Field case 123: one run waits meanwhile, the others are left out and counted; the nodes ring what is due. Then
    that run ends and the next ones come soon, never two at a time, and nothing is left and nothing rings twice."""

    async def main() -> None:
        sweeps = Sweeps(await Client.connect(cluster.now()["temporal"]["address"]))
        await sweeps.ended(datetime.fromtimestamp(0, UTC))
        before = await sweeps.left_out()
        with cluster.stopped(cluster.now()["control"]["pid"]):
            began = datetime.now(UTC)
            await asyncio.to_thread(leave_an_alarm, cluster)
            count = await sweeps.left_out(before + int(AWAY_SECS / SWEEP_SECS), AWAY_SECS + WAIT_SECS) - before
            alone = [run for run in await sweeps.all() if run.close_time is None or run.close_time > began]
            assert len(alone) == 1, alone
        back = datetime.now(UTC)
        runs = await sweeps.ended(back)
        assert all(one.close_time <= two.start_time for one, two in itertools.pairwise(runs)), runs
        print(f"{count} runs left out in {back - began}; the next began {runs[-1].start_time - back} after")
        assert await asyncio.to_thread(cluster.call, "n1", "Bell", "a", "rung") == 1

    asyncio.run(main())


def leave_an_alarm(cluster: UpCluster) -> None:
    """Of a node that is lost before it rings: nobody but a sweep wakes it."""
    cluster.call("n2", "Bell", "a", "arm", "6s")
    home = cluster.named(cluster.described("n1", "Bell", "a")["node"])
    assert home == "n2"
    cluster.lose([home])

    def rang() -> bool:
        there = cluster.described("n1", "Bell", "a")
        return bool(there) and there["alarm_due"] is None

    until(rang, WAIT_SECS, "a node's own sweep woke it")
