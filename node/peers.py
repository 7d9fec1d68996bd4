"""The client leg to other nodes (PROTOCOLS sections 4, 5 and 7): appends, calls, fences, chunks.

Per peer address up to three connections, dialled when first needed and kept: one for appends and watermark questions,
in order and within a window; one for calls and requests; one for chunks and logs. Nothing is ever sent twice. A
question whose connection is lost, or whose time is up, fails with PeerGone, which tells whether it can have been heard;
the next one dials anew, after a failed dial not before its backoff is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import cast

from domicile.errors import BodyTooLarge
from domicile.node.errors import PeerBusy, PeerGone
from domicile.node.values import Answer, Call
from domicile.node.wire.dialed import Dialed, Heard, settle
from domicile.node.wire.hello import Dialing, Lane
from domicile.node.wire.messages import (
    Answered,
    Ask,
    Dropped,
    Fence,
    FenceAnswer,
    FetchChunk,
    Fetched,
    FetchLog,
    Hops,
    Question,
    Reply,
    Request,
    Returned,
    Said,
    weight,
)
from domicile.node.wire.service import forwarded, outcome, strange, usable
from domicile.node.wire.wiring import Wiring

FETCH_SECS = 10.0
DROP_SECS = 5.0
LAST_ANSWERS_SECS = 1.0


class Peers:
    """All connections this node dials. `peer` is always a "host:port" from a node's row."""

    def __init__(self, wiring: Wiring) -> None:
        self._wiring = wiring
        self._links: dict[tuple[str, Lane], Link] = {}
        self._departing: dict[Link, None] = {}
        self._closed = False

    def say(self, peer: str, message: Said, copy_id: str = "") -> asyncio.Future[Answered]:
        """Put on the append stream with the rest of this turn's; one peer hears what it is told in this order.

        With a `copy_id` only the node that has that copy is told, so that an answer is an answer of that copy. The
        future fails with PeerGone, or with PeerBusy: 4 MiB are unanswered and 16 MiB wait behind them. It need not be
        awaited. Raises BodyTooLarge for a message that is too large to travel.
        """
        future: asyncio.Future[Reply] = self._wiring.loop.create_future()
        self._link(peer, "append").connection().put(message, self._weighed(message), partial(settle, future), copy_id)
        return cast("asyncio.Future[Answered]", future)  # the append lane lets nothing else through

    def tell(
        self, peer: str, message: Said, copy_id: str, heard: Callable[[Answered | PeerGone | PeerBusy], None]
    ) -> None:
        """As `say`; what would come of the future is told to `heard`, once, perhaps before this returns."""
        heard_all = cast("Heard", heard)  # as above
        self._link(peer, "append").connection().put(message, self._weighed(message), heard_all, copy_id)

    async def fence(self, peer: str, fence: Fence, secs: float) -> FenceAnswer:
        """Raises PeerGone, also when the peer refuses."""
        reply = usable(await self._request(peer, "call", fence, secs))
        if not isinstance(reply, FenceAnswer):
            raise strange(reply)
        return reply

    async def fetch_log(self, peer: str, fetch: FetchLog, secs: float = FETCH_SECS) -> bytes:
        """Raises BlobMissing, and PeerGone, also when the peer refuses."""
        return _data(usable(await self._request(peer, "bulk", fetch, secs)))

    async def fetch_chunk(self, peer: str, fetch: FetchChunk, secs: float = FETCH_SECS) -> bytes:
        """Raises BlobMissing, and PeerGone, also when the peer refuses."""
        return _data(usable(await self._request(peer, "bulk", fetch, secs)))

    async def drop(self, peer: str, dropped: Dropped, secs: float = DROP_SECS) -> None:
        """Returns when the peer has dropped its copy. Raises PeerGone, also when the peer refuses."""
        usable(await self._request(peer, "call", dropped, secs))

    async def call(self, peer: str, call: Call, hops: Hops, secs: float) -> Answer:
        """Forward a call. Raises PeerGone, PeerBusy, and the peer's error as it raised it."""
        request = forwarded(call, hops, self._wiring.clock.monotonic())
        reply = outcome(await self._request(peer, "call", request, secs))
        if not isinstance(reply, Returned):
            raise strange(reply)
        return Answer(reply.body, reply.epoch, reply.served_by, reply.node)

    async def ask(self, peer: str, method: str, body: bytes, secs: float) -> bytes:
        """Raises PeerGone, PeerBusy, and the peer's error as it raised it."""
        return _data(outcome(await self._request(peer, "call", Ask(method, body), secs)))

    def forget(self, peer: str) -> None:
        """Close what there is to a peer that has departed; what is unanswered fails with PeerGone.

        Word of the departure may overtake its last answers: they have a moment more to arrive, acks have not.
        """
        for key in [key for key in self._links if key[0] == peer]:
            link = self._links.pop(key)
            if key[1] == "append":
                link.end("the peer has departed")
            else:
                self._departing[link] = None
                self._wiring.loop.call_later(LAST_ANSWERS_SECS, self._end_departed, link)

    def _end_departed(self, link: Link) -> None:
        self._departing.pop(link, None)
        link.end("the peer has departed")

    async def close(self) -> None:
        """Close all, and dial no more."""
        self._closed = True
        links = [*self._links.values(), *self._departing]
        self._links, self._departing = {}, {}
        for link in links:
            link.end("this node stops")
        await asyncio.gather(*(link.dialing for link in links if link.dialing), return_exceptions=True)

    async def _request(self, peer: str, lane: Lane, request: Request, secs: float) -> Reply:
        size = self._weighed(request)
        loop = self._wiring.loop
        began = loop.time()
        connection = self._link(peer, lane).connection()
        future: asyncio.Future[Reply] = loop.create_future()
        number = connection.put(request, size, partial(settle, future))
        timer = loop.call_later(secs, connection.give_up, number, f"no reply within {secs:g} s")
        try:
            return await future
        finally:
            timer.cancel()
            if future.cancelled():
                connection.give_up(number, "the asker went away")
            self._wiring.meter.replied(type(request).__name__, loop.time() - began)

    def _weighed(self, message: Question) -> int:
        size = weight(message)
        if size > self._wiring.limits.message_max:
            raise BodyTooLarge(f"between nodes at most {self._wiring.limits.message_max} bytes travel")
        return size

    def _link(self, peer: str, lane: Lane) -> Link:
        link = self._links.get((peer, lane))
        if link is None:
            link = Link(self._wiring, peer, lane)
            if self._closed:
                link.end("this node stops")
            else:
                self._links[peer, lane] = link
        return link


def _data(reply: Reply) -> bytes:
    if not isinstance(reply, Fetched):
        raise strange(reply)
    return reply.data


class Link:
    """One lane to one peer: its connection now, or when the next may be dialled."""

    def __init__(self, wiring: Wiring, peer: str, lane: Lane) -> None:
        self._wiring, self._peer, self._lane = wiring, peer, lane
        self._now: Dialed | None = None
        self._not_before = float("-inf")
        self._pause = 0.0
        self._over = False
        self.dialing: asyncio.Task[None] | None = None

    def connection(self) -> Dialed:
        """One to put questions to; if it has ended already they fail at once."""
        now = self._now
        if now is not None and (now.ended is None or self._over or self._wiring.loop.time() < self._not_before):
            return now
        self._now = self._make()
        if self._over:
            self._now.end("the peer is forgotten")
        else:
            self.dialing = self._wiring.loop.create_task(self._dial(self._now))
        return self._now

    def end(self, why: str) -> None:
        """For good."""
        self._over = True
        if self._now is not None:
            self._now.end(why)
        if self.dialing is not None:
            self.dialing.cancel()

    def _make(self) -> Dialed:
        wiring = self._wiring
        dialing = Dialing(wiring.identity(), self._lane, wiring.versions, wiring.nonce)
        connection = Dialed(wiring.loop, dialing, self._lane, wiring.limits)
        connection.versions = wiring.versions
        connection.on_open, connection.on_end = self._opened, self._ended
        return connection

    async def _dial(self, connection: Dialed) -> None:
        limits = self._wiring.limits
        try:
            async with asyncio.timeout(limits.hello_secs):
                await self._wiring.network.dial(lambda: connection, self._peer)
        except TimeoutError:
            connection.end(f"{self._peer} did not answer within {limits.hello_secs:g} s")
        except OSError as error:
            connection.end(f"{self._peer} cannot be reached: {error}")

    def _opened(self, connection: Dialed) -> None:
        self._pause = 0.0
        self._wiring.meter.opened(self._lane)
        assert connection.speaker is not None
        speaker = connection.speaker
        self._wiring.log.info("peer.dialed", peer=self._peer, node=speaker.node_id, lane=self._lane)

    def _ended(self, connection: Dialed, why: str) -> None:
        self._wiring.meter.lost(self._lane)
        if connection.speaker is None:
            least, most = self._wiring.limits.redial_secs
            self._pause = min(most, self._pause * 2 or least)
            self._not_before = self._wiring.loop.time() + self._pause
        if not self._over:
            self._wiring.log.warning("peer.lost", peer=self._peer, lane=self._lane, why=why)
