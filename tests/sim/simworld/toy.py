"""A small object server, right and wrong, that proves the world: the right one passes, each wrong one is caught.

The right one keeps each object in one register of the blob store, by compare-and-swap, and answers when the put has
landed. Each flaw is a mistake a real server could make.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any, Literal, get_args

from domicile.errors import NoSuchObject, NotServing, OutcomeUnknown
from domicile.node.blobs.base import ABSENT, Precondition
from domicile.node.errors import BlobMissing, BlobUnavailable, PreconditionFailed
from domicile.node.values import Answer, Call
from domicile.placement.records import Epoch, Incarnation, ObjectKey
from domicile.placement.store import Committed, Put, StoreUnavailable
from simworld.world import World

Flaw = Literal[
    "none",
    "answers-early",
    "loses-tail",
    "runs-twice",
    "forgets-keys",
    "serves-stale",
    "shows-early",
    "keeps-deleted",
    "epoch-falls",
    "refuses-what-ran",
    "hangs",
]

FLAWS: tuple[Flaw, ...] = tuple(flaw for flaw in get_args(Flaw) if flaw != "none")


class _Object:
    """One object in memory: its stored state, the tag that is conditioned on, and the lock its calls take turns by."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.loaded = False
        self.tag: Precondition = ABSENT
        self.state: dict[str, Any] = {}
        self.cached_at = -1e9
        self.cached: list[str] = []


class ToyServer:
    """A Front for ledgers, as far as the world's clients use one."""

    def __init__(self, world: World, epoch: Epoch, flaw: Flaw) -> None:
        self.node_id = f"toy-{epoch}"
        self._world = world
        self._epoch = epoch
        self._flaw = flaw
        self._objects: dict[str, _Object] = {}
        self._calls = 0
        self._behind: list[asyncio.Task[None]] = []

    def now(self) -> float:
        return self._world.clock.monotonic()

    async def call(self, call: Call) -> Answer:
        args = json.loads(call.body or b"[]")
        return await self._turn(call.key, call.method, args[0] if args else "", call.idempotency_key)

    async def delete(self, key: ObjectKey, if_match: Incarnation | None, idempotency_key: str | None) -> Epoch:
        answer = await self._turn(key, "delete", "", idempotency_key)
        return answer.epoch

    async def _turn(self, key: ObjectKey, method: str, item: str, idempotency: str | None) -> Answer:
        self._calls += 1
        if self._flaw == "hangs" and self._calls % 50 == 0:
            await self._world.loop.create_future()
        held = self._objects.setdefault(str(key), _Object())
        if method == "read" and self._flaw == "shows-early":
            return self._answer(held.state)
        async with held.lock:
            return await self._run(key, held, method, item, idempotency)

    async def _run(self, key: ObjectKey, held: _Object, method: str, item: str, idempotency: str | None) -> Answer:
        for _ in range(8):
            if not held.loaded:
                await self._load(key, held)
            if method == "read":
                return self._read(held)
            if idempotency in held.state["keys"] and self._flaw != "forgets-keys":
                return self._answer(held.state["keys"][idempotency])
            after = self._after(held.state, method, item, idempotency)
            try:
                await self._put(key, held, after)
            except PreconditionFailed:
                held.loaded = False
                continue
            except BlobUnavailable as error:
                held.loaded = False
                if self._flaw == "runs-twice" and error.maybe:
                    continue
                raise (OutcomeUnknown if error.maybe and self._flaw != "refuses-what-ran" else NotServing)() from error
            return self._answer(after)
        raise NotServing("the register keeps changing")

    async def _load(self, key: ObjectKey, held: _Object) -> None:
        try:
            blob = await self._world.blobs.get(f"{key.id}/toy")
        except BlobMissing:
            held.tag, held.state = ABSENT, {"items": [], "who": [], "keys": {}, "value": 0, "seq": 0}
        except BlobUnavailable as error:
            raise NotServing from error
        else:
            held.tag, held.state = blob.tag, json.loads(blob.data)
            if self._flaw == "loses-tail" and self._epoch.version > 1 and not held.loaded and held.state["items"]:
                held.state["items"].pop()
                held.state["who"].pop()
        held.loaded = True

    def _read(self, held: _Object) -> Answer:
        if self._flaw == "serves-stale":
            if self.now() - held.cached_at > 3.0:
                held.cached_at, held.cached = self.now(), list(held.state["items"])
            return self._answer({**held.state, "items": held.cached, "who": held.state["who"][: len(held.cached)]})
        return self._answer(held.state)

    def _after(self, state: dict[str, Any], method: str, item: str, idempotency: str | None) -> dict[str, Any]:
        if method == "delete":
            if not state["items"]:
                raise NoSuchObject
            kept = state if self._flaw == "keeps-deleted" else {"items": [], "who": [], "value": 0}
            after = {**kept, "keys": {}, "seq": state["seq"] + 1}
        else:
            after = {
                "items": [*state["items"], item],
                "who": [*state["who"], self._epoch],
                "value": state["value"] + (method == "increment"),
                "keys": dict(state["keys"]),
                "seq": state["seq"] + 1,
            }
        if idempotency is not None:
            after["keys"][idempotency] = {name: after[name] for name in ("items", "who", "value")}
        return after

    async def _put(self, key: ObjectKey, held: _Object, after: dict[str, Any]) -> None:
        if self._flaw == "answers-early":
            held.state = after
            self._behind.append(asyncio.create_task(self._put_behind(key, held)))
            return
        if self._flaw == "shows-early":
            held.state = after
        data = json.dumps({**after, "put": self._world.loop.number()}).encode()
        held.tag = await self._world.blobs.put(f"{key.id}/toy", data, held.tag)
        held.state = after

    async def _put_behind(self, key: ObjectKey, held: _Object) -> None:
        try:
            await self._world.clock.sleep(0.2)
            await self._world.blobs.put(f"{key.id}/toy", json.dumps(held.state).encode())
        except BlobUnavailable:
            return

    def _answer(self, state: dict[str, Any]) -> Answer:
        told = {name: state.get(name, []) for name in ("items", "who")}
        epoch = self._epoch
        if self._flaw == "epoch-falls" and self._calls % 7 == 0:
            epoch = Epoch(epoch.term, epoch.version - 1)
        return Answer(json.dumps(told).encode(), epoch)


class ToyNode:
    """A NodeHandle."""

    def __init__(self, front: ToyServer) -> None:
        self.front: Any = front

    async def stop(self) -> None:
        """Everything it answered for has landed already."""


def toy(flaw: Flaw = "none") -> Any:
    """A StartNode of a server with this flaw."""

    async def start(world: World) -> ToyNode:
        epoch = await _claim(world)
        return ToyNode(ToyServer(world, epoch, flaw))

    return start


async def _claim(world: World) -> Epoch:
    """An epoch of its own for each start, drawn from the placement store."""
    store = world.store.session()
    while True:
        try:
            written = await store.write([], [Put("/toy/starts", b"")])
        except StoreUnavailable:
            await world.clock.sleep(0.5)
            continue
        assert isinstance(written, Committed)
        return Epoch(1, written.version)
