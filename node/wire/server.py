"""The side that other nodes dial: one port, any number of connections, one handler (PROTOCOLS sections 4, 5 and 7).

What is said in one turn of the loop, over all append streams, reaches the handler as one batch, so that one sync serves
it all; the replies of one turn leave each connection as one batch too. Requests run as tasks of their own, and a client
that goes away cancels none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from domicile.errors import NotServing, Overloaded
from domicile.node.problems import Problems
from domicile.node.wire.accepted import Accepted
from domicile.node.wire.hello import Listening, Speaker
from domicile.node.wire.messages import Answered, Question, Reply, Request, Said
from domicile.node.wire.network import Listener
from domicile.node.wire.service import Service, bounded, failed, perform
from domicile.node.wire.wiring import Wiring

REFUSALS_SECS = 1.0
STOP_SECS = 2.0
LAST_REQUESTS_SECS = 0.25


class Handler(Service, Protocol):
    """What answers."""

    def said(self, messages: Sequence[tuple[Speaker, Said, Callable[[Answered], None]]]) -> None:
        """All that arrived in one turn, in order, with who said it and who is told the answer, once."""
        ...


class PeerServer:
    """Listens once `listen` was called, until `stop`."""

    def __init__(self, wiring: Wiring, handler: Handler) -> None:
        self._wiring, self._handler = wiring, handler
        self._problems = Problems(wiring.log, lambda: wiring.identity().node_id)
        self._listener: Listener | None = None
        self._connections: dict[Accepted, None] = {}  # in the order they came
        self._strangers = 0
        self._inbox: list[tuple[Speaker, Said, Callable[[Answered], None]]] = []
        self._running: dict[asyncio.Task[Reply], None] = {}
        self._stopping = False
        self._refused = 0
        self._refusal_told_at = float("-inf")

    async def listen(self, address: str) -> str:
        """The address listened on, with the port that was taken for port 0. Raises OSError."""
        self._listener = await self._wiring.network.listen(self._accept, address)
        return self._listener.address

    async def stop(self) -> None:
        """Accept no more, cut requests that still run, let replies that are ready leave, close.

        Before that, for a moment: what runs may end, and what comes is refused in words. A request that meets a closed
        connection instead may have run, for all its asker knows.
        """
        if self._listener is not None:
            self._listener.close()
        self._stopping = True
        if self._connections:
            await self._wiring.clock.sleep(LAST_REQUESTS_SECS)
        running = [*self._running]
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running, timeout=STOP_SECS)
        await asyncio.sleep(0)  # their replies go into the connections
        for connection in [*self._connections]:
            connection.end("the node stops", gently=True)

    def _accept(self) -> Accepted:
        wiring = self._wiring
        listening = Listening(wiring.identity(), wiring.versions, wiring.nonce)
        connection = Accepted(wiring.loop, self, listening, wiring.limits)
        connection.versions = wiring.versions
        self._connections[connection] = None
        self._strangers += 1
        if self._strangers > wiring.limits.strangers_max:
            wiring.loop.call_soon(connection.end, "too many strangers at once")
        return connection

    def opened(self, connection: Accepted) -> None:
        self._strangers -= 1
        speaker = connection.speaker
        assert speaker is not None
        self._wiring.log.info("peer.accepted", node=speaker.node_id, lane=speaker.lane, version=speaker.version)

    def closed(self, connection: Accepted, why: str) -> None:
        self._connections.pop(connection, None)
        if connection.speaker is not None:
            self._wiring.log.info("peer.closed", node=connection.speaker.node_id, lane=connection.speaker.lane, why=why)
            return
        self._strangers -= 1
        self._refused += 1
        self._wiring.meter.refused()
        now = self._wiring.loop.time()
        if now - self._refusal_told_at >= REFUSALS_SECS:  # whoever knocks often does not fill the log
            self._wiring.log.warning("peer.refused", address=connection.where(), why=why, count=self._refused)
            self._refusal_told_at, self._refused = now, 0

    def asked(self, connection: Accepted, number: int, question: Question) -> None:
        if isinstance(question, Said):
            self._hear(connection, number, question)
        else:
            self._start(connection, number, question)

    def overloaded(self, connection: Accepted, number: int) -> None:
        error = Overloaded("this node has too many requests of yours")
        connection.answer(number, failed(error, self._problems))

    def _hear(self, connection: Accepted, number: int, said: Said) -> None:
        assert connection.speaker is not None
        if not self._inbox:
            self._wiring.loop.call_soon(self._deliver)
        self._inbox.append((connection.speaker, said, partial(connection.answer, number)))

    def _deliver(self) -> None:
        inbox, self._inbox = self._inbox, []
        self._handler.said(inbox)

    def _start(self, connection: Accepted, number: int, request: Request) -> None:
        if self._stopping:
            connection.answer(number, failed(NotServing("the node stops"), self._problems))
            return
        now = self._wiring.clock.monotonic()
        task = self._wiring.loop.create_task(perform(self._handler, request, now))
        self._running[task] = None
        task.add_done_callback(partial(self._performed, connection, number))

    def _performed(self, connection: Accepted, number: int, task: asyncio.Task[Reply]) -> None:
        self._running.pop(task, None)
        if task.cancelled():
            if not self._stopping:  # it may have run: only a lost connection says so, and `stop` ends all
                connection.end("a request was cancelled", gently=True)
        elif (error := task.exception()) is not None:
            connection.answer(number, failed(error, self._problems))
        else:
            connection.answer(number, bounded(task.result(), self._wiring.limits.message_max, self._problems))
