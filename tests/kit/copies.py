"""A node's copies of an object, on a real disk, and the database whose log they are of."""

from __future__ import annotations

import asyncio
import errno
import random
import shutil
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import apsw
from blake3 import blake3

from domicile.node.clock import SystemClock
from domicile.node.disk import SystemDisk
from domicile.node.log import BaseShape
from domicile.node.replica.replicas import Replicas, Surroundings
from domicile.node.sqlite import wal
from domicile.node.sqlite.birth import IMAGE
from domicile.node.sqlite.checksum import checksum
from domicile.node.wire.messages import (
    Append,
    Fence,
    FetchChunk,
    FetchLog,
    Fold,
    Holds,
    NewBase,
    Relabel,
)
from domicile.node.workers import ThreadWorkers
from domicile.placement.records import FIRST_INCARNATION, Epoch, Generation, ObjectKey, Position

KEY = ObjectKey("acme", "Room", "lobby")
OBJECT = bytes.fromhex(KEY.id)
E1, E2, E3 = Epoch(1, 10), Epoch(1, 20), Epoch(1, 30)
LIFE = FIRST_INCARNATION
FRAME = 24 + 4096


class Owner:
    """A real SQLite database whose log is shipped: what an owner has to say of it."""

    def __init__(self, path: Path, epoch: Epoch = E1) -> None:
        self.path = path
        path.write_bytes(IMAGE)
        self.db = self._open()
        self.epoch = epoch
        self.generation = Generation(epoch, 0)
        self.shape = BaseShape()
        self.start = 0
        self.folds = 0

    def _open(self) -> apsw.Connection:
        db = apsw.Connection(str(self.path))
        db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        db.wal_autocheckpoint(0)
        return db

    def sql(self, text: str, *params: Any) -> None:
        self.db.execute(text, params)

    def grow(self, rows: int = 1, size: int = 100) -> None:
        self.sql("CREATE TABLE IF NOT EXISTS t(i INTEGER PRIMARY KEY, b)")
        for _ in range(rows):
            self.sql("INSERT INTO t(b) VALUES (randomblob(?))", size)

    def log(self, length: int | None = None) -> bytes:
        wal_file = Path(f"{self.path}-wal")
        data = wal_file.read_bytes() if wal_file.exists() else b""
        return data[: wal.walk(data).length if length is None else length]

    def at(self, length: int) -> bytes:
        return checksum(self.shape.seed(KEY.id, LIFE), self.log(length))

    @property
    def length(self) -> int:
        return len(self.log())

    def birth(self) -> NewBase:
        return NewBase(OBJECT, LIFE, self.epoch, self.generation, 0, self.at(0), (), 0)

    def base(self) -> NewBase:
        shape = self.shape
        at = self.at(self.start)
        return NewBase(OBJECT, LIFE, self.epoch, self.generation, self.start, at, shape.hashes, shape.size)

    def append(self, start: int, end: int | None = None, **more: Any) -> Append:
        frames = self.log(end)[start:]
        return Append(OBJECT, LIFE, self.epoch, self.generation, start, self.at(start), frames, **more)

    def relabel(self, length: int, to: Epoch, **more: Any) -> Relabel:
        return Relabel(OBJECT, LIFE, to, self.generation, length, self.at(length), Generation(to, 0), **more)

    def fold(self) -> Fold:
        """Checkpoint here; what a replica at the old length is told."""
        length, at, before = self.length, self.at(self.length), self.generation
        dirty = wal.dirty_chunks(self.log(), self.shape.size or len(IMAGE))
        assert self.db.wal_checkpoint("main", apsw.SQLITE_CHECKPOINT_TRUNCATE) == (0, 0)
        image = self.path.read_bytes()
        hashes = tuple(blake3(image[i : i + (1 << 20)]).digest() for i in range(0, len(image), 1 << 20))
        self.shape = BaseShape(hashes, len(image))
        self.folds += 1
        self.generation, self.start = Generation(self.epoch, self.folds), 0
        to = self.generation
        args = (OBJECT, LIFE, self.epoch, before, length, at, to, hashes, len(image))
        return Fold(*args, tuple(sorted(dirty.chunks)))

    async def fetch_log(self, peer: str, fetch: FetchLog) -> bytes:
        return self.log()[fetch.start : fetch.end]

    async def fetch_chunk(self, peer: str, fetch: FetchChunk) -> bytes:
        return self.path.read_bytes()[fetch.index << 20 : (fetch.index + 1) << 20]


class FullDisk(SystemDisk):
    """The machine's disk, full when told; the journal has its blocks already."""

    full = False

    def write_at(self, path: str, offset: int, data: bytes) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, "no space left")
        super().write_at(path, offset, data)

    def write(self, path: str, data: bytes, *, sync: bool) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, "no space left")
        super().write(path, data, sync=sync)


class Node:
    """One node's replicas over a directory."""

    def __init__(self, root: Path, owner: Owner) -> None:
        self.root, self.owner = root, owner
        self.disk = FullDisk()
        self.claims: list[Epoch] = []
        self.stands = True
        self.lost: list[tuple[str, Epoch]] = []
        self.journal_bytes = 1 << 20
        self.sync_appends = True
        self.replicas: Replicas

    async def claim_stands(self, object_id: str, epoch: Epoch) -> bool:
        self.claims.append(epoch)
        return self.stands

    async def open(self) -> Node:
        loop = asyncio.get_running_loop()
        self.workers = ThreadWorkers(loop, 8)
        around = Surroundings(
            loop=loop,
            disk=self.disk,
            workers=self.workers,
            clock=SystemClock(),
            rng=random.Random(str(self.root)),
            source=self.owner,
            claim_stands=self.claim_stands,
            root=str(self.root / "replicas"),
            lost=str(self.root / "lost"),
            journal_bytes=self.journal_bytes,
            sync_appends=self.sync_appends,
            report_lost=lambda object_id, epoch: self.lost.append((object_id, epoch)),
        )
        self.replicas = await Replicas.open(around)
        return self

    async def reopen(self) -> Node:
        """As after a SIGKILL: nothing is told to the old process."""
        return await self.open()

    async def crashed_copy(self, to: Path) -> Node:
        """What a power cut at this moment leaves at the least: the journal, and the files the last checkpoint left."""
        shutil.copytree(self.root, to)
        twin = Node(to, self.owner)
        return await twin.open()

    async def say(self, *messages: Any) -> list[Any]:
        return list(await asyncio.gather(*self.hear(*messages)))

    def hear(self, *messages: Any) -> list[asyncio.Future[Any]]:
        """What the owner says reaches the copies together; a future for each answer."""
        answers: list[asyncio.Future[Any]] = [asyncio.get_running_loop().create_future() for _ in messages]
        said = zip(messages, answers, strict=True)
        self.replicas.take([("owner", message, answer.set_result) for message, answer in said])
        return answers

    async def one(self, message: Any) -> Any:
        return (await self.say(message))[0]

    async def fence(self, epoch: Epoch) -> Any:
        return await self.replicas.fence(Fence(OBJECT, LIFE, epoch))

    async def position(self) -> Position | None:
        return (await self.fence(E1)).position

    def files(self) -> list[str]:
        return sorted(path.name for path in (self.root / "replicas" / KEY.id).iterdir())


Story = Callable[[Node, Owner], Coroutine[Any, Any, None]]


async def born(node: Node, owner: Owner, rows: int = 3) -> int:
    """A copy that holds all of the owner's log."""
    owner.grow(rows)
    answers = await node.say(owner.birth(), owner.append(0))
    assert answers[-1] == Holds(LIFE, owner.generation, owner.length)
    return owner.length
