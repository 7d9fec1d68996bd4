"""What is measured of the cluster: durable writes and reads beside other things that keep three synced copies."""

from dataclasses import dataclass
from typing import ClassVar

from bench.cases import MANY, SHARED, Case, FirstCall, Throughput
from bench.load import EVERYWHERE, HOMES, OTHER, OWNER, Answers, Load
from bench.peers import Peer
from bench.peers.base import HttpInstance
from bench.peers.domicile_cluster import ClusterInstance, SleepyCluster
from bench.process import BenchError
from bench.rig import Rig, Sample
from bench.targets import OURS, Target

NOTES = (
    "Client, three servers of each peer and one disk share this machine's cores. The peers that are not being measured"
    " are up and idle. On three machines a call gains a network's way and loses the competition.",
    "baseline and workerd are one server with one copy, as in the run of one node.",
    "etcd and NATS have no objects: where 200 are named, they show the same put and publish as for one.",
    "CPU per call is of the whole process tree of one server of that role: owner, replica (of two), etcd beside"
    " Domicile; leader and follower (of two) elsewhere. `node` is one of three that are all both.",
)

LOST = "lost"  # the group of instances that a node is taken from
ASLEEP = "asleep"
SLEEP_SECONDS = 30.0

TARGETS = (
    Target("increment-1obj-1conn-p50", "etcd", 1.0),
    Target("increment-1obj-64conn", "etcd", 0.8),
    Target("increment-1obj-64conn", "workerd", 4.0),
    Target("increment-200obj-64conn", "etcd", 0.7),
    Target("increment-200obj-64conn-one-owner", "etcd", 0.7),
    Target("read-1obj-64conn", "workerd", 1.5),
    Target("peek-1obj-64conn-everywhere", OURS, None, "peek-1obj-64conn"),
    Target("replica-lost", OURS, None, "replicas-there"),
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


@dataclass(frozen=True)
class Cold(FirstCall):
    """The first increment of objects nobody has called before: claimed in etcd, synced by both replicas."""

    def takes(self, peer: Peer) -> bool:
        return peer.many_nodes


@dataclass(frozen=True)
class WakeWhereItSlept(Case):
    """The first increment of objects that went to sleep for idleness at the node that is called, one after the other.

    Of a cluster of its own, where objects sleep after a second.
    """

    def takes(self, peer: Peer) -> bool:
        return peer.many_nodes

    def prepare(self, rig: Rig, peer: Peer) -> None:
        rig.instance(SleepyCluster(), ASLEEP)

    def measure(self, rig: Rig, peer: Peer, turn: int) -> Sample:
        target = rig.instance(SleepyCluster(), ASLEEP)
        assert isinstance(target, ClusterInstance)
        count = rig.settings.count(100, 20)
        load = Load("increment", "sleeper{}", objects=count, count=count)
        if (made := rig.drive(target, load)).errors:
            raise BenchError(f"an object to be put to sleep answered {made.error}")
        target.server.wait_until(lambda: target.residents() == 0, SLEEP_SECONDS)
        cost = rig.run(target, load)
        if turn == rig.settings.rounds - 1:
            rig.discard(peer, ASLEEP)
        return cost.sample(self.key, peer, turn, cost.answers.p50_us)


@dataclass(frozen=True)
class ReplicaLost(Latency):
    """The same write before and after one of the other two nodes is gone for good: no third node can take its place."""

    lost: bool = False

    def prepare(self, rig: Rig, peer: Peer) -> None:
        target = rig.instance(peer, LOST)
        assert isinstance(target, ClusterInstance)
        if self.lost:
            target.lose_last_node()
        target.call("one", "increment")

    def measure(self, rig: Rig, peer: Peer, turn: int) -> Sample:
        target, length = rig.instance(peer, LOST), rig.settings
        load = Load("increment", "one", conns=self.conns, seconds=length.seconds, warm=length.warm)
        cost = rig.run(target, load)
        return cost.sample(self.key, peer, turn, self._value(cost.answers))


def every_case() -> list[Case]:
    many = f"increment, {MANY} objects, 64 connections"
    peek = "read of a snapshot, 1 object, 64 connections"
    one = "increment, 1 object, 1 connection, p50"
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
        Cold("cold-first-call", "first increment of a new object"),
        WakeWhereItSlept("wake-where-it-slept", "increment that wakes an object where it slept"),
        ReplicaLost("replicas-there", f"{one}, both replicas there", "increment", 1, 1, OWNER, True),
        ReplicaLost("replica-lost", f"{one}, one replica lost", "increment", 1, 1, OWNER, True, True),
    ]
