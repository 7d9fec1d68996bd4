"""A node's copies of objects it does not own, on a real disk: what is acked, what survives, what leaves where to."""

from __future__ import annotations

import asyncio
import errno
import random
import shutil
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import apsw
import pytest
from blake3 import blake3

from domicile.node.clock import SystemClock
from domicile.node.disk import SystemDisk
from domicile.node.errors import BlobMissing, Corrupt
from domicile.node.log import BaseShape
from domicile.node.replica.replicas import Replicas, Surroundings
from domicile.node.sqlite import wal
from domicile.node.sqlite.birth import IMAGE
from domicile.node.sqlite.checksum import checksum
from domicile.node.takeover.own_copy import Files, find
from domicile.node.wire.messages import (
    Append,
    Dropped,
    Elsewhere,
    Fence,
    FencedBy,
    FetchChunk,
    FetchLog,
    Fold,
    Holds,
    NewBase,
    Relabel,
    Unable,
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
        return list(await asyncio.gather(*self.replicas.take([("owner", message) for message in messages])))

    async def one(self, message: Any) -> Any:
        return (await self.say(message))[0]

    async def fence(self, epoch: Epoch) -> Any:
        return await self.replicas.fence(Fence(OBJECT, LIFE, epoch))

    async def position(self) -> Position | None:
        return (await self.fence(E1)).position

    def files(self) -> list[str]:
        return sorted(path.name for path in (self.root / "replicas" / KEY.id).iterdir())


Story = Callable[[Node, Owner], Coroutine[Any, Any, None]]


@pytest.fixture
def play(tmp_path: Path) -> Callable[[Story], None]:
    """Run a story on a fresh node with a fresh owner."""

    def run(story: Story) -> None:
        async def told() -> None:
            owner = Owner(tmp_path / "owner.db")
            node = await Node(tmp_path / "node", owner).open()
            await story(node, owner)
            await node.replicas.close()
            node.workers.close()

        asyncio.run(told())

    return run


async def born(node: Node, owner: Owner, rows: int = 3) -> int:
    """A copy that holds all of the owner's log."""
    owner.grow(rows)
    answers = await node.say(owner.birth(), owner.append(0))
    assert answers[-1] == Holds(LIFE, owner.generation, owner.length)
    return owner.length


def test_an_object_is_born_and_followed(play: Any) -> None:
    """A base over nothing asks for the claim; appends extend, repeats are idempotent, a gap changes nothing."""

    async def story(node: Node, owner: Owner) -> None:
        length = await born(node, owner)
        assert node.claims == [E1]
        owner.grow(2)
        assert await node.one(owner.append(length)) == Holds(LIFE, owner.generation, owner.length)
        assert await node.one(owner.append(0)) == Holds(LIFE, owner.generation, owner.length)
        whole = owner.length
        owner.grow(1)
        before = owner.length
        owner.grow(1)
        assert await node.one(owner.append(before)) == Elsewhere(Position(LIFE, owner.generation, whole))
        answer = await node.fence(E1)
        assert (answer.position, answer.checksum) == (Position(LIFE, owner.generation, whole), owner.at(whole))

    play(story)


def test_a_stranger_s_base_is_refused(play: Any) -> None:
    """A node with neither copy nor stub takes a base only from the claim that stands."""

    async def story(node: Node, owner: Owner) -> None:
        node.stands = False
        owner.grow(1)
        answer = await node.one(owner.birth())
        assert isinstance(answer, Unable)
        assert await node.one(owner.append(0)) == Elsewhere(None)

    play(story)


def test_an_older_epoch_is_refused_after_a_restart_too(play: Any) -> None:
    """A fence is durable before it is answered: the older owner is fenced by it, also by the next process."""

    async def story(node: Node, owner: Owner) -> None:
        length = await born(node, owner)
        assert (await node.fence(E2)).position == Position(LIFE, owner.generation, length)
        owner.grow(1)
        assert await node.one(owner.append(length)) == FencedBy(E2)
        await node.reopen()
        assert await node.one(owner.append(length)) == FencedBy(E2)
        assert await node.one(owner.birth()) == FencedBy(E2)
        assert (await node.fence(E1)).fenced == E2
        assert await node.one(owner.relabel(length, E3)) == Holds(LIFE, Generation(E3, 0), length)
        assert (await node.fence(E2)).fenced == E3

    play(story)


def test_acked_writes_survive_without_their_files(play: Any, tmp_path: Path) -> None:
    """Field case 15: the journal alone proves what was acked; a torn last record is no record, and writing goes on."""

    async def story(node: Node, owner: Owner) -> None:
        length = await born(node, owner)
        await node.replicas.checkpoint()
        owner.grow(3)
        assert await node.one(owner.append(length)) == Holds(LIFE, owner.generation, owner.length)
        whole = owner.length
        (log,) = (path for path in (node.root / "replicas" / KEY.id).iterdir() if path.name.isdecimal())
        log.write_bytes(log.read_bytes()[:length])  # never synced: gone
        journal = node.root / "replicas" / "journal"
        at = journal.read_bytes().rfind(b"DJRN")
        with journal.open("r+b") as file:
            file.seek(at + 200)
            file.write(b"torn")
        owner.grow(1)
        await node.reopen()
        assert (await node.fence(E1)).position == Position(LIFE, owner.generation, length)
        assert await node.one(owner.append(length)) == Holds(LIFE, owner.generation, owner.length)
        await node.reopen()
        answer = await node.fence(E1)
        assert (answer.position.length, answer.checksum) == (owner.length, owner.at(owner.length))
        assert whole < owner.length

    play(story)


def test_a_relabel_cuts_exactly_and_keeps_the_checksum(play: Any) -> None:
    """A copy takes the new owner's generation at exactly the laid length; what it had beyond is gone, for good."""

    async def story(node: Node, owner: Owner) -> None:
        length = await born(node, owner)
        laid = owner.at(length)
        owner.grow(2)
        await node.one(owner.append(length))
        assert await node.one(owner.relabel(length, E2)) == Holds(LIFE, Generation(E2, 0), length)
        answer = await node.fence(E2)
        assert (answer.position.length, answer.checksum, answer.start) == (length, laid, length)
        await node.reopen()
        assert (await node.fence(E2)).position == Position(LIFE, Generation(E2, 0), length)
        assert await node.one(owner.relabel(length, E2)) == Holds(LIFE, Generation(E2, 0), length)

    play(story)


def test_a_short_copy_is_not_relabelled(play: Any) -> None:
    """A copy changes its generation only when it holds all that was laid (model: eager)."""

    async def story(node: Node, owner: Owner) -> None:
        length = await born(node, owner)
        owner.grow(2)
        message = owner.relabel(owner.length, E2)
        assert await node.one(message) == Elsewhere(Position(LIFE, owner.generation, length))
        first = replace_epoch(owner.append(length), E2)
        assert await node.say(first, message) == [
            Holds(LIFE, owner.generation, owner.length),
            Holds(LIFE, Generation(E2, 0), owner.length),
        ]

    play(story)


def replace_epoch(message: Append, epoch: Epoch) -> Append:
    return Append(
        message.object_id,
        message.incarnation,
        epoch,
        message.generation,
        message.offset,
        message.checksum,
        message.frames,
    )


def test_half_a_transaction_is_no_position(play: Any) -> None:
    """Field case 34: pieces of a transaction are held, and nothing but whole commits is ever told."""

    async def story(node: Node, owner: Owner) -> None:
        length = await born(node, owner)
        owner.grow(1, size=40_000)
        end = owner.length
        cut = length + 3 * FRAME
        assert await node.one(owner.append(length, cut)) == Holds(LIFE, owner.generation, length)
        assert (await node.fence(E1)).position == Position(LIFE, owner.generation, length)
        await node.reopen()
        assert (await node.fence(E1)).position == Position(LIFE, owner.generation, length)
        assert await node.one(owner.append(cut)) == Holds(LIFE, owner.generation, end)
        assert (await node.fence(E1)).checksum == owner.at(end)

    play(story)


def test_another_history_of_the_same_length_is_no_copy(play: Any, tmp_path: Path) -> None:
    """Field case 29: same generation and length, other bytes: nothing is acked, and a base takes the copy's place."""

    async def story(node: Node, owner: Owner) -> None:
        length = await born(node, owner)
        other = Owner(tmp_path / "other.db")
        other.grow(3)
        other.grow(1)
        assert await node.one(other.append(length)) == Elsewhere(None)
        assert await node.one(other.birth()) == Holds(LIFE, other.generation, 0)
        assert await node.one(other.append(0)) == Holds(LIFE, other.generation, other.length)

    play(story)


def test_a_rotation_is_folded_here(play: Any, tmp_path: Path) -> None:
    """A copy exactly there folds its own log; base and generation are the owner's, before and after a crash."""

    async def story(node: Node, owner: Owner) -> None:
        length = await born(node, owner)
        for _ in range(3):
            owner.grow(40, size=30_000)
            await node.one(owner.append(length))
            folding = owner.fold()
            assert await node.one(folding) == Holds(LIFE, owner.generation, 0)
            length = 0
        owner.grow(1)
        assert await node.one(owner.append(0)) == Holds(LIFE, owner.generation, owner.length)
        twin = await node.crashed_copy(tmp_path / "twin")
        for each in (node, twin):
            answer = await each.fence(E1)
            assert (answer.position.length, answer.hashes) == (owner.length, owner.shape.hashes)
            for index, digest in enumerate(owner.shape.hashes):
                chunk = await each.replicas.fetch_chunk(FetchChunk(OBJECT, LIFE, owner.generation, index, digest))
                assert chunk == owner.path.read_bytes()[index << 20 : (index + 1) << 20]
        await node.replicas.checkpoint()
        assert len([name for name in node.files() if name.isdecimal()]) == 2
        await twin.replicas.close()

    play(story)


def test_a_fold_with_another_result_is_staged(play: Any) -> None:
    """Dirty chunks are verified before anything is written: a base that would differ is fetched instead."""

    async def story(node: Node, owner: Owner) -> None:
        length = await born(node, owner)
        owner.grow(40, size=30_000)
        await node.one(owner.append(length))
        (log,) = (path for path in (node.root / "replicas" / KEY.id).iterdir() if path.name.isdecimal())
        with log.open("r+b") as file:
            file.seek(log.stat().st_size - FRAME + 24 + 50)
            file.write(b"rotten")
        assert await node.one(owner.fold()) == Holds(LIFE, owner.generation, 0)
        digest = owner.shape.hashes[0]
        fetched = await node.replicas.fetch_chunk(FetchChunk(OBJECT, LIFE, owner.generation, 0, digest))
        assert blake3(fetched).digest() == digest

    play(story)


def test_a_base_is_staged_with_its_log(play: Any) -> None:
    """A copy from nothing of a generation that began late: chunks and log come from the owner, then appends go on."""

    async def story(node: Node, owner: Owner) -> None:
        owner.grow(60, size=30_000)
        owner.fold()
        owner.grow(5)
        owner.generation, owner.start = Generation(E2, 0), owner.length
        owner.epoch = E2
        assert await node.one(owner.base()) == Holds(LIFE, owner.generation, owner.start)
        owner.grow(1)
        assert await node.one(owner.append(owner.start)) == Holds(LIFE, owner.generation, owner.length)
        await node.reopen()
        answer = await node.fence(E2)
        assert (answer.checksum, answer.start) == (owner.at(owner.length), owner.start)

    play(story)


def test_a_staging_that_was_killed_goes_on(play: Any) -> None:
    """Killed between pieces nothing is wrong: positions are the old copy's, and the next attempt fetches the rest."""

    async def story(node: Node, owner: Owner) -> None:
        length = await born(node, owner)
        first = await node.position()
        owner.grow(100, size=60_000)
        owner.fold()
        owner.fold_count = 0  # type: ignore[attr-defined]
        asked: list[int] = []
        stop = asyncio.Event()
        real = owner.fetch_chunk

        async def fetch(peer: str, wanted: FetchChunk) -> bytes:
            asked.append(wanted.index)
            if len(asked) > 3:
                await stop.wait()
            return await real(peer, wanted)

        owner.fetch_chunk = fetch  # type: ignore[method-assign]
        (pending,) = node.replicas.take([("owner", owner.base())])
        while len(asked) < 6:
            await asyncio.sleep(0)
        assert await node.one(owner.append(0)) == Elsewhere(first, staging=True)
        await node.replicas.close()
        assert not pending.done()
        asked.clear()
        owner.fetch_chunk = real  # type: ignore[method-assign]
        await node.reopen()
        assert await node.position() == first
        assert first == Position(LIFE, Generation(E1, 0), length)

        async def count(peer: str, wanted: FetchChunk) -> bytes:
            asked.append(wanted.index)
            return await real(peer, wanted)

        owner.fetch_chunk = count  # type: ignore[method-assign]
        assert await node.one(owner.base()) == Holds(LIFE, owner.generation, 0)
        assert 0 < len(asked) < len(owner.shape.hashes)

    play(story)


def test_a_fence_beats_a_base_on_its_way(play: Any) -> None:
    """A base that was being staged when a newer owner fenced the copy does not become it."""

    async def story(node: Node, owner: Owner) -> None:
        await born(node, owner)
        owner.grow(60, size=30_000)
        owner.fold()
        gate, asked = asyncio.Event(), asyncio.Event()
        real = owner.fetch_chunk

        async def fetch(peer: str, wanted: FetchChunk) -> bytes:
            asked.set()
            await gate.wait()
            return await real(peer, wanted)

        owner.fetch_chunk = fetch  # type: ignore[method-assign]
        (pending,) = node.replicas.take([("owner", owner.base())])
        await asked.wait()
        before = (await node.fence(E2)).position
        gate.set()
        assert await pending == FencedBy(E2)
        assert (await node.fence(E2)).position == before

    play(story)


def test_what_an_incident_may_want_is_kept_first(play: Any) -> None:
    """A tail above the served position of an open incident is in lost/ before a relabel cuts it."""

    async def story(node: Node, owner: Owner) -> None:
        served = await born(node, owner)
        owner.grow(2)
        whole = owner.log()
        await node.one(owner.append(served))
        incident = (E2, Position(LIFE, owner.generation, served))
        answer = await node.one(owner.relabel(served, E2, incidents=(incident,)))
        assert answer == Holds(LIFE, Generation(E2, 0), served)
        kept = node.root / "lost" / KEY.id / str(E2)
        assert (kept / "db-wal").read_bytes() == whole
        assert (kept / "db").read_bytes() == IMAGE
        assert node.lost == [(KEY.id, E2)]

    play(story)


def test_an_idle_copy_leaves_a_stub(play: Any) -> None:
    """A copy the manifest covers leaves the disk; its fence and position stay, and a base needs no claim to be read."""

    async def story(node: Node, owner: Owner) -> None:
        length = await born(node, owner)
        at = Position(LIFE, owner.generation, length)
        assert not await node.replicas.let_go(KEY.id, Position(LIFE, owner.generation, length - FRAME))
        assert await node.replicas.let_go(KEY.id, at)
        await node.replicas.checkpoint()
        assert node.files() == ["meta"]
        await node.reopen()
        answer = await node.fence(E1)
        assert (answer.stub, answer.position, answer.checksum) == (True, at, owner.at(length))
        old = owner.birth()
        node.claims.clear()
        await node.fence(E2)
        assert await node.one(old) == FencedBy(E2)
        assert node.claims == []

    play(story)


def test_a_copy_that_cannot_be_read_is_not_said_to_be_nothing(play: Any) -> None:
    """Holding nothing is an answer, and only of a copy that never held anything: one that rotted gives none."""

    async def story(node: Node, owner: Owner) -> None:
        never = await node.fence(E1)
        assert (never.copy_id, never.position, never.stub) == (node.replicas.copy_id, None, False)
        await born(node, owner)
        await node.replicas.checkpoint()
        await node.replicas.close()
        (meta,) = node.root.glob("replicas/**/meta")
        meta.write_bytes(b"rot" + meta.read_bytes()[3:])
        await node.open()
        for _ in range(2):
            answer = await node.fence(E2)
            assert answer.copy_id != node.replicas.copy_id
            await node.reopen()

    play(story)


def test_copies_nobody_speaks_to_are_named(play: Any) -> None:
    """Idle copies are listed, those in use and stubs are not."""

    async def story(node: Node, owner: Owner) -> None:
        await born(node, owner)
        await node.replicas.checkpoint()
        assert node.replicas.idle(1e9) == []
        assert node.replicas.idle(-1.0) == [KEY.id]
        await node.reopen()
        assert node.replicas.idle(-1.0) == [KEY.id]
        at = (await node.fence(E1)).position
        await node.replicas.let_go(KEY.id, at)
        assert node.replicas.idle(-1.0) == []

    play(story)


def test_a_deleted_object_leaves_nothing(play: Any) -> None:
    """Field case 36: a deletion drops copy and fence; a copy of an earlier life is void in the next."""

    async def story(node: Node, owner: Owner) -> None:
        await born(node, owner)
        await node.replicas.dropped(Dropped(OBJECT, LIFE))
        assert await node.position() is not None
        await node.replicas.dropped(Dropped(OBJECT, E2))
        assert (await node.fence(E1)).position is None
        await node.replicas.dropped(Dropped(OBJECT, E2))
        await node.replicas.checkpoint()
        assert not (node.root / "replicas" / KEY.id).exists()
        await born(node, owner)
        assert (await node.replicas.fence(Fence(OBJECT, E3, E3))).position is None
        owner.grow(1)
        assert isinstance(await node.one(owner.append(0)), FencedBy)

    play(story)


def test_a_node_that_becomes_home_takes_its_copy_along(play: Any, tmp_path: Path) -> None:
    """Promotion: the files are where a lay finds them, at the acked position; a stub and the fence stay behind."""

    async def story(node: Node, owner: Owner) -> None:
        length = await born(node, owner)
        owner.grow(60, size=30_000)
        await node.one(owner.append(length))
        await node.one(owner.fold())
        owner.grow(2)
        at = Position(LIFE, owner.generation, owner.length)
        await node.one(owner.append(0))
        files = Files(str(node.root / "objects" / KEY.id))
        await node.fence(E2)
        assert await node.replicas.promote(KEY, E1, files) is None
        assert await node.replicas.promote(KEY, E2, files) == at
        for _ in range(2):
            copy = find(node.disk, files, LIFE)
            assert copy is not None
            assert (copy.position, copy.start, copy.shape, copy.log) == (at, 0, owner.shape, owner.log())
            assert copy.sidecar.checksum == owner.at(at.length)
            answer = await node.fence(E2)
            assert (answer.stub, answer.position) == (True, at)
            assert await node.one(owner.append(0)) == FencedBy(E2)
            await node.reopen()

    play(story)


def test_a_promotion_cut_short_is_finished_at_the_next_start(play: Any) -> None:
    """Whatever step the process dies at, the files arrive or are still a copy."""

    async def story(node: Node, owner: Owner) -> None:
        length = await born(node, owner)
        at = Position(LIFE, owner.generation, length)
        files = Files(str(node.root / "objects" / KEY.id))
        real, node.disk.truncate = node.disk.truncate, broken  # type: ignore[method-assign]
        with pytest.raises(OSError, match="cut short"):
            await node.replicas.promote(KEY, E2, files)
        assert find(node.disk, files, LIFE) is None
        node.disk.truncate = real  # type: ignore[method-assign]
        await node.reopen()
        copy = find(node.disk, files, LIFE)
        assert copy is not None
        assert copy.position == at
        assert await node.replicas.promote(KEY, E2, files) == at

    play(story)


def broken(path: str, length: int, *, sync: bool) -> None:
    raise OSError("cut short")


def test_a_full_disk_is_said_and_survived(play: Any) -> None:
    """Field case 41: a node without space says so, keeps what it acked, and goes on by itself when there is space."""

    async def story(node: Node, owner: Owner) -> None:
        length = await born(node, owner)
        owner.grow(1)
        node.disk.full = True
        assert isinstance(await node.one(owner.append(length)), Unable)
        assert (await node.fence(E1)).position.length == length
        with pytest.raises(OSError, match="no space"):
            await node.replicas.checkpoint()
        assert not node.replicas.healthy
        node.disk.full = False
        assert await node.one(owner.append(length)) == Holds(LIFE, owner.generation, owner.length)
        await node.replicas.checkpoint()
        assert node.replicas.healthy
        await node.reopen()
        assert (await node.fence(E1)).checksum == owner.at(owner.length)

    play(story)


def test_a_wiped_directory_is_another_copy(play: Any) -> None:
    """The copy id is kept with the journal: without it the node is another member and holds nothing."""

    async def story(node: Node, owner: Owner) -> None:
        await born(node, owner)
        old = node.replicas.copy_id
        await node.reopen()
        assert node.replicas.copy_id == old
        (node.root / "replicas" / "journal").unlink()
        node.root = node.root  # the same place
        await node.reopen()
        assert (await node.fence(E1)).position is None
        assert (await node.fence(E1)).copy_id == node.replicas.copy_id

    play(story)


def test_more_than_the_journal_passes_through_it(play: Any) -> None:
    """The ring is used again and again: each lap behind synced files, and all of it is there after a restart."""

    async def story(node: Node, owner: Owner) -> None:
        length = await born(node, owner)
        for _ in range(50):
            owner.grow(1, size=60_000)
            assert await node.one(owner.append(length)) == Holds(LIFE, owner.generation, owner.length)
            length = owner.length
        assert node.replicas.checkpoints.passes >= 3
        await node.reopen()
        answer = await node.fence(E1)
        assert (answer.position.length, answer.checksum) == (length, owner.at(length))

    play(story)


def test_a_transaction_larger_than_the_journal_is_taken(play: Any) -> None:
    """Frames too large for a record are synced in their file and named by one."""

    async def story(node: Node, owner: Owner) -> None:
        length = await born(node, owner)
        owner.grow(1, size=3_000_000)
        end = owner.length
        owner.grow(1)
        answers = await node.say(owner.append(length, end), owner.append(end))
        assert answers == [Holds(LIFE, owner.generation, end), Holds(LIFE, owner.generation, owner.length)]
        await node.reopen()
        assert (await node.fence(E1)).checksum == owner.at(owner.length)

    play(story)


def test_everything_that_arrived_together_is_synced_once(play: Any) -> None:
    """Two hundred objects written at once cost one sync, not two hundred."""

    async def story(node: Node, owner: Owner) -> None:
        node = Node(node.root / "roomy", owner)
        node.journal_bytes = 16 << 20
        await node.open()
        owner.grow(1)
        objects = [ObjectKey("acme", "Room", f"r{i}").id for i in range(200)]
        frames = owner.log()

        def born_as(object_id: str) -> NewBase:
            at = checksum(BaseShape().seed(object_id, LIFE), b"")
            return NewBase(bytes.fromhex(object_id), LIFE, E1, owner.generation, 0, at, (), 0)

        def append_to(object_id: str) -> Append:
            at = checksum(BaseShape().seed(object_id, LIFE), b"")
            return Append(bytes.fromhex(object_id), LIFE, E1, owner.generation, 0, at, frames)

        for message in (born_as, append_to):
            before = node.replicas.syncs
            answers = await node.say(*map(message, objects))
            assert node.replicas.syncs - before == 1
        assert set(answers) == {Holds(LIFE, owner.generation, len(frames))}
        await node.replicas.close()

    play(story)


def test_a_copy_is_fetched_only_as_what_it_is(play: Any) -> None:
    """Log and chunks are given for the generation they belong to, and rot is named, not served."""

    async def story(node: Node, owner: Owner) -> None:
        length = await born(node, owner)
        fetched = await node.replicas.fetch_log(FetchLog(OBJECT, LIFE, owner.generation, 32, length))
        assert fetched == owner.log()[32:]
        with pytest.raises(BlobMissing):
            await node.replicas.fetch_log(FetchLog(OBJECT, LIFE, owner.generation, 0, length + FRAME))
        with pytest.raises(BlobMissing):
            await node.replicas.fetch_log(FetchLog(OBJECT, LIFE, Generation(E2, 0), 0, length))
        await node.one(owner.fold())
        digest = owner.shape.hashes[0]
        numbers = [name for name in node.files() if name.isdecimal()]
        base = node.root / "replicas" / KEY.id / numbers[-1]
        with base.open("r+b") as file:
            file.seek(5000)
            file.write(b"rotten")
        with pytest.raises(Corrupt):
            await node.replicas.fetch_chunk(FetchChunk(OBJECT, LIFE, owner.generation, 0, digest))

    play(story)


def test_a_fold_waits_for_readers(play: Any) -> None:
    """A view holds base and log still; the fold goes on when it is closed."""

    async def story(node: Node, owner: Owner) -> None:
        length = await born(node, owner)
        view = node.replicas.copy(KEY.id)
        assert view is not None
        assert (view.position.length, view.base, view.log(length)) == (length, IMAGE, owner.log())
        (folding,) = node.replicas.take([("owner", owner.fold())])
        interrupted = asyncio.Event()
        view.on_interrupt = interrupted.set
        await interrupted.wait()
        assert not folding.done()
        assert node.replicas.copy(KEY.id) is None
        view.close()
        assert await folding == Holds(LIFE, owner.generation, 0)

    play(story)
