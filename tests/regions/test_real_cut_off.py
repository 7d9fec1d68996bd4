"""A node of the old region that hears of nothing while its project moves: real processes, real etcd (section 10)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from deaf_etcd import deafened
from etcd_servers import until
from link_proxy import proxied
from ports import free_port
from up_cluster import UpCluster

from domicile.placement.etcd import EtcdStore
from domicile.placement.etcd_link import EtcdConfig
from domicile.placement.followed import decode
from domicile.placement.keys import ControlKeys, Keys
from domicile.placement.records import GateRow, Held, LeaseRow, RegionRow, Released
from domicile.placement.regions import Regions
from domicile.placement.store import Event

DEAF, OTHER, FAR = "a-n2", "a-n1", "b-n1"
WAIT_SECS = 90.0
CALLS_PER_SEC = 25
NAMES = [f"o{at}" for at in range(10)]
APP = """
from domicile import Object

class Ledger(Object):
    def add(self) -> int:
        self.kv.put("n", self.look() + 1)
        return self.look()

    def look(self) -> int:
        return self.kv.get("n", 0)
"""


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpCluster]:
    running = UpCluster(tmp_path_factory.mktemp("cut"), APP, "--regions", "a,b", "--nodes", "2")
    yield running
    running.end()


class Told:
    """What region a's etcd tells of the project's gate and of leases, as it happens."""

    def __init__(self, store: EtcdStore, node_id: str) -> None:
        self._store, self._keys, self._node_id = store, Keys("domicile", "a"), node_id
        self._holder: dict[str, str] = {}
        self.claims: list[int] = []  # versions at which the node claimed
        self.closed = 0  # the version at which the gate closed
        self.released = 0.0  # when the node's last residency was released
        self.ready = asyncio.Event()
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for prefix in (self._keys.leases, self._keys.gates):
                group.create_task(self._watch(prefix))

    async def _watch(self, prefix: str) -> None:
        page = await self._store.scan(prefix)
        for record in page.records:
            self._see(record)
        self.ready.set()
        async for event in self._store.watch(prefix, page.version):
            assert isinstance(event, Event), event
            if event.record is not None:
                self._see(event.record)

    def _see(self, record: Any) -> None:
        if record.key == self._keys.gate_project("acme"):
            gate = decode(record, GateRow).row
            self.closed = self.closed or (0 if gate.open else record.version)
        elif record.key.startswith(self._keys.leases):
            state = decode(record, LeaseRow).row.state
            if isinstance(state, Held):
                self._holder[record.key] = state.owner
                self.claims += [record.version] if state.owner == self._node_id else []
            elif isinstance(state, Released) and self._holder.get(record.key) == self._node_id:
                self.released = time.monotonic()

    async def end(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


class Load:
    """Calls through one node, to objects that it has and to ones that nobody has: each answer with who gave it."""

    def __init__(self, url: str) -> None:
        self._http, self._over = httpx.AsyncClient(base_url=url, timeout=40), False
        self.answered: dict[str, int] = {}
        self.given: list[tuple[str, float]] = []  # by whom, and when the call began
        self.codes: set[str] = set()
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        at, calls = 0, set()
        while not self._over:
            calls.add(asyncio.create_task(self._write(NAMES[at % 10] if at % 3 else f"new{at}", f"k{at}")))
            at += 1
            await asyncio.sleep(1 / CALLS_PER_SEC)
        await asyncio.gather(*calls)

    async def _write(self, name: str, key: str) -> None:
        while True:
            began = time.monotonic()
            path, head = f"/v1/acme/objects/Ledger/{name}/add", {"Idempotency-Key": key}
            answer = await self._http.post(path, json=[], headers=head)
            if answer.status_code == 200:
                break
            assert answer.status_code == 503, answer.text
            self.codes.add(answer.json()["code"])
            await asyncio.sleep(0.1)
        self.given.append((answer.headers["Domicile-Node"], began))
        self.answered[name] = max(self.answered.get(name, 0), answer.json())

    async def end(self) -> None:
        self._over = True
        await self._task
        await self._http.aclose()


def by_other_ways(cluster: UpCluster, placement: str, control: str) -> None:
    """The node goes to its stores by these endpoints from now on."""
    script = Path(cluster.node(DEAF)["data"]) / "start.sh"
    ways = {"export DOMICILE_PLACEMENT": f"etcd://{placement}", "export DOMICILE_CONTROL": f"etcd://{control}"}
    lines = [line.partition("=") for line in script.read_text().splitlines()]
    script.write_text("".join(f"{name}{equals}{ways.get(name, value)}\n" for name, equals, value in lines))
    cluster.lose([DEAF])
    cluster.start([DEAF], OTHER, 2)


async def by_the_straight_way(control: str, mine: str) -> None:
    """The node has told control where it finds its region's etcd; the others are not to go by its way."""
    store = EtcdStore(EtcdConfig((control,)), time.monotonic, asyncio.sleep)
    regions = Regions(store, ControlKeys("domicile"), asyncio.sleep)
    assert (await regions.register(RegionRow("a", placement=f"etcd://{mine}"))).placement == f"etcd://{mine}"
    await store.close()


def answered_by(load: Load, node_id: str) -> int:
    """How many answers it gave itself."""
    return sum(who == node_id for who, _ in load.given)


@pytest.mark.timeout(400)
def test_a_node_cut_off_for_the_whole_move_claims_and_answers_nothing_too_late(cluster: UpCluster) -> None:
    """Control cannot be reached by it and its watches of etcd say nothing, from before the move until after it, while
    it is called all the time: it claims nothing once the gate is closed, answers nothing itself that came after its
    last residency was released, and what it answered before is in b, each write once."""

    async def main() -> None:
        control, mine = cluster.now()["etcd"]["endpoints"][0], cluster.now()["regions"]["a"]["etcd"]["endpoints"][0]
        async with deafened(mine, free_port) as etcd, proxied(control) as way:
            await asyncio.to_thread(by_other_ways, cluster, etcd.endpoint, way.endpoint)
            for name in NAMES:
                await asyncio.to_thread(cluster.call, DEAF, "Ledger", name, "add")
            node_id = cluster.node(DEAF)["node_id"]
            store = EtcdStore(EtcdConfig((mine,)), time.monotonic, asyncio.sleep)
            await by_the_straight_way(control, mine)
            told = Told(store, node_id)
            await told.ready.wait()
            etcd.deaf = way.refusing = True
            way.cut()
            load = Load(cluster.node(DEAF)["http"])
            await asyncio.to_thread(until, lambda: answered_by(load, node_id) > 40, WAIT_SECS, "it answers")
            moved = await asyncio.to_thread(cluster.command, "project", "move", "acme", "--to", "b", at=FAR)
            assert moved["moved"], moved
            served = len(load.answered)
            await asyncio.to_thread(
                until, lambda: len(load.answered) > served + 10, WAIT_SECS, "its callers are answered from b"
            )
            await load.end()
            assert etcd.lost > 0
            assert (await asyncio.to_thread(cluster.get, DEAF, "/v1/projects/acme"))["region"] == "a", (
                "it heard nothing"
            )
            assert told.claims
            assert max(told.claims) < told.closed
            own = [began for who, began in load.given if who == node_id]
            assert max(own) < told.released
            assert {who for who, began in load.given if began > told.released} <= {
                cluster.node(name)["node_id"] for name in ("b-n1", "b-n2")
            }
            print(
                f"{len(load.given)} answers, {len(own)} its own, the last {told.released - max(own):.2f} s before its"
            )
            print(f"last release; {len(told.claims)} claims, the last at {max(told.claims)}, closed at {told.closed}")
            print(f"refused with {load.codes}; {etcd.lost} words of watches lost")
            for name, count in load.answered.items():
                assert await asyncio.to_thread(cluster.call, FAR, "Ledger", name, "look") == count, name
            await told.end()
            await store.close()

    asyncio.run(main())
