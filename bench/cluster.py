"""What is measured of the cluster: durable writes and reads beside other things that keep three synced copies."""

from dataclasses import dataclass
from typing import ClassVar

from bench.cases import MANY, SHARED, Case, Throughput
from bench.load import EVERYWHERE, HOMES, OTHER, OWNER, Answers
from bench.peers import Peer
from bench.peers.base import HttpInstance
from bench.process import BenchError
from bench.rig import Rig
from bench.targets import OURS, Target

NOTES = (
    "Client, three servers of each peer and one disk share this machine's cores. The peers that are not being measured"
    " are up and idle. On three machines a call gains a network's way and loses the competition.",
    "baseline and workerd are one server with one copy, as in the run of one node.",
    "etcd and NATS have no objects: where 200 are named, they show the same put and publish as for one.",
    "CPU per call is of the whole process tree of one server of that role: owner, replica (of two), etcd beside"
    " Domicile; leader and follower (of two) elsewhere. `node` is one of three that are all both.",
)

TARGETS = (
    Target("increment-1obj-1conn-p50", "etcd", 1.0),
    Target("increment-1obj-64conn", "etcd", 0.8),
    Target("increment-1obj-64conn", "workerd", 4.0),
    Target("increment-200obj-64conn", "etcd", 0.7),
    Target("increment-200obj-64conn-one-owner", "etcd", 0.7),
    Target("read-1obj-64conn", "workerd", 1.5),
    Target("peek-1obj-64conn-everywhere", OURS, None, "peek-1obj-64conn"),
)


@dataclass(frozen=True)
class Steady(Throughput):
    """A steady closed loop that also says which nodes are called. `ours_only`: the question means nothing elsewhere."""

    ours_only: bool = False

    def takes(self, peer: Peer) -> bool:
        if self.method != "increment" and not peer.reads:
            return False
        return peer.many_nodes or not self.ours_only

    @property
    def _name(self) -> str:
        if self.objects == 1:
            return "one"
        return "spread{}" if self.at == HOMES else "many{}"

    def prepare(self, rig: Rig, peer: Peer) -> None:
        """Every object exists, lives where the load expects it, and is awake."""
        target = rig.instance(peer, SHARED)
        if not isinstance(target, HttpInstance):
            return
        for number in range(self.objects):
            node = number % target.nodes if self.at == HOMES else 0
            target.call(self._name.replace("{}", str(number)), "increment", node=node)


@dataclass(frozen=True)
class Latency(Steady):
    """The same, compared by its median latency."""

    unit: ClassVar[str] = "us"
    higher_is_better: ClassVar[bool] = False

    def _value(self, answers: Answers) -> float:
        if not answers.kept:
            raise BenchError("nothing was answered")
        return answers.p50_us


def every_case() -> list[Case]:
    many = f"increment, {MANY} objects, 64 connections"
    peek = "read of a snapshot, 1 object, 64 connections"
    return [
        Latency("increment-1obj-1conn-p50", "increment, 1 object, 1 connection, p50", "increment", 1, 1),
        Steady("increment-1obj-64conn", "increment, 1 object, 64 connections", "increment", 1, 64),
        Steady("increment-200obj-64conn", f"{many}, homes spread", "increment", MANY, 64, HOMES),
        Steady("increment-200obj-64conn-one-owner", f"{many}, one owner", "increment", MANY, 64, OWNER),
        Steady("increment-1obj-64conn-one-hop", "the same through another node", "increment", 1, 64, OTHER, True),
        Steady("read-1obj-64conn", "read at the owner, 1 object, 64 connections", "read", 1, 64),
        Steady("peek-1obj-64conn", f"{peek}, at the owner", "peek", 1, 64, OWNER, True),
        Steady("peek-1obj-64conn-replica", f"{peek}, at one replica", "peek", 1, 64, OTHER, True),
        Steady("peek-1obj-64conn-everywhere", f"{peek}, at all three nodes", "peek", 1, 64, EVERYWHERE, True),
    ]
