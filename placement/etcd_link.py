"""One event loop's way to etcd: channels to every member, failover, timeouts, logging in (PROTOCOLS section 2).

Requests go to one member until it fails, then to the next. What certainly was not done is sent again, to another
member, as long as there is time; so is what may be done twice. A write whose answer was lost is never sent again: it
surfaces as StoreUnavailable with `maybe`. A member without a leader says so at once, because every request wants one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc  # type: ignore[import-untyped]
from aetcd.rpc import rpc_pb2 as pb  # type: ignore[import-untyped]
from aetcd.rpc import rpc_pb2_grpc as stubs

from domicile.placement.etcd_wire import AUTH_IS_OFF, Fate, fate, told
from domicile.placement.store import StoreUnavailable

REQUEST_SECS = 3.0  # for a request in all, failover included
ATTEMPT_SECS = 1.0  # for one member, where another may be asked in its place
CONNECT_SECS = 1.0
SUSPECT_SECS = 0.2  # a caller that gave up after this long gave up on the member
PAUSE_SECS = 0.05

# etcd allows a ping every 5 s, and only while something is open; watches are. The client's own limit on pings without
# data would end them after two, and in grpcio 1.85 its timeout for keepalives has no effect: that for all pings has.
OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.http2.ping_timeout_ms", 3_000),
    ("grpc.keepalive_permit_without_calls", 0),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.enable_retries", 0),
    ("grpc.use_local_subchannel_pool", 1),  # heartbeats do not share a connection with scans
)
Metadata = Sequence[tuple[str, str]]
_LEADER_WANTED = ("hasleader", "true")
_NO_USER: Metadata = grpc.aio.Metadata(_LEADER_WANTED)  # as a call keeps it: it would be made anew for each

Sleep = Callable[[float], Awaitable[None]]
Send = Callable[["Member", Metadata, float], Awaitable[Any]]


@dataclass(frozen=True)
class EtcdConfig:
    """Where etcd is and how to be let in. `endpoints` are host:port; certificates are PEM. Any of them turns TLS on."""

    endpoints: tuple[str, ...]
    ca: bytes | None = None
    cert: bytes | None = None
    key: bytes | None = field(default=None, repr=False)
    user: str = ""
    password: str = field(default="", repr=False)

    @property
    def tls(self) -> bool:
        return self.ca is not None or self.cert is not None


class NotDone(Exception):
    """Certainly not done; asking elsewhere, or again, may help."""


class Member:
    """One etcd member as seen from one loop."""

    def __init__(self, endpoint: str, config: EtcdConfig) -> None:
        self.endpoint = endpoint
        if config.tls:
            trust = grpc.ssl_channel_credentials(config.ca, config.key, config.cert)
            self._channel = grpc.aio.secure_channel(endpoint, trust, options=OPTIONS)
        else:
            self._channel = grpc.aio.insecure_channel(endpoint, options=OPTIONS)
        self.kv = stubs.KVStub(self._channel)
        self.lease = stubs.LeaseStub(self._channel)
        self.auth = stubs.AuthStub(self._channel)
        self.watch = stubs.WatchStub(self._channel).Watch

    async def connected(self, secs: float) -> bool:
        """Whether there is a connection, or one could be made in that time. Nothing is sent before there is."""
        state = self._channel.get_state(try_to_connect=True)
        if state is grpc.ChannelConnectivity.READY:
            return True
        try:
            async with asyncio.timeout(secs):
                while state not in (grpc.ChannelConnectivity.READY, grpc.ChannelConnectivity.TRANSIENT_FAILURE):
                    await self._channel.wait_for_state_change(state)
                    state = self._channel.get_state(try_to_connect=True)
        except (TimeoutError, grpc.aio.UsageError):  # the latter: closed meanwhile
            return False
        return state is grpc.ChannelConnectivity.READY

    async def close(self) -> None:
        await self._channel.close()


class Link:
    """Used on the loop it was made on."""

    def __init__(self, config: EtcdConfig, monotonic: Callable[[], float], sleep: Sleep) -> None:
        self.closed = False
        self.monotonic = monotonic
        self.sleep = sleep
        self._config = config
        self._members = [Member(endpoint, config) for endpoint in config.endpoints]
        self._at = 0
        self._token: str | None = None
        self._logging_in = asyncio.Lock()

    async def ask(self, send: Send, *, once: bool = False) -> Any:
        """The answer of whichever member gives one. `once`: never sent again unless certainly not done.

        Raises StoreUnavailable, or the AioRpcError itself when etcd has answered that it will not: NO_GRANT, TOO_LARGE,
        COMPACTED.
        """
        until = self.monotonic() + REQUEST_SECS
        why = "etcd did not answer in time"
        while (left := until - self.monotonic()) > 0:
            try:
                member, metadata = await self.reach(left)
                return await self._attempt(send, member, metadata, until, once)
            except NotDone as refused:
                why = str(refused)
                await self.sleep(min(PAUSE_SECS, left))
        raise StoreUnavailable(why)

    async def reach(self, secs: float) -> tuple[Member, Metadata]:
        """A member with a connection, and what to send along. Raises NotDone, StoreUnavailable."""
        for _ in self._members:
            if self.closed:
                raise StoreUnavailable("the placement store is closed")
            member = self._members[self._at]
            if await member.connected(min(CONNECT_SECS, secs)):
                return member, await self._metadata(member, secs)
            self.leave(member)
        raise NotDone(f"no etcd member can be reached: {', '.join(self._config.endpoints)}")

    def leave(self, member: Member) -> None:
        """Go on with the next member."""
        if self._members[self._at] is member:
            self._at = (self._at + 1) % len(self._members)

    def forget_token(self, used: Metadata) -> None:
        """The token that was sent along is not accepted."""
        if self._token is not None and ("token", self._token) in used:
            self._token = None

    def ended_it(self) -> bool:
        """Of a cancellation just met: it came from closing the channels, which is no reason to cancel who waits."""
        task = asyncio.current_task()
        return self.closed and (task is None or not task.cancelling())

    async def close(self) -> None:
        """Whatever waits for an answer fails."""
        self.closed = True
        for member in self._members:
            await member.close()

    async def _attempt(self, send: Send, member: Member, metadata: Metadata, until: float, once: bool) -> Any:
        began = self.monotonic()
        left = max(until - began, 0.001)
        try:
            return await send(member, metadata, left if once else min(left, ATTEMPT_SECS))
        except grpc.aio.AioRpcError as error:
            self._judge(error, member, metadata, once)
        except (asyncio.InvalidStateError, grpc.aio.UsageError) as error:
            # A stream that ended, or a channel that was closed, before it could be written to.
            self.leave(member)
            raise NotDone(f"etcd: {error}") from error
        except asyncio.CancelledError:
            if self.ended_it():
                raise StoreUnavailable("the placement store was closed", maybe=once) from None
            if self.monotonic() - began >= SUSPECT_SECS:
                self.leave(member)
            raise

    def _judge(self, error: grpc.aio.AioRpcError, member: Member, metadata: Metadata, once: bool) -> None:
        """Raises what the failure means."""
        match fate(error):
            case Fate.NO_GRANT | Fate.TOO_LARGE | Fate.COMPACTED:
                raise error
            case Fate.NEVER:
                raise StoreUnavailable(told(error)) from error
            case Fate.LOG_IN if self._config.user:
                self.forget_token(metadata)
            case Fate.LOG_IN:
                raise StoreUnavailable(f"{told(error)}: no user is set") from error
            case Fate.NOT_HERE:
                self.leave(member)
            case Fate.MAYBE:
                self.leave(member)
                if once:
                    raise StoreUnavailable(told(error), maybe=True) from error
        raise NotDone(told(error)) from error

    async def _metadata(self, member: Member, secs: float) -> Metadata:
        if not self._config.user:
            return _NO_USER
        async with self._logging_in:
            if self._token is None:
                self._token = await self._log_in(member, secs)
        return (_LEADER_WANTED, ("token", self._token)) if self._token else (_LEADER_WANTED,)

    async def _log_in(self, member: Member, secs: float) -> str:
        """A token; empty where etcd asks for none."""
        who = pb.AuthenticateRequest(name=self._config.user, password=self._config.password)
        try:
            answer = await member.auth.Authenticate(who, metadata=(_LEADER_WANTED,), timeout=min(secs, ATTEMPT_SECS))
        except grpc.aio.AioRpcError as error:
            if (error.details() or "").startswith(AUTH_IS_OFF):
                return ""
            if fate(error) is Fate.NEVER:
                raise StoreUnavailable(told(error)) from error
            self.leave(member)
            raise NotDone(told(error)) from error
        token: str = answer.token
        return token
