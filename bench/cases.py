"""What is measured. Every case is measured for one peer at a time, in turn, round after round."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from bench.load import OWNER, Answers, Load
from bench.peers import Peer
from bench.process import BenchError
from bench.rig import Rig, Sample

MANY = 200
SMALL_KIB, LARGE_KIB = 52, 65_400  # of ballast: with tables and overhead, databases of 64 KiB and 64 MiB
RESIDENTS = 1000
SHARED = "shared"  # the group of instances that all throughput cases use


@dataclass(frozen=True)
class Case(ABC):
    """One question. `higher_is_better` says what a ratio above 1 means."""

    key: str
    title: str
    unit: ClassVar[str] = "us"
    higher_is_better: ClassVar[bool] = False

    def takes(self, peer: Peer) -> bool:
        return True

    def prepare(self, rig: Rig, peer: Peer) -> None:
        """Before the first round: the peer runs."""
        rig.instance(peer, SHARED)

    @abstractmethod
    def measure(self, rig: Rig, peer: Peer, turn: int) -> Sample: ...


@dataclass(frozen=True)
class Throughput(Case):
    """A steady closed loop of one method."""

    method: str
    objects: int
    conns: int
    at: str = OWNER
    unit: ClassVar[str] = "/s"
    higher_is_better: ClassVar[bool] = True

    @property
    def _name(self) -> str:
        return "one" if self.objects == 1 else "many{}"

    def prepare(self, rig: Rig, peer: Peer) -> None:
        """Every object exists and is awake before the clock starts."""
        everyone_once = Load("increment", self._name, objects=self.objects, count=self.objects)
        rig.drive(rig.instance(peer, SHARED), everyone_once)

    def measure(self, rig: Rig, peer: Peer, turn: int) -> Sample:
        target, length = rig.instance(peer, SHARED), rig.settings
        counted = self.method == "increment" and self.objects == 1
        before = target.increments() if counted else 0
        load = Load(
            *(self.method, self._name, self.objects, 0, self.conns, length.seconds, length.warm),
            at=self.at,
        )
        cost = rig.run(target, load)
        if counted and not cost.answers.errors:
            ran = target.increments() - before
            if ran != cost.answers.answered:
                raise BenchError(f"{cost.answers.answered} increments were answered and {ran} were counted")
        return cost.sample(self.key, peer, turn, self._value(cost.answers))

    def _value(self, answers: Answers) -> float:
        return answers.rate


@dataclass(frozen=True)
class FirstCall(Case):
    """The first increment of objects nobody has called before, one after the other."""

    def measure(self, rig: Rig, peer: Peer, turn: int) -> Sample:
        count = rig.settings.count(200, 50)
        load = Load("increment", "new{}", objects=count, first=turn * count, count=count)
        cost = rig.run(rig.instance(peer, SHARED), load)
        return cost.sample(self.key, peer, turn, cost.answers.p50_us)


@dataclass(frozen=True)
class Wake(Case):
    """The first call to objects that slept while the node was down, one after the other."""

    method: str
    kib: int
    lose_local_files: bool = False

    @property
    def _group(self) -> str:
        return f"ballast{self.kib}"

    def _load(self, rig: Rig, method: str) -> Load:
        count = rig.settings.count(20, 5) if self.kib == SMALL_KIB else rig.settings.count(3, 1)
        return Load(method, "heavy{}", objects=count, count=count, ballast=True)

    def takes(self, peer: Peer) -> bool:
        return peer.restores_from_store or not self.lose_local_files

    def prepare(self, rig: Rig, peer: Peer) -> None:
        target = rig.http_instance(peer, self._group)
        load = self._load(rig, "increment")
        for number in range(load.objects):
            if target.call(f"heavy{number}", "read", ballast=True) == 0:
                target.fill(f"heavy{number}", self.kib)
        if (made := rig.drive(target, load)).errors:
            raise BenchError(f"a filled object answered {made.error}")
        rig.settle()

    def measure(self, rig: Rig, peer: Peer, turn: int) -> Sample:
        target = rig.http_instance(peer, self._group)
        before = target.call("heavy0", "read", ballast=True)
        target.restart(self.lose_local_files)
        cost = rig.run(target, self._load(rig, self.method))
        after = target.call("heavy0", "read", ballast=True)
        if not cost.answers.errors and after != before + (self.method == "increment"):
            raise BenchError(f"an object went to sleep with {before} and woke with {after}")
        return cost.sample(self.key, peer, turn, cost.answers.p50_us)


@dataclass(frozen=True)
class Memory(Case):
    """Growth of the server's resident memory by 1,000 awake objects, each incremented once."""

    unit: ClassVar[str] = "KiB"

    def takes(self, peer: Peer) -> bool:
        return peer.has_objects

    def measure(self, rig: Rig, peer: Peer, turn: int) -> Sample:
        group = f"memory{turn}"
        try:
            target = rig.http_instance(peer, group)
            rig.drive(target, Load("increment", "warm", conns=8, count=500))
            rig.settle()
            empty = target.server.rss_bytes()
            load = Load("increment", "resident{}", objects=RESIDENTS, count=RESIDENTS, conns=8)
            answers = rig.drive(target, load)
            grown = target.server.rss_bytes() - empty
        finally:
            rig.discard(peer, group)
        return Sample(
            *(self.key, peer.name, turn, grown / RESIDENTS / 1024),
            answered=answers.answered,
            errors=answers.errors,
            error=answers.error,
        )


def _throughput() -> list[Case]:
    cases: list[Case] = []
    for method in ("increment", "read"):
        for objects in (1, MANY):
            for conns in (1, 64):
                key = f"{method}-{objects}obj-{conns}conn"
                title = f"{method}, {objects} object{'s' * (objects > 1)}, {conns} connection{'s' * (conns > 1)}"
                cases.append(Throughput(key, title, method, objects, conns))
    return cases


def every_case() -> list[Case]:
    return [
        *_throughput(),
        FirstCall("first-call", "first increment of a new object"),
        Wake("wake-64k", "read that wakes a sleeping 64 KiB object", "read", SMALL_KIB),
        Wake("wake-64m", "read that wakes a sleeping 64 MiB object", "read", LARGE_KIB),
        Wake("wake-write-64m", "increment that wakes a sleeping 64 MiB object", "increment", LARGE_KIB),
        Wake("restore-64k", "read that restores 64 KiB from the blob store", "read", SMALL_KIB, True),
        Wake("restore-64m", "read that restores 64 MiB from the blob store", "read", LARGE_KIB, True),
        Memory("memory", f"memory per awake object, of {RESIDENTS:,}"),
    ]
