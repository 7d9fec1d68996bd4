"""Where a call goes: to its region, and there one hop to the node that is, or is to be, the object's home (PROTOCOLS
section 4).

A holder once found is remembered for `HOLDER_CACHE_SECS` and dropped when it says `not_home`, departs or does not
answer. A hop budget travels with the call and is never refilled, so no call circles. A forwarded call is sent again
only when it cannot have run, or when running it again does no harm: under an idempotency key, or to read.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from domicile.errors import DomicileError, NoSuchClass, NotHome, NotServing, OutcomeUnknown
from domicile.node.call import CallPath
from domicile.node.errors import PeerBusy, PeerGone
from domicile.node.host import Host
from domicile.node.reads import ReplicaReads
from domicile.node.residents import Residents
from domicile.node.routing.crossing import Crossing, Twice
from domicile.node.suspects import Suspects
from domicile.node.values import Answer, Call
from domicile.node.wire.messages import Hops
from domicile.placement.admission import Admission
from domicile.placement.records import NodeRow, ObjectKey
from domicile.registry import Registry

RESOLUTIONS_MAX = 3
HOLDERS_MAX = 200_000


class Router:
    """Resolves calls. `path` runs those whose home is here."""

    def __init__(
        self,
        host: Host,
        registry: Registry,
        residents: Residents,
        path: CallPath,
        suspects: Suspects,
        crossing: Crossing,
        reads: ReplicaReads | None,
        admission: Callable[[], Admission],
    ) -> None:
        self._host = host
        self._registry = registry
        self._residents = residents
        self._path = path
        self._suspects = suspects
        self._crossing = crossing
        self._reads = reads
        self._admission = admission
        self._holders: OrderedDict[str, tuple[str, float]] = OrderedDict()

    async def call(self, call: Call, hops: Hops) -> Answer:
        """Raises errors of `domicile.errors` only; each says whether the call ran."""
        if not hops.regions:
            return await self._in_region(call, hops)
        if self._known_here(call.key.id):
            try:
                return await self._in_region(call, hops)
            except NotHome as error:
                if "region" not in error.extra:
                    raise
        return await self._crossing.ask(
            call.key,
            await self._crossing.homes.of(call.key),
            lambda: self._in_region(call, hops),
            lambda address: self._across(address, call),
            self._twice(call),
        )

    async def _across(self, address: str, call: Call) -> Answer:
        """At another region's ingress, which has one hop between its nodes."""
        if self._host.peers is None:
            raise NotServing("this node cannot reach other regions: set PEER_LISTEN")
        return await self._host.peers.call(address, call, Hops(0, 1), call.deadline - self._host.clock.monotonic())

    def _twice(self, call: Call) -> Twice:
        return "reads" if self._only_reads(call) else "harmful" if call.idempotency_key is None else "keyed"

    def _known_here(self, object_id: str) -> bool:
        """Awake here, or lately found on another node of this region."""
        if self._residents.find(object_id) is not None:
            return True
        held = self._holders.get(object_id)
        return held is not None and held[1] > self._host.clock.monotonic()

    async def _in_region(self, call: Call, hops: Hops) -> Answer:
        lost: list[DomicileError] = []
        try:
            return await self._resolved(call, hops, lost)
        except DomicileError as error:
            # That it did not run there says nothing of the attempt before, whose answer was lost.
            if lost and error.outcome == "not_run" and not self._only_reads(call):
                raise lost[0] from error
            raise

    async def _resolved(self, call: Call, hops: Hops, lost: list[DomicileError]) -> Answer:
        """The same, for the last attempt alone; `lost` gets those of which nobody knows whether they ran."""
        left_out: set[str] = set()
        for _ in range(RESOLUTIONS_MAX):
            node = self._elsewhere(call.key, left_out, hops)
            if node is None:
                try:
                    return await self._path.call(call, may_forward=hops.nodes > 0)
                except NotHome as error:
                    if "region" in error.extra:
                        raise
                    node = self._named(call.key, error, left_out, hops)
                    if node is None:
                        raise
            read = await self._read_here(call, node)
            if read is not None:
                return read
            try:
                return await self._forward(node, call, hops)
            except _SendAgain as again:
                left_out.add(node.node_id)
                self._holders.pop(call.key.id, None)
                last = again.error
                if isinstance(last, NotHome):
                    self._named(call.key, last, left_out, hops)  # remembered
                if last.outcome == "unknown":
                    lost.append(last)
        raise last

    def departed(self, node_id: str) -> None:
        """The node's row is gone: whoever was remembered to live there is looked for anew."""
        for object_id in [o for o, (holder, _) in self._holders.items() if holder == node_id]:
            del self._holders[object_id]

    def elsewhere(self, key: ObjectKey) -> NodeRow | None:
        """The remembered holder, for what is not a call."""
        return self._elsewhere(key, set(), Hops())

    def _elsewhere(self, key: ObjectKey, left_out: set[str], hops: Hops) -> NodeRow | None:
        """A node to forward to at once; None: try here."""
        if not hops.nodes or self._residents.find(key.id) is not None:
            return None
        held = self._holders.get(key.id)
        if held is not None and held[1] > self._host.clock.monotonic() and held[0] not in left_out:
            return self._host.nodes.get(held[0])
        if key.cls not in self._registry.classes:
            return self._host.nodes.choose_home(key.id, key.cls, {*left_out, self._host.nodes.me})
        return None

    def _named(self, key: ObjectKey, error: NotHome, left_out: set[str], hops: Hops) -> NodeRow | None:
        """Where the refusal says the object is; a node that is leaving sends callers to one that stays."""
        if not hops.nodes:
            return None
        node_id = error.extra.get("node")
        if node_id is None or (node_id in left_out and self._residents.leaving):
            return self._host.nodes.choose_home(key.id, key.cls, {*left_out, self._host.nodes.me})
        if node_id in left_out or node_id == self._host.nodes.me:
            return None
        row = self._host.nodes.get(node_id)
        if row is not None:
            self._remember(key.id, node_id)
        return row

    def _remember(self, object_id: str, node_id: str) -> None:
        self._holders[object_id] = (node_id, self._host.clock.monotonic() + self._host.config.holder_cache_secs)
        self._holders.move_to_end(object_id)
        while len(self._holders) > HOLDERS_MAX:
            self._holders.popitem(last=False)

    async def _read_here(self, call: Call, owner: NodeRow) -> Answer | None:
        """By a copy kept here, if the call only reads and nothing it came from may have written (section 8)."""
        if self._reads is None or call.chain or not owner.peer or call.key.cls not in self._registry.classes:
            return None
        spec = self._registry.find(call.key.cls)
        method = spec.methods.get(call.method)
        if method is None or not method.is_read:
            return None
        answer = await self._reads.read(call, spec, method, owner)
        if answer is not None:
            self._admission().check()
        return answer

    async def _forward(self, node: NodeRow, call: Call, hops: Hops) -> Answer:
        """One hop. Raises what the other node raised, or _SendAgain when the call may be resolved anew."""
        peers = self._host.peers
        left = call.deadline - self._host.clock.monotonic()
        if peers is None or not node.peer:
            raise NotServing(f"the object lives on node {node.node_id}, which this node cannot reach")
        try:
            answer = await peers.call(node.peer, call, Hops(0, hops.nodes - 1), left)
            answer.node = answer.node or node.node_id
            return answer
        except PeerBusy as error:
            raise _SendAgain(NotServing(str(error))) from error
        except PeerGone as error:
            self._suspects.suspect(node.node_id)
            if not error.sent:
                raise _SendAgain(NotServing(f"node {node.node_id} does not answer")) from error
            unknown = OutcomeUnknown(f"node {node.node_id} gave no answer")
            if call.idempotency_key is not None or self._only_reads(call):
                raise _SendAgain(unknown) from error
            raise unknown from error
        except NotHome as error:
            if "region" in error.extra:
                self._holders.pop(call.key.id, None)
                raise
            raise _SendAgain(error) from error

    def _only_reads(self, call: Call) -> bool:
        try:
            return self._registry.find(call.key.cls).method(call.method).is_read
        except (NoSuchClass, DomicileError):
            return False


class _SendAgain(Exception):
    """The call did not run there, or may run twice: resolve it anew; `error` is its answer when nothing else comes."""

    def __init__(self, error: DomicileError) -> None:
        super().__init__(error.detail)
        self.error = error
