"""A whole node in the test's own process: real files, threads and stores, whose blob store can be made to fail."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import io
import json
import random
import shutil
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import waiting

from domicile import Object
from domicile.node import manifest as manifests
from domicile.node.app import App
from domicile.node.blobs.base import Blob, Listed, Precondition
from domicile.node.blobs.file import FileBlobs
from domicile.node.chunks import chunk_key, manifest_key, segment_key
from domicile.node.clock import SystemClock
from domicile.node.config import Config
from domicile.node.disk import SystemDisk
from domicile.node.errors import BlobMissing, BlobUnavailable
from domicile.node.failpoints import Failpoints
from domicile.node.http.server import Limits, serve
from domicile.node.main import GC_THRESHOLDS, SWITCH_INTERVAL_SECS, TEMP_FACTOR
from domicile.node.manifest import Manifest
from domicile.node.node import Node
from domicile.node.residency import Residency
from domicile.node.seams import Seams
from domicile.node.sqlite.temp_vfs import TempVfs
from domicile.node.store_leg import StoreLeg
from domicile.node.telemetry import Telemetry, logger
from domicile.node.values import Call
from domicile.node.workers import ThreadWorkers
from domicile.placement.alarms import Mirror
from domicile.placement.embedded import EmbeddedStore
from domicile.placement.heartbeat import HeartbeatThread
from domicile.placement.records import Incarnation, ObjectKey
from domicile.registry import from_classes


class Bucket:
    """The directory store, counted, and failing on demand.

    `down`, `lose_answers`, `full`, `delay_secs`; `failing` is the share of requests that are refused. `asked` counts
    every request, refused ones included.
    """

    def __init__(self, root: Path) -> None:
        self.quiet = FileBlobs(str(root), SystemClock())
        self.down = False
        self.full = False
        self.lose_answers = 0
        self.delay_secs = 0.0
        self.failing = 0.0
        self.asked = 0
        self.luck = random.Random(7)
        self.gets: list[str] = []
        self.puts: list[str] = []

    async def get(self, key: str) -> Blob:
        await self._trouble()
        self.gets.append(key)
        return await self.quiet.get(key)

    async def put(self, key: str, data: bytes, condition: Precondition = None) -> str:
        await self._trouble()
        if self.full:
            raise BlobUnavailable("no space left")
        tag = await self.quiet.put(key, data, condition)
        self.puts.append(key)
        if self.lose_answers and condition is not None:
            self.lose_answers -= 1
            raise BlobUnavailable("the answer was lost", maybe=True)
        return tag

    async def delete(self, key: str) -> None:
        await self.quiet.delete(key)

    async def list(self, prefix: str) -> AsyncIterator[Listed]:
        async for listed in self.quiet.list(prefix):
            yield listed

    async def close(self) -> None:
        await self.quiet.close()

    async def _trouble(self) -> None:
        self.asked += 1
        if self.delay_secs:
            await asyncio.sleep(self.delay_secs)
        if self.down:
            raise BlobUnavailable("connection refused")
        if self.failing and self.luck.random() < self.failing:
            raise BlobUnavailable("503 SlowDown")


class Watch(SystemClock):
    """The system's clock, whose wall time a test may put forward."""

    def __init__(self) -> None:
        self.ahead_ms = 0

    def wall_ms(self) -> int:
        return super().wall_ms() + self.ahead_ms


class Home:
    """One node over one directory, started and stopped as often as a test likes."""

    def __init__(self, root: Path, classes: tuple[type[Object], ...], settings: dict[str, Any]) -> None:
        self.root = root
        self.classes = classes
        self.settings = settings
        self.bucket = Bucket(root / "blobs")
        self.failpoints = Failpoints()
        self.watch = Watch()
        self.replaced: list[str] = []
        self.log = io.StringIO()
        self.node: Node
        self.store: EmbeddedStore
        self.telemetry: Telemetry

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        gc.set_threshold(*GC_THRESHOLDS)  # as every node process does
        sys.setswitchinterval(SWITCH_INTERVAL_SECS)
        clock = self.watch
        self.config = Config(data=str(self.root), projects="first-use", **self.settings)
        self.store = EmbeddedStore(str(self.root / "placement.db"), clock.monotonic)
        self.telemetry = Telemetry()
        self.log_of_node = logger("json", "info", self.log)
        self.workers = ThreadWorkers(loop)
        disk = SystemDisk()
        disk.vfs = f"onenode-{id(self)}"
        self._temp = TempVfs(disk.vfs, "", TEMP_FACTOR * (self.config.object_db_max_mb << 20))
        self.node = Node(
            Seams(
                loop=loop,
                config=self.config,
                registry=from_classes(*self.classes),
                clock=clock,
                disk=disk,
                rng=random.Random(),
                workers=self.workers,
                blobs=self.bucket,
                store=self.store,
                telemetry=self.telemetry,
                log=self.log_of_node,
                failpoints=self.failpoints,
                heartbeat=HeartbeatThread,
                replace_process=self.replaced.append,
            )
        )
        await self.node.start()

    async def stop(self) -> None:
        await self.node.stop()
        self.workers.close()
        await self.store.close()

    async def crash(self) -> None:
        """The node is gone at once: nothing is flushed, nothing released, its row stays. Unlanded puts are cut off."""
        for residency in list(self.node._residents._awake.values()):
            residency.end(RuntimeError("crash"))
            await residency.over
        self.node._residents.leaving = True
        assert self.node._heartbeat is not None
        await self.node._heartbeat.stop()
        await self.node._cancel_all()
        self.workers.close()
        await self.store.close()

    async def restart(self, *, crash: bool = False, cold: bool = False) -> None:
        """The node again, in order or after a crash; `cold`: with nothing left on its disk but the store."""
        await (self.crash() if crash else self.stop())
        if cold:
            self.wipe()
        await self.start()

    def wipe(self) -> None:
        """Delete everything that the node could lay an object from, except the blob store."""
        shutil.rmtree(self.root / "objects", ignore_errors=True)
        shutil.rmtree(self.root / "cache", ignore_errors=True)

    @contextlib.asynccontextmanager
    async def http(self) -> AsyncIterator[str]:
        """The node's HTTP surface on a free port; gives its URL."""
        app = App(self.node, self.log_of_node, lambda: b"", body_bytes_max=10 << 20, deadline_secs=30.0)
        server = await serve(app, "127.0.0.1:0", self.watch, Limits(body_bytes_max=10 << 20))
        try:
            yield f"http://{server.address[0]}:{server.address[1]}"
        finally:
            await server.stop(1.0)

    def residency(self, cls: str, name: str) -> Residency:
        """The residency of an object that is awake."""
        found = self.node._residents.find(self.key(cls, name).id)
        assert found is not None, f"{cls}/{name} sleeps"
        return found

    async def landed(self, cls: str, name: str) -> StoreLeg:
        """Once everything the object has committed is in the store and no rotation is under way: its store leg."""
        residency = self.residency(cls, name)
        await self.until(lambda: not residency.leg.behind and not residency.rotation.running, "everything landed")
        return residency.leg

    async def manifest(self, cls: str, name: str) -> Manifest:
        """The manifest the bucket has; every chunk and every segment it names is there, without a gap."""
        key = manifest_key(self.key(cls, name).id)
        while True:
            data = (await self.bucket.quiet.get(key)).data
            try:
                return await self._whole(manifests.decode(data, key))
            except BlobMissing:  # what it named may go when the next one stands
                if (await self.bucket.quiet.get(key)).data == data:
                    raise

    async def _whole(self, found: Manifest) -> Manifest:
        at = 0
        for segment in found.segments:
            assert segment.start == at, "a gap in the chain of segments"
            at = segment.end
            key = segment_key(found.object_id, found.incarnation, segment)
            assert len((await self.bucket.quiet.get(key)).data) == segment.end - segment.start
        assert at + len(found.tail_log) == found.length
        for ref in found.base:
            await self.bucket.quiet.get(chunk_key(found.object_id, found.incarnation, ref))
        return found

    async def mirror(self, cls: str, name: str) -> Mirror:
        """The object's row in the alarm mirror."""
        return await self.node._host.mirror.read(self.key(cls, name).id)

    def key(self, cls: str, name: str) -> ObjectKey:
        return ObjectKey("demo", cls, name)

    async def call(
        self,
        cls: str,
        name: str,
        method: str,
        *args: Any,
        secs: float = 30.0,
        idempotency_key: str | None = None,
        if_match: Incarnation | None = None,
    ) -> Any:
        """The result; raises the call's error."""
        deadline = self.node.now() + secs
        body = json.dumps(list(args)).encode()
        call = Call(self.key(cls, name), method, body, deadline, idempotency_key, if_match)
        return json.loads((await self.node.call(call)).body)

    async def sleep_object(self, cls: str, name: str) -> None:
        """Put the object to sleep now, and wait until it is."""
        residency = self.node._residents.find(self.key(cls, name).id)
        assert residency is not None
        await self.node._residents.put_to_sleep(residency)

    def awake(self, cls: str, name: str) -> bool:
        return self.node._residents.find(self.key(cls, name).id) is not None

    async def a_while(self, secs: float) -> None:
        """Let the node run on for `secs`: a fault lasts, a client backs off, or what must not happen has its chance."""
        await asyncio.sleep(secs)

    async def until(self, holds: Callable[[], Any], what: str) -> None:
        """Wait on the condition `what`, not on time."""
        await waiting.until(holds, what)


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Any]:
    """`run(scenario, *classes, **settings)` runs `async def scenario(home)` on a started node."""

    def go(scenario: Callable[[Home], Awaitable[None]], *classes: type[Object], **settings: Any) -> Home:
        home = Home(tmp_path, classes, settings)

        async def main() -> None:
            await home.start()
            try:
                await scenario(home)
            finally:
                with contextlib.suppress(Exception):
                    await home.stop()
                await home.bucket.close()

        asyncio.run(main())
        return home

    return go
