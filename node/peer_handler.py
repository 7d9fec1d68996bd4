"""What this node does for another: keeps its copies, answers its fences and questions, runs the calls it forwards."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec

from domicile.errors import BadRequest, NotServing
from domicile.node.errors import BlobMissing, Fenced
from domicile.node.host import Host
from domicile.node.peering import Replicas, Request
from domicile.node.residency import Phase, Residency
from domicile.node.residents import Residents
from domicile.node.routing.router import Router
from domicile.node.telemetry import Counter
from domicile.node.values import Answer, Call
from domicile.node.wire.hello import Speaker
from domicile.node.wire.messages import (
    Answered,
    AskWatermark,
    Dropped,
    Fence,
    FenceAnswer,
    FetchChunk,
    FetchLog,
    Hops,
    Said,
    Unable,
    Watermark,
)
from domicile.placement.admission import Admission


class PeerHandler:
    """Behind the peer listener. `requests` are those asked by name."""

    def __init__(
        self,
        host: Host,
        residents: Residents,
        router: Router,
        requests: Mapping[str, Request],
        admission: Callable[[], Admission],
    ) -> None:
        self._host = host
        self._admission = admission
        if host.replicas is not None:
            host.replicas.on_synced(host.telemetry.replica_sync_seconds.observe)
        self._residents = residents
        self._router = router
        self._requests = requests
        self._appends: dict[type, Counter] = {}

    def said(self, messages: Sequence[tuple[Speaker, Said, Callable[[Answered], None]]]) -> None:
        """One batch: appends and their like to the copies in one sync pass, questions answered at once."""
        batch = []
        for speaker, message, heard in messages:
            if isinstance(message, AskWatermark):
                heard(self._watermark(message))
            elif self._host.replicas is None:
                heard(Unable("this node keeps no copies"))
            else:
                batch.append((speaker.peer, message, partial(self._counted, heard)))
        if batch:
            assert self._host.replicas is not None
            self._host.replicas.take(batch)

    async def fence(self, fence: Fence) -> FenceAnswer:
        """A fence that reaches the home ends the residency, unflushed (section 7)."""
        replicas = self._replicas()
        residency = self._residents.find(fence.object_id.hex())
        if residency is not None and residency.epoch < fence.epoch:
            residency.end(Fenced(f"{residency.key}: epoch {fence.epoch} has claimed it"))
        return await replicas.fence(fence)

    async def fetch_log(self, fetch: FetchLog) -> bytes:
        """Of the owner's file if the object is awake here, else of the copy kept here. Raises BlobMissing."""
        residency = self._awake(fetch.object_id)
        if residency is None:
            return await self._replicas().fetch_log(fetch)
        log = residency.log
        if (log.incarnation, log.generation) != (fetch.incarnation, fetch.generation) or fetch.end > log.length:
            raise BlobMissing(f"{residency.key}: its log is at {log.position}")
        return log.read(fetch.start, fetch.end)

    async def fetch_chunk(self, fetch: FetchChunk) -> bytes:
        """Likewise. Raises BlobMissing."""
        residency = self._awake(fetch.object_id)
        if residency is None:
            return await self._replicas().fetch_chunk(fetch)
        log = residency.log
        hashes = log.base.hashes
        same = (log.incarnation, log.generation) == (fetch.incarnation, fetch.generation)
        if not same or fetch.index >= len(hashes) or hashes[fetch.index] != fetch.hash:
            raise BlobMissing(f"{residency.key}: its base is another")
        if (data := self._host.cache.get(fetch.hash)) is not None:
            return data
        return await residency.read_chunk(fetch.index)

    async def dropped(self, dropped: Dropped) -> None:
        if self._host.replicas is not None:
            await self._host.replicas.dropped(dropped)

    async def call(self, call: Call, hops: Hops) -> Answer:
        answer = await self._router.call(call, hops)
        answer.node = answer.node or self._host.nodes.me  # another region knows an address only
        return answer

    async def ask(self, method: str, body: bytes) -> bytes:
        """Raises BadRequest for a request there is not."""
        request = self._requests.get(method)
        if request is None:
            raise BadRequest(f"no request {method!r} between nodes")
        try:
            return await request(body)
        except msgspec.MsgspecError as error:
            raise BadRequest(f"{method}: {error}") from error

    def _watermark(self, asked: AskWatermark) -> Watermark:
        """How far callers were answered, in the present generation. None from who may not serve: the question may have
        waited here while this process was stopped, and another has been the home since (section 3)."""
        residency = self._owner(asked.object_id)
        if residency is None or self._admission().remaining() <= 0:
            return Watermark(None)
        log = residency.log
        length = residency.flights.landed - log.mark_at(0)
        if length < 0:
            return Watermark(None)
        return Watermark(log.generation, length, log.checksum(length), residency.epoch)

    def _awake(self, object_id: bytes) -> Residency | None:
        """Also one about to end: members may still be catching up, and it has its files until it is over."""
        residency = self._residents.find(object_id.hex())
        return residency if residency is not None and residency.phase is not Phase.OVER else None

    def _owner(self, object_id: bytes) -> Residency | None:
        residency = self._residents.find(object_id.hex())
        return residency if residency is not None and residency.serving else None

    def _replicas(self) -> Replicas:
        if self._host.replicas is None:
            raise NotServing("this node keeps no copies")
        return self._host.replicas

    def _counted(self, heard: Callable[[Answered], None], answer: Answered) -> None:
        kind = type(answer)
        counter = self._appends.get(kind)
        if counter is None:
            counter = self._appends[kind] = self._host.telemetry.replica_appends.of(kind.__name__.lower())
        counter.add()
        heard(answer)
