"""The network between machines: streams of bytes as TCP carries them, over links that are slow, cut and reset.

A stream loses nothing in the middle, repeats nothing and keeps its order: it arrives, or it stands still (a cut: what
was written waits in the sender's kernel, and arrives when the cut ends, whether or not its writer still lives), or it
ends. A killed process's connections end after what it wrote has arrived; a machine without power says nothing, and
refuses old connections once it is back.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from simworld.loop import SimLoop
from simworld.process import PROCESS, Process, dead

Factory = Callable[[], asyncio.BufferedProtocol]
AGAIN_SECS = 0.2
_FIN, _RST = object(), object()


@dataclass(frozen=True)
class LinkOdds:
    """How links are: seconds, and shares of the pieces written. `reset` ends a connection in the middle."""

    latency: float = 0.0003
    slow: float = 0.0
    slow_secs: float = 0.2
    reset: float = 0.0


STILL = LinkOdds()


class Wires:
    """All links of a world. `cuts` has the directions (from, to), by machine, in which nothing arrives now."""

    def __init__(self, loop: SimLoop, rng: random.Random) -> None:
        self.loop = loop
        self.rng = rng
        self.odds = LinkOdds()
        self.cuts: dict[tuple[str, str], int] = {}
        self.listening: dict[str, SimListener] = {}
        self.ends: dict[End, None] = {}
        self.powered_off: set[str] = set()

    def cut(self, one: str, other: str) -> None:
        self.cuts[one, other] = self.cuts.get((one, other), 0) + 1

    def heal(self, one: str, other: str) -> None:
        left = self.cuts.pop((one, other), 0) - 1
        if left > 0:
            self.cuts[one, other] = left

    def carries(self, one: str, other: str) -> bool:
        return (one, other) not in self.cuts

    def latency(self) -> float:
        secs = self.odds.latency * (0.3 + self.rng.expovariate(1.0))
        if self.odds.slow and self.rng.random() < self.odds.slow:
            secs += self.rng.random() * self.odds.slow_secs
        return secs

    def died(self, machine: str, *, power: bool) -> None:
        """The machine's process is gone: its kernel closes for it, unless it is gone too."""
        self.listening.pop(machine, None)
        for end in [end for end in self.ends if end.machine == machine]:
            del self.ends[end]
            end.gone = True
            if power:
                end.out.clear()
            else:
                end.send(_RST)
        if power:
            self.powered_off.add(machine)


class Nic:
    """One machine's `domicile.node.wire.network.Network`. Addresses are "machine:port"."""

    def __init__(self, wires: Wires, machine: str) -> None:
        self._wires = wires
        self._machine = machine

    async def dial(self, factory: Factory, address: str) -> None:
        wires, there = self._wires, address.partition(":")[0]
        while not (wires.carries(self._machine, there) and wires.carries(there, self._machine)) or (
            there in wires.powered_off
        ):
            await asyncio.sleep(AGAIN_SECS)
        await asyncio.sleep(wires.latency())
        listener = wires.listening.get(there)
        if listener is None or listener.address != address:
            raise ConnectionRefusedError(f"nobody listens at {address}")
        near, far = End(wires, self._machine), End(wires, there)
        near.other, far.other = far, near
        near.attach(factory(), PROCESS.get())
        far.process = listener.process
        listener.process.context.copy().run(wires.loop.call_soon, listener.accept, far)

    async def listen(self, factory: Factory, address: str) -> SimListener:
        process = PROCESS.get()
        assert process is not None
        listener = SimListener(self._wires, self._machine, address, factory, process)
        self._wires.listening[self._machine] = listener
        return listener


class SimListener:
    """An address that a process listens on."""

    def __init__(self, wires: Wires, machine: str, address: str, factory: Factory, process: Process) -> None:
        self._wires = wires
        self._machine = machine
        self._factory = factory
        self.address = address
        self.process = process

    def accept(self, end: End) -> None:
        end.attach(self._factory(), self.process)

    def close(self) -> None:
        if self._wires.listening.get(self._machine) is self:
            del self._wires.listening[self._machine]


class End(asyncio.Transport):
    """One end of a connection, an asyncio transport; `out` is what it wrote that has not arrived."""

    def __init__(self, wires: Wires, machine: str) -> None:
        super().__init__()
        self._wires = wires
        self.machine = machine
        self.other: End
        self.process: Process | None = None
        self.protocol: asyncio.BufferedProtocol | None = None
        self.out: deque[tuple[float, Any]] = deque()
        self.gone = False
        self._last = 0.0
        self._pumping = False
        self._closing = False
        self._lost = False
        self._deaf = False
        self._heard: deque[Any] = deque()
        self._high = 1 << 16
        self._waiting = 0
        self._paused = False

    def attach(self, protocol: asyncio.BufferedProtocol, process: Process | None) -> None:
        self.protocol, self.process = protocol, process
        self._wires.ends[self] = None
        protocol.connection_made(self)
        self._hear()

    # what a protocol asks of its transport

    def write(self, data: Any) -> None:
        if dead() or self._closing or self.gone:
            return
        self._waiting += len(data)
        self.send(bytes(data))
        if self._waiting > self._high and not self._paused:
            self._paused = True
            assert self.protocol is not None
            self.protocol.pause_writing()

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        self._close(_FIN)

    def abort(self) -> None:
        self._close(_RST)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self.other.machine if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = high or self._high

    def pause_reading(self) -> None:
        self._deaf = True

    def resume_reading(self) -> None:
        self._deaf = False
        self._wires.loop.call_soon(self._hear)

    def _close(self, word: object) -> None:
        if dead() or self._closing or self.gone:
            return
        self._closing = True
        self.send(word)
        self._wires.loop.call_soon(self._lose, None)

    # on its way

    def send(self, what: Any) -> None:
        wires = self._wires
        if isinstance(what, bytes) and wires.odds.reset and wires.rng.random() < wires.odds.reset:
            what = _RST
            self._arrive_soon(self, _RST)
        self._last = max(self._last, wires.loop.time() + wires.latency())
        self.out.append((self._last, what))
        self._pump_at(self._last)

    def _pump_at(self, when: float) -> None:
        if not self._pumping:
            self._pumping = True
            self._wires.loop.in_world(self._wires.loop.call_at, when, self._pump)

    def _pump(self) -> None:
        self._pumping = False
        wires, now = self._wires, self._wires.loop.time()
        if not self.out:
            return
        if not wires.carries(self.machine, self.other.machine) or self.other.machine in wires.powered_off:
            self._pump_at(now + AGAIN_SECS)
            return
        while self.out and self.out[0][0] <= now:
            _, what = self.out.popleft()
            if isinstance(what, bytes):
                self._waiting -= len(what)
            if self.other.gone and what is not _RST:
                self.out.clear()
                self._arrive_soon(self, _RST)  # nobody has that connection any more
                return
            self._arrive_soon(self.other, what)
        if self.out:
            self._pump_at(self.out[0][0])
        elif self._paused:
            self._paused = False
            self._arrive_soon(self, None)

    def _arrive_soon(self, end: End, what: Any) -> None:
        if end.process is not None and end.process.alive and not end.gone:
            end.process.context.copy().run(self._wires.loop.call_soon, end.arrived, what)

    # what arrives, in the process that has this end

    def arrived(self, what: Any) -> None:
        if what is None:
            if self.protocol is not None and not self._lost:
                self.protocol.resume_writing()
            return
        self._heard.append(what)
        self._hear()

    def _hear(self) -> None:
        while self._heard and self.protocol is not None and not self._deaf and not self._lost:
            what = self._heard.popleft()
            if what is _RST:
                self._closing = True
                self._lose(ConnectionResetError("reset by peer"))
            elif self._closing:
                continue
            elif what is _FIN:
                if not self.protocol.eof_received():
                    self.close()
            else:
                self._read(what)

    def _read(self, data: bytes) -> None:
        at = 0
        assert self.protocol is not None
        while at < len(data) and not self._closing:
            room = self.protocol.get_buffer(-1)
            size = min(len(room), len(data) - at)
            room[:size] = data[at : at + size]
            at += size
            self.protocol.buffer_updated(size)

    def _lose(self, error: Exception | None) -> None:
        if self._lost:
            return
        self._lost = self.gone = True
        self._wires.ends.pop(self, None)
        if self.protocol is not None:
            self.protocol.connection_lost(error)
