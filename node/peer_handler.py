"""What this node does for another: keeps its copies, answers its fences and questions, runs the calls it forwards."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

import msgspec

from domicile.errors import BadRequest, NotServing
from domicile.node.errors import BlobMissing, Fenced
from domicile.node.host import Host
from domicile.node.peering import Replicas, Request
from domicile.node.residency import Phase, Residency
from domicile.node.residents import Residents
from domicile.node.routing.router import Router
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

    def said(self, messages: Sequence[tuple[Speaker, Said]]) -> Sequence[asyncio.Future[Answered]]:
        """One batch: appends and their like to the copies in one sync pass, questions answered at once."""
        answers: list[asyncio.Future[Answered] | None] = [None] * len(messages)
        places, batch = [], []
        for at, (speaker, message) in enumerate(messages):
            if isinstance(message, AskWatermark):
                answers[at] = self._done(self._watermark(message))
            elif self._host.replicas is None:
                answers[at] = self._done(Unable("this node keeps no copies"))
            else:
                places.append(at)
                batch.append((speaker.peer, message))
        if batch:
            assert self._host.replicas is not None
            for at, answer in zip(places, self._host.replicas.take(batch), strict=True):
                answers[at] = answer
                answer.add_done_callback(self._count)
        return [answer for answer in answers if answer is not None]

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

    def _count(self, answer: asyncio.Future[Answered]) -> None:
        failed = answer.cancelled() or answer.exception() is not None
        outcome = "failed" if failed else type(answer.result()).__name__.lower()
        self._host.telemetry.replica_appends.of(outcome).add()

    def _done(self, answer: Answered) -> asyncio.Future[Answered]:
        done: asyncio.Future[Answered] = self._host.loop.create_future()
        done.set_result(answer)
        return done
