"""A project between two real regions: `domicile up --regions a,b`, real etcd, Temporal, the client and the command.

`DOMICILE_MOVED_OBJECTS` and `DOMICILE_MOVED_BYTES` make it as large as one likes (200 and 1048576 for the notes).
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from etcd_servers import until
from up_cluster import UpCluster

from domicile import Client

OBJECTS = int(os.environ.get("DOMICILE_MOVED_OBJECTS", "24"))
BYTES = int(os.environ.get("DOMICILE_MOVED_BYTES", "200000"))
WRITES_PER_SEC = 50
WAIT_SECS = 120.0
NODES = ("a-n1", "b-n1")
A, B = NODES
PROJECT = "acme"
APP = """
from domicile import Object

class Ledger(Object):
    def init(self):
        self.sql.exec("CREATE TABLE l (n INTEGER NOT NULL)")
        self.sql.exec("INSERT INTO l VALUES (0)")
        self.sql.exec("CREATE TABLE pads (pad BLOB)")

    def fill(self, size: int) -> None:
        self.sql.exec("INSERT INTO pads VALUES (randomblob(?))", size)

    def add(self) -> int:
        return self.sql.one("UPDATE l SET n = n + 1 RETURNING n")["n"]

    def look(self) -> int:
        return self.sql.one("SELECT n FROM l")["n"]
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpCluster]:
    # No rotation, which writes an object's base anew: what the way back copies is what was written.
    whole = {"OBJECT_MAX_SEGMENTS": "4096", "OBJECT_WAL_ROTATE_KB": "1048576"}
    running = UpCluster(tmp_path_factory.mktemp("moves"), APP, "--regions", "a,b", "--nodes", "1", **whole)
    yield running
    running.end()


class Writers:
    """50 writes a second by the client library, which rides through a move by itself: whatever it raises fails."""

    def __init__(self, cluster: UpCluster, names: list[str]) -> None:
        self._clients = [Client(cluster.node(name)["http"]) for name in NODES]
        self._names = names
        self._over = False
        self.answered = dict.fromkeys(names, 0)
        self.slowest = 0.0
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        at, writes = 0, set()
        while not self._over:
            writes.add(asyncio.create_task(self._write(at)))
            at += 1
            await asyncio.sleep(1 / WRITES_PER_SEC)
        await asyncio.gather(*writes)

    async def _write(self, at: int) -> None:
        name = self._names[at % len(self._names)]
        began = asyncio.get_running_loop().time()
        await self._clients[at % 2].project(PROJECT).object("Ledger", name).add()
        self.slowest = max(self.slowest, asyncio.get_running_loop().time() - began)
        self.answered[name] += 1

    async def go_on(self) -> None:
        """For a second's worth of answers."""
        goal = sum(self.answered.values()) + WRITES_PER_SEC
        await asyncio.to_thread(until, lambda: sum(self.answered.values()) >= goal, WAIT_SECS, "writes are answered")

    async def end(self) -> None:
        self._over = True
        await self._task
        for client in self._clients:
            await client.close()


@pytest.mark.timeout(300)
def test_a_project_moves_there_and_back_under_load(cluster: UpCluster) -> None:
    """Every answered write is there once, clients saw nothing of it but time, that is stated and under 5 s; b's etcd is
    fresh, and there and back epochs only grow; the way back copies only what changed."""

    async def main() -> None:
        names = [f"o{at}" for at in range(OBJECTS)]
        async with Client(cluster.node(A)["http"]) as client:
            for at in range(0, OBJECTS, 10):
                objects = [client.project(PROJECT).object("Ledger", name) for name in names[at : at + 10]]
                await asyncio.gather(*(one.fill(BYTES) for one in objects))
        epochs = [epoch(cluster, A)]
        writers = Writers(cluster, names)
        await writers.go_on()
        slowly = ("--mb-per-sec", str(OBJECTS * BYTES / 3e6))  # so that it runs yet when it is asked for again
        moving = asyncio.create_task(command(cluster, "project", "move", PROJECT, "--to", "b", *slowly))
        # Field case 119: started twice it is one; to elsewhere it is refused, while it runs and where there is none.
        at = f"/v1/projects/{PROJECT}/move"
        await asyncio.to_thread(until, lambda: cluster.ask("GET", B, at)[1].get("progress"), WAIT_SECS, "it runs")
        for elsewhere, status in (("a", 409), ("mars", 404)):
            refused = await asyncio.to_thread(cluster.ask, "POST", B, at, {"to": elsewhere})
            assert refused[0] == status, refused
        joined = (await asyncio.to_thread(cluster.ask, "POST", B, at, {"to": "b"}))[1]
        assert joined["progress"]["to"] == "b"
        there = await moving
        await writers.go_on()
        epochs.append(epoch(cluster, B))
        back = await command(cluster, "project", "move", PROJECT, "--to", "a")
        await writers.go_on()
        await writers.end()
        epochs.append(epoch(cluster, A))
        print(f"there {there}\nback {back}\nslowest write {writers.slowest:.2f} s\nepochs {epochs}", file=sys.stderr)
        assert there["moved"]
        assert back["moved"]
        for moved in (there, back):
            assert 0 < moved["unserved_secs"] < 5
        assert there["copied_bytes"] > OBJECTS * BYTES
        assert back["copied_bytes"] < there["copied_bytes"] / 2
        assert epochs == sorted(set(epochs)), epochs
        async with Client(cluster.node(B)["http"]) as client:
            objects = [client.project(PROJECT).object("Ledger", name) for name in names]
            assert list(await asyncio.gather(*(one.look() for one in objects))) == list(writers.answered.values())
        again = await command(cluster, "project", "move", PROJECT, "--to", "a")
        assert again["moved"] is False

    asyncio.run(main())


async def command(cluster: UpCluster, *arguments: str) -> Any:
    return await asyncio.to_thread(cluster.command, *arguments, at=A, secs=WAIT_SECS)


def epoch(cluster: UpCluster, name: str) -> tuple[int, ...]:
    """Of one object, claimed in the region it lives in, as that tells it: what nobody calls keeps its copy's."""
    path = f"/v1/{PROJECT}/objects/Ledger/o0"
    until(lambda: cluster.ask("POST", name, f"{path}/look", [])[0] == 200, WAIT_SECS, "it is called")
    described = cluster.get(name, path)
    return tuple(int(part) for part in described["epoch"].split("."))
