"""A replica on a disk that loses what was not synced: acked is kept, fenced stays fenced, copies are prefixes of logs.

One node, one object, owners one after the other and old ones that go on talking. Between two messages, or in the middle
of any disk operation, the process is killed or the machine loses power; what the next process says is held against what
the earlier ones had answered.
"""

from __future__ import annotations

import asyncio
import random
import struct
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from blake3 import blake3
from simworld.clock import SimClock
from simworld.disk import SimDisk
from simworld.loop import SimLoop
from simworld.process import Process
from simworld.threads import SimWorkers

from domicile.node.replica.replicas import Replicas, Surroundings
from domicile.node.sqlite.birth import IMAGE
from domicile.node.sqlite.checksum import base_hash, checksum, seed
from domicile.node.wire.messages import (
    Append,
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
from domicile.placement.records import FIRST_INCARNATION as LIFE
from domicile.placement.records import Epoch, Generation, ObjectKey, Position

KEY = ObjectKey("acme", "Room", "lobby")
OBJECT = bytes.fromhex(KEY.id)
PAGES = 12
FRAME = 24 + 4096
SEEDS = 60
STEPS = 40


@dataclass
class Line:
    """One generation: what it grew from, its log, and where its transactions end."""

    owner: Epoch
    base: bytes
    log: bytes = b""
    start: int = 0
    ends: list[int] = field(default_factory=lambda: [0])

    @property
    def hashes(self) -> tuple[bytes, ...]:
        return () if self.base == IMAGE else (blake3(self.base).digest(),)

    @property
    def size(self) -> int:
        return 0 if self.base == IMAGE else len(self.base)

    def at(self, length: int) -> bytes:
        return checksum(seed(KEY.id, LIFE, base_hash(self.hashes, self.size)), self.log[:length])


class Truth:
    """All that owners ever wrote."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.lines: dict[Generation, Line] = {}
        self.version = 1
        self.begin(None, 0)

    def begin(self, laid: Generation | None, length: int) -> Generation:
        self.version += 1
        epoch = Epoch(1, self.version)
        generation = Generation(epoch, 0)
        if laid is None:
            self.lines[generation] = Line(epoch, IMAGE)
        else:
            of = self.lines[laid]
            ends = [end for end in of.ends if end <= length]
            self.lines[generation] = Line(epoch, of.base, of.log[:length], length, ends)
        self.newest = generation
        return generation

    def write(self, generation: Generation) -> None:
        line, count = self.lines[generation], self.rng.randint(1, 4)
        line.log = line.log or b"header".ljust(32, b"h")
        for i in range(count):
            last = PAGES if i == count - 1 else 0
            head = struct.pack(">II16s", self.rng.randint(1, PAGES), last, self.rng.randbytes(16))
            line.log += head + self.rng.randbytes(64) * 64
        line.ends.append(len(line.log))

    def rotate(self, generation: Generation) -> Generation:
        """Fold the whole log: the next generation of the same owner."""
        line = self.lines[generation]
        image = bytearray(line.base.ljust(PAGES * 4096, b"\0"))
        for at in range(32, len(line.log), FRAME):
            page = struct.unpack_from(">I", line.log, at)[0]
            image[(page - 1) * 4096 : page * 4096] = line.log[at + 24 : at + FRAME]
        following = Generation(generation.epoch, generation.counter + 1)
        self.lines[following] = Line(line.owner, bytes(image))
        self.newest = following
        return following

    async def fetch_log(self, peer: str, fetch: FetchLog) -> bytes:
        return self.lines[fetch.generation].log[fetch.start : fetch.end]

    async def fetch_chunk(self, peer: str, fetch: FetchChunk) -> bytes:
        return self.lines[fetch.generation].base


class Life:
    """The node's processes one after the other, and what they answered."""

    def __init__(self, number: int) -> None:
        self.rng = random.Random(number)
        self.loop = SimLoop(number)
        self.sync_appends = number % 5 != 0  # without, acks survive kills only
        self.disk = SimDisk(random.Random(number + 1))
        self.disk.make_dir("/data")
        self.disk.sync("/data")
        self.disk.sync("/")
        self.truth = Truth(self.rng)
        self.fence = Epoch(0, 0)
        self.acked: Position | None = None
        self.copy_id: str | None = None
        self.seen = {"holds": 0, "fenced": 0, "kills": 0, "power": 0, "folds": 0, "relabels": 0, "bases": 0}

    async def claim_stands(self, object_id: str, epoch: Epoch) -> bool:
        return epoch == self.truth.newest.epoch

    async def open(self) -> Replicas:
        around = Surroundings(
            loop=self.loop,
            disk=self.disk,
            workers=SimWorkers(self.loop, self.rng, self.disk),
            clock=SimClock(self.loop),
            rng=self.rng,
            source=self.truth,
            claim_stands=self.claim_stands,
            root="/data/replicas",
            lost="/data/lost",
            journal_bytes=160 << 10,
            sync_appends=self.sync_appends,
        )
        return await Replicas.open(around)

    def live(self) -> None:
        """Processes until the steps are used up; each is held against what was answered before."""
        try:
            self.loop.run(self._live())
        finally:
            self.loop.end()

    async def _live(self) -> None:
        steps = STEPS
        while steps > 0:
            many = self.rng.randint(1, 15)
            steps -= many
            await self._run(many, power=self.sync_appends and self.rng.random() < 0.6)
        await self._run(0, power=False)

    async def _run(self, steps: int, *, power: bool) -> None:
        """One process: to its end, or to the disk operation at which it dies."""
        process = Process(self.loop, f"process {self.disk.ops}")
        died = self.loop.create_future()
        last = self.disk.ops + self.rng.randint(5, 150) if steps and self.rng.random() < 0.7 else None

        def strike(ops: int) -> None:
            if last is not None and ops >= last and process.alive:
                self.loop.in_world(self._die, process, power, died)

        self.disk.on_op = strike
        task = process.spawn(self._process(steps))
        await asyncio.wait([task, died], return_when=asyncio.FIRST_COMPLETED)
        self.disk.on_op = None
        if process.alive:
            task.result()
            self._die(process, power, died)

    def _die(self, process: Process, power: bool, died: asyncio.Future[None]) -> None:
        self.seen["power" if power else "kills"] += 1
        process.kill()
        self.disk.crash(power=power)
        died.set_result(None)

    async def _process(self, steps: int) -> None:
        replicas = await self.open()
        assert self.copy_id in (None, replicas.copy_id), "the directory became another copy"
        self.copy_id = replicas.copy_id
        await self._holds_what_it_said(replicas)
        for _ in range(steps):
            await self._step(replicas)
        await self._holds_what_it_said(replicas)
        if self.rng.random() < 0.5:
            await replicas.close()

    async def _holds_what_it_said(self, replicas: Replicas) -> None:
        answer = await replicas.fence(Fence(OBJECT, LIFE, self.fence))
        assert answer.fenced is None or answer.fenced > self.fence, "an older epoch rules"
        if answer.fenced is not None:
            self.fence = answer.fenced  # raised by what was never answered
            answer = await replicas.fence(Fence(OBJECT, LIFE, self.fence))
        if self.acked is not None:
            assert answer.position is not None, f"{self.acked} was acked and nothing is left"
            assert answer.position >= self.acked, f"{self.acked} was acked, {answer.position} is left"
        if answer.stub:
            self.acked = None
        elif answer.position is not None:
            at = answer.position
            line = self.truth.lines[at.generation]
            assert at.length in line.ends, "half a transaction was told"
            assert answer.checksum == line.at(at.length), "no prefix of the generation's log"
            assert answer.hashes == line.hashes
            fetched = await replicas.fetch_log(FetchLog(OBJECT, LIFE, at.generation, 0, at.length))
            assert fetched == line.log[: at.length]
            for index, digest in enumerate(line.hashes):
                chunk = await replicas.fetch_chunk(FetchChunk(OBJECT, LIFE, at.generation, index, digest))
                assert chunk == line.base
            self.acked = max(self.acked or at, at)

    async def _step(self, replicas: Replicas) -> None:
        roll, truth = self.rng.random(), self.truth
        if roll < 0.08:
            laid = self.rng.choice(list(truth.lines))
            if self.acked is None or laid >= self.acked.generation:
                least = self.acked.length if self.acked and laid == self.acked.generation else truth.lines[laid].start
                ends = [end for end in truth.lines[laid].ends if end >= least]
                truth.begin(laid, self.rng.choice(ends))
            return
        if roll < 0.12:
            await self._fence_for(replicas)
            return
        if roll < 0.16:
            await replicas.checkpoint()
            return
        if roll < 0.18 and self.acked is not None:
            if await replicas.let_go(KEY.id, self.acked):
                self.acked = None  # what is gone the manifest has: the copy may begin again at its generation's start
            return
        zombie = self.rng.random() < 0.15
        generation = self.rng.choice(list(truth.lines)) if zombie else truth.newest
        messages = [self._message(generation) for _ in range(self.rng.randint(1, 3))]
        await self._say(replicas, messages)

    async def _say(self, replicas: Replicas, messages: list[Any]) -> None:
        heard: list[tuple[Any, Any]] = []
        all_heard = asyncio.get_running_loop().create_future()

        def hear(message: Any, answer: Any) -> None:
            heard.append((message, answer))
            if len(heard) == len(messages):
                all_heard.set_result(None)

        replicas.take([("owner", message, partial(hear, message)) for message in messages])
        await asyncio.sleep(0)  # one that died in its writing hears nothing
        await all_heard
        for message, said in heard:  # in the order in which it was answered
            self._heard(message, said)

    async def _fence_for(self, replicas: Replicas) -> None:
        epoch = self.truth.newest.epoch
        answer = await replicas.fence(Fence(OBJECT, LIFE, epoch))
        if answer.fenced is None:
            self.fence = max(self.fence, epoch)
            if answer.position is not None and answer.position.generation.epoch < epoch:
                await self._say(replicas, [self._message(answer.position.generation)])  # the fenced one goes on

    def _message(self, generation: Generation) -> Any:
        truth, rng = self.truth, self.rng
        line = truth.lines[generation]
        epoch = line.owner
        roll = rng.random()
        if roll < 0.5:
            if generation == truth.newest:
                truth.write(generation)
            begin = rng.choice(line.ends[-4:])
            end = len(line.log) if rng.random() < 0.8 else max(begin, len(line.log) - FRAME)
            if end <= 32:
                end = begin
            return Append(OBJECT, LIFE, epoch, generation, begin, line.at(begin), line.log[begin:end])
        if roll < 0.65 and line.start and generation.counter == 0:
            sources = [
                g for g, of in truth.lines.items() if g < generation and line.log[: line.start] == of.log[: line.start]
            ]
            source = rng.choice(sources)
            of = truth.lines[source]
            if of.hashes == line.hashes:
                return Relabel(OBJECT, LIFE, epoch, source, line.start, line.at(line.start), generation)
        if roll < 0.8 and line.log and generation == truth.newest and line.ends[-1] == len(line.log):
            to = truth.rotate(generation)
            new = truth.lines[to]
            length, at = len(line.log), line.at(len(line.log))
            dirty = (0,)
            return Fold(OBJECT, LIFE, epoch, generation, length, at, to, new.hashes, new.size, dirty)
        return NewBase(OBJECT, LIFE, epoch, generation, line.start, line.at(line.start), line.hashes, line.size)

    def _heard(self, message: Any, answer: Any) -> None:
        if isinstance(answer, Holds):
            assert message.epoch >= self.fence, f"epoch {message.epoch} was taken, {self.fence} had been answered"
            self.fence = max(self.fence, message.epoch)
            at = Position(answer.incarnation, answer.generation, answer.length)
            assert self.acked is None or at >= self.acked, f"{self.acked} was acked before {at}"
            self.acked = at
            self.seen["holds"] += 1
            self.seen["folds"] += isinstance(message, Fold)
            self.seen["relabels"] += isinstance(message, Relabel)
            self.seen["bases"] += isinstance(message, NewBase)
        elif isinstance(answer, FencedBy):
            assert answer.epoch > message.epoch
            self.seen["fenced"] += 1
        else:
            assert isinstance(answer, Elsewhere | Unable)


def test_what_a_replica_said_survives_kills_and_power_cuts() -> None:
    """Field case 31: nothing acked is lost, no older epoch rules, no position falls, every copy is a prefix of a
    generation's log."""
    seen: dict[str, int] = {}
    for number in range(SEEDS):
        life = Life(number)
        try:
            life.live()
        except AssertionError as error:
            pytest.fail(f"seed {number}: {error}")
        for name, count in life.seen.items():
            seen[name] = seen.get(name, 0) + count
    assert all(count > 10 for count in seen.values()), seen
