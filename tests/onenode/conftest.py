"""A whole node in the test's own process: real files, real threads, real stores, whose blob store can be made to fail."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import io
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from domicile import Object
from domicile.node.blobs.base import Blob, Listed, Precondition
from domicile.node.blobs.file import FileBlobs
from domicile.node.clock import SystemClock
from domicile.node.config import Config
from domicile.node.disk import SystemDisk
from domicile.node.errors import BlobUnavailable
from domicile.node.failpoints import Failpoints
from domicile.node.node import Node, Seams
from domicile.node.telemetry import Telemetry, logger
from domicile.node.values import Call
from domicile.node.workers import ThreadWorkers
from domicile.placement.embedded import EmbeddedStore
from domicile.placement.heartbeat import HeartbeatThread
from domicile.placement.records import ObjectKey
from domicile.registry import from_classes

WAIT_SECS = 20.0


class Bucket:
    """The directory store, counted, and failing on demand: `down`, `lost_answers`, `full`, `delay_secs`."""

    def __init__(self, root: Path) -> None:
        self._blobs = FileBlobs(str(root), SystemClock())
        self.down = False
        self.full = False
        self.lose_answers = 0
        self.delay_secs = 0.0
        self.gets: list[str] = []
        self.puts: list[str] = []

    async def get(self, key: str) -> Blob:
        await self._trouble()
        self.gets.append(key)
        return await self._blobs.get(key)

    async def put(self, key: str, data: bytes, condition: Precondition = None) -> str:
        await self._trouble()
        if self.full:
            raise BlobUnavailable("no space left")
        tag = await self._blobs.put(key, data, condition)
        self.puts.append(key)
        if self.lose_answers and condition is not None:
            self.lose_answers -= 1
            raise BlobUnavailable("the answer was lost", maybe=True)
        return tag

    async def delete(self, key: str) -> None:
        await self._blobs.delete(key)

    async def list(self, prefix: str) -> AsyncIterator[Listed]:
        async for listed in self._blobs.list(prefix):
            yield listed

    async def close(self) -> None:
        await self._blobs.close()

    async def _trouble(self) -> None:
        if self.delay_secs:
            await asyncio.sleep(self.delay_secs)
        if self.down:
            raise BlobUnavailable("connection refused")


class Home:
    """One node over one directory, started and stopped as often as a test likes."""

    def __init__(self, root: Path, classes: tuple[type[Object], ...], settings: dict[str, Any]) -> None:
        self.root = root
        self.classes = classes
        self.settings = settings
        self.bucket = Bucket(root / "blobs")
        self.failpoints = Failpoints()
        self.replaced: list[str] = []
        self.log = io.StringIO()
        self.node: Node
        self.store: EmbeddedStore
        self.telemetry: Telemetry

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        clock = SystemClock()
        self.config = Config(data=str(self.root), projects="first-use", **self.settings)
        self.store = EmbeddedStore(str(self.root / "placement.db"), clock.monotonic)
        self.telemetry = Telemetry()
        self.workers = ThreadWorkers(loop)
        self.node = Node(
            Seams(
                loop=loop,
                config=self.config,
                registry=from_classes(*self.classes),
                clock=clock,
                disk=SystemDisk(),
                rng=random.Random(),
                workers=self.workers,
                blobs=self.bucket,
                store=self.store,
                telemetry=self.telemetry,
                log=logger("json", "info", self.log),
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

    def key(self, cls: str, name: str) -> ObjectKey:
        return ObjectKey("demo", cls, name)

    async def call(
        self, cls: str, name: str, method: str, *args: Any, secs: float = 30.0, idempotency_key: str | None = None
    ) -> Any:
        """The result; raises the call's error."""
        deadline = self.node.now() + secs
        body = json.dumps(list(args)).encode()
        call = Call(self.key(cls, name), method, body, deadline, idempotency_key)
        return json.loads((await self.node.call(call)).body)

    async def sleep_object(self, cls: str, name: str) -> None:
        """Put the object to sleep now, and wait until it is."""
        residency = self.node._residents.find(self.key(cls, name).id)
        assert residency is not None
        await self.node._residents.put_to_sleep([residency])

    def awake(self, cls: str, name: str) -> bool:
        return self.node._residents.find(self.key(cls, name).id) is not None

    async def until(self, holds: Callable[[], Any], what: str) -> None:
        """Wait on the condition `what`, not on time."""
        async with asyncio.timeout(WAIT_SECS):
            while True:
                held = holds()
                if await held if inspect.isawaitable(held) else held:
                    return
                await asyncio.sleep(0.01)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., Any]]:
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

    yield go
