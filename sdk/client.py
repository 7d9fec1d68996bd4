"""`Client` and `SyncClient`: objects by name, from anywhere that speaks HTTP.

    async with Client("http://localhost:8080") as client:
        lot = client.project("acme").object("Auction", "lot-42")
        await lot.bid("ada", 25)

Both carry out the same exchanges (`retries`) of the same requests (`surface`): what is retryable is retried until the
deadline, every call that may write carries an idempotency key through all its attempts, and what comes out is the
result or a typed error of `domicile.errors`.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self, TypedDict, Unpack

import httpx

from domicile.errors import BadArguments
from domicile.handles import AsyncProject, SyncProject
from domicile.requests import JSON_TYPE, Lost, Reply, Request
from domicile.retries import ANSWER_GRACE_SECS, Backoff, Pause, Send, Steps, exchange
from domicile.system import System

DEFAULT_URL = "http://127.0.0.1:8080"
TIMEOUT_SECS = 30.0
CONNECT_SECS_MAX = 5.0

# Nothing of the request has left yet when one of these is raised.
_UNSENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol)


class ClientOptions(TypedDict, total=False):
    """What both clients take by keyword. `timeout_secs` bounds a call with all its retries."""

    token: str
    timeout_secs: float
    backoff: Backoff
    system: System


class _Core:
    """What the two clients share: where to, on whose behalf, how long, how often."""

    def __init__(self, url: str, options: ClientOptions) -> None:
        try:
            self.base = httpx.URL(url)
        except (httpx.InvalidURL, TypeError) as error:
            raise BadArguments(f"{url!r} is no URL: {error}") from None
        if self.base.scheme not in ("http", "https") or not self.base.host:
            raise BadArguments(f"{url!r} is no URL of a node, such as {DEFAULT_URL}")
        token = options.get("token")
        if token is not None and not (token.isascii() and token.isprintable()):
            raise BadArguments("a token is printable ASCII")
        self.system = options.get("system", System())
        self._timeout_secs = options.get("timeout_secs", TIMEOUT_SECS)
        self._backoff = options.get("backoff", Backoff())
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    def steps(self, request: Request) -> Steps:
        timeout_secs = self._timeout_secs if request.timeout_secs is None else request.timeout_secs
        return exchange(request, timeout_secs, self.system.clock, self.system.random, self._backoff)

    def http(self, send: Send) -> dict[str, Any]:
        """The keywords of httpx's `request` for one attempt."""
        request, patience = send.request, send.left_secs + ANSWER_GRACE_SECS
        headers = {**self._headers, "Domicile-Timeout-Ms": str(max(1, int(send.left_secs * 1000)))}
        if request.body:
            headers[JSON_TYPE[0]] = JSON_TYPE[1]
        if request.key is not None:
            headers["Idempotency-Key"] = request.key
        if request.if_match is not None:
            headers["If-Match"] = f'"{request.if_match}"'
        return {
            "method": request.method,
            # The path is already encoded and must reach the node as it is.
            "url": self.base.copy_with(raw_path=self.base.raw_path.rstrip(b"/") + request.path.encode()),
            "content": request.body,
            "headers": headers,
            "timeout": httpx.Timeout(patience, connect=min(patience, CONNECT_SECS_MAX)),
        }


def _reply(response: httpx.Response) -> Reply:
    return Reply(
        response.status_code, {name.lower(): value for name, value in response.headers.items()}, response.content
    )


def _lost(error: httpx.RequestError) -> Lost:
    return Lost(f"{type(error).__name__}: {error}", sent=not isinstance(error, _UNSENT))


class Client(_Core):
    """The asynchronous client. Close it, or use it as `async with`. `transport` and `system` are for tests."""

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        transport: httpx.AsyncBaseTransport | None = None,
        **options: Unpack[ClientOptions],
    ) -> None:
        super().__init__(url, options)
        self._http = httpx.AsyncClient(transport=transport, follow_redirects=False)

    async def run(self, request: Request) -> Any:
        """Carry out one request with its retries."""
        steps = self.steps(request)
        told: Reply | Lost | None = None
        while True:
            try:
                step = steps.send(told)
            except StopIteration as end:
                return end.value
            told = await self._do(step)

    async def _do(self, step: Send | Pause) -> Reply | Lost | None:
        if isinstance(step, Pause):
            await self.system.sleep_async(step.secs)
            return None
        try:
            return _reply(await self._http.request(**self.http(step)))
        except httpx.RequestError as error:
            return _lost(error)

    def project(self, project: str) -> AsyncProject:
        return AsyncProject(self, project)

    async def close(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        await self.close()


class SyncClient(_Core):
    """The blocking client. Close it, or use it as `with`. May be shared between threads."""

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        transport: httpx.BaseTransport | None = None,
        **options: Unpack[ClientOptions],
    ) -> None:
        super().__init__(url, options)
        self._http = httpx.Client(transport=transport, follow_redirects=False)

    def run(self, request: Request) -> Any:
        """Carry out one request with its retries."""
        steps = self.steps(request)
        told: Reply | Lost | None = None
        while True:
            try:
                step = steps.send(told)
            except StopIteration as end:
                return end.value
            told = self._do(step)

    def _do(self, step: Send | Pause) -> Reply | Lost | None:
        if isinstance(step, Pause):
            self.system.sleep(step.secs)
            return None
        try:
            return _reply(self._http.request(**self.http(step)))
        except httpx.RequestError as error:
            return _lost(error)

    def project(self, project: str) -> SyncProject:
        return SyncProject(self, project)

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()
