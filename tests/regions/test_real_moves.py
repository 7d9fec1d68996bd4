"""A project between two real regions: `domicile up --regions a,b`, real etcd, Temporal, the client and the command.

`DOMICILE_MOVED_OBJECTS` and `DOMICILE_MOVED_BYTES` make it as large as one likes (200 and 1048576 for the notes).
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from etcd_servers import until
from up_cluster import PORTS

from domicile import Client

OBJECTS = int(os.environ.get("DOMICILE_MOVED_OBJECTS", "24"))
BYTES = int(os.environ.get("DOMICILE_MOVED_BYTES", "200000"))
WRITES_PER_SEC = 50
WAIT_SECS = 120.0
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


class Cluster:
    """The running command."""

    def __init__(self, folder: Path) -> None:
        app = folder / "app.py"
        app.write_text(APP)
        kept = {n: v for n, v in os.environ.items() if not n.startswith(("DOMICILE_", "NODE_", "OBJECT_"))}
        self.folder, self.env = folder, {**kept, "DOMICILE_PROFILE": "fast"}
        self.said = (folder / "said").open("wb")
        arguments = [
            "up",
            *PORTS,
            "--regions",
            "a,b",
            "--nodes",
            "1",
            "--json",
            "--data",
            str(folder / "up"),
            "--app",
            str(app),
        ]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "domicile.cli.main", *arguments],
            cwd=folder,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self.said,
            text=True,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, (folder / "said").read_text()

    def node(self, region: str) -> dict[str, Any]:
        document = json.loads((self.folder / "up" / "cluster.json").read_text())
        found: dict[str, Any] = next(node for node in document["nodes"] if node["region"] == region)
        return found

    def get(self, region: str, path: str) -> Any:
        with urllib.request.urlopen(self.node(region)["http"] + path, timeout=20) as answer:
            return json.loads(answer.read())

    def ask(self, verb: str, region: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Status and JSON."""
        sent = None if body is None else json.dumps(body).encode()
        url, kind = self.node(region)["http"] + path, {"Content-Type": "application/json"}
        request = urllib.request.Request(url, sent, kind, method=verb)
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    async def command(self, *arguments: str) -> Any:
        """What `domicile … --json` prints."""
        running = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "domicile.cli.main", *arguments, "--json", "--url", self.node("a")["http"]),
            env=self.env,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        said, why = await asyncio.wait_for(running.communicate(), WAIT_SECS)
        assert running.returncode == 0, (said.decode(), why.decode())
        return json.loads(said)

    async def a_while(self, secs: float) -> None:
        """The load goes on."""
        await asyncio.sleep(secs)

    def end(self) -> None:
        self.process.send_signal(signal.SIGINT)
        self.process.wait(60)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.said.close()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    running = Cluster(tmp_path_factory.mktemp("moves"))
    yield running
    running.end()


class Writers:
    """50 writes a second by the client library, which rides through a move by itself: whatever it raises fails."""

    def __init__(self, cluster: Cluster, names: list[str]) -> None:
        self._clients = [Client(cluster.node(region)["http"]) for region in "ab"]
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

    async def end(self) -> None:
        self._over = True
        await self._task
        for client in self._clients:
            await client.close()


@pytest.mark.timeout(300)
def test_a_project_moves_there_and_back_under_load(cluster: Cluster) -> None:
    """Every answered write is there once, clients saw nothing of it but time, that is stated and under 5 s; b's etcd is
    fresh, and there and back epochs only grow; the way back copies only what changed."""

    async def main() -> None:
        names = [f"o{at}" for at in range(OBJECTS)]
        async with Client(cluster.node("a")["http"]) as client:
            for at in range(0, OBJECTS, 10):
                objects = [client.project(PROJECT).object("Ledger", name) for name in names[at : at + 10]]
                await asyncio.gather(*(one.fill(BYTES) for one in objects))
        epochs = [epoch(cluster, "a")]
        writers = Writers(cluster, names)
        await cluster.a_while(1)
        slowly = ("--mb-per-sec", str(OBJECTS * BYTES / 3e6))  # so that it runs yet when it is asked for again
        moving = asyncio.create_task(cluster.command("project", "move", PROJECT, "--to", "b", *slowly))
        # Case 119: started twice it is one; to somewhere else it is refused while it runs.
        at = f"/v1/projects/{PROJECT}/move"
        async with asyncio.timeout(60):
            while (await asyncio.to_thread(cluster.ask, "GET", "b", at))[1].get("progress") is None:
                await cluster.a_while(0.02)
        refused = await asyncio.to_thread(cluster.ask, "POST", "b", at, {"to": "elsewhere"})
        assert refused[0] == 409, refused
        joined = (await asyncio.to_thread(cluster.ask, "POST", "b", at, {"to": "b"}))[1]
        assert joined["progress"]["to"] == "b"
        there = await moving
        await cluster.a_while(1)
        epochs.append(epoch(cluster, "b"))
        back = await cluster.command("project", "move", PROJECT, "--to", "a")
        await cluster.a_while(1)
        await writers.end()
        epochs.append(epoch(cluster, "a"))
        print(f"there {there}\nback {back}\nslowest write {writers.slowest:.2f} s\nepochs {epochs}", file=sys.stderr)
        assert there["moved"]
        assert back["moved"]
        for moved in (there, back):
            assert 0 < moved["unserved_secs"] < 5
        assert there["copied_bytes"] > OBJECTS * BYTES
        assert back["copied_bytes"] < there["copied_bytes"] / 2
        assert epochs == sorted(set(epochs)), epochs
        async with Client(cluster.node("b")["http"]) as client:
            objects = [client.project(PROJECT).object("Ledger", name) for name in names]
            assert list(await asyncio.gather(*(one.look() for one in objects))) == list(writers.answered.values())
        again = await cluster.command("project", "move", PROJECT, "--to", "a")
        assert again["moved"] is False

    asyncio.run(main())


def epoch(cluster: Cluster, region: str) -> tuple[int, ...]:
    """Of one object, claimed in the region it lives in, as that tells it: what nobody calls keeps its copy's."""
    path = f"/v1/{PROJECT}/objects/Ledger/o0"
    until(lambda: cluster.ask("POST", region, f"{path}/look", [])[0] == 200, WAIT_SECS, "it is called")
    described = cluster.get(region, path)
    return tuple(int(part) for part in described["epoch"].split("."))
