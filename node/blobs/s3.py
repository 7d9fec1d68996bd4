"""The blob store as a bucket of any S3 that honours conditional puts, by aioboto3.

No request is sent twice beneath us: not by botocore (one attempt) and not by aiohttp, which would silently repeat a put
whose kept-alive connection broke. What may be repeated, `Retries` repeats. Answers to a conditional put:

    409                          a race, nothing stored: again, within the time
    412, 404 to If-Match, 304    PreconditionFailed
    501                          UnfitStoreError
    429, SlowDown                BlobUnavailable: refused, nothing stored
    5xx, time-out, reset         BlobUnavailable with `maybe`: the caller re-reads
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, TypeVar

import aioboto3
import aiohttp
from aiobotocore.config import AioConfig
from aiobotocore.httpsession import AIOHTTPSession
from botocore.exceptions import BotoCoreError, ClientError

from domicile.node.blobs.base import Absent, Blob, Listed, Precondition, UnfitStoreError
from domicile.node.blobs.retries import Again, Retries
from domicile.node.errors import BlobMissing, BlobUnavailable, PreconditionFailed

T = TypeVar("T")

CONNECT_SECS = 3.0
READ_SECS = 10.0
CONNECTIONS = 64
PAGE_KEYS = 1000


@dataclass(frozen=True, slots=True)
class S3Config:
    """Where the bucket is. `prefix` is put before every key. Without keys the usual AWS chain finds credentials."""

    bucket: str
    prefix: str = ""
    endpoint: str | None = None
    region: str = "us-east-1"
    access_key: str | None = None
    secret_key: str | None = None
    read_secs: float = READ_SECS
    page_keys: int = PAGE_KEYS


class S3Blobs:
    """See `Blobs`. Make one with `S3Blobs.open`, close it with `close`. A tag is the store's ETag."""

    def __init__(self, client: Any, config: S3Config, retries: Retries, stack: AsyncExitStack) -> None:
        self._client = client
        self._bucket = config.bucket
        self._prefix = config.prefix
        self._page_keys = config.page_keys
        self._retries = retries
        self._stack = stack

    @classmethod
    async def open(cls, config: S3Config, retries: Retries) -> S3Blobs:
        """One client for the life of the node. Sends nothing yet."""
        settings = AioConfig(
            connect_timeout=CONNECT_SECS,
            read_timeout=config.read_secs,
            max_pool_connections=CONNECTIONS,
            retries={"total_max_attempts": 1, "mode": "standard"},
            http_session_cls=_OnceSession,
            # Many stores do not know the checksums that newer clients add to every put; ours are in the values.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            s3={"addressing_style": "path" if config.endpoint else "auto"},
        )
        stack = AsyncExitStack()
        client = await stack.enter_async_context(
            _session().client(
                "s3",
                region_name=config.region,
                endpoint_url=config.endpoint,
                aws_access_key_id=config.access_key,
                aws_secret_access_key=config.secret_key,
                config=settings,
            )
        )
        return cls(client, config, retries, stack)

    async def get(self, key: str) -> Blob:
        return await self._again(key, lambda: self._get(key))

    async def put(self, key: str, data: bytes, condition: Precondition = None) -> str:
        if condition is None:
            return await self._again(key, lambda: self._put(key, data, {}))
        return await self._retries.run(key, lambda: self._put_if(key, data, condition))

    async def delete(self, key: str) -> None:
        await self._again(key, lambda: self._client.delete_object(Bucket=self._bucket, Key=self._prefix + key))

    async def list(self, prefix: str) -> AsyncIterator[Listed]:
        """Not a snapshot: each page is as the store is when it is asked."""
        after = ""
        while True:
            page = await self._again(prefix, partial(self._page, prefix, after))
            for entry in page.get("Contents", ()):
                yield Listed(entry["Key"].removeprefix(self._prefix), entry["Size"])
                after = entry["Key"]
            if not page.get("IsTruncated"):
                return

    async def close(self) -> None:
        await self._stack.aclose()

    async def _get(self, key: str) -> Blob:
        try:
            found = await self._client.get_object(Bucket=self._bucket, Key=self._prefix + key)
            async with found["Body"]:
                return Blob(await found["Body"].read(), found["ETag"])
        except ClientError as error:
            if _code(error) == "NoSuchKey":
                raise BlobMissing(key) from None
            raise

    async def _put(self, key: str, data: bytes, condition: dict[str, str]) -> str:
        stored = await self._client.put_object(
            Bucket=self._bucket,
            Key=self._prefix + key,
            Body=data,
            **condition,
        )
        if not (tag := stored.get("ETag")):
            raise BlobUnavailable(f"{key}: the store answered without an ETag", maybe=True)
        return str(tag)

    async def _put_if(self, key: str, data: bytes, condition: str | Absent) -> str:
        """One conditional put, sent once; asks to be tried again only where nothing can have been stored."""
        absent = isinstance(condition, Absent)
        try:
            return await self._put(key, data, {"IfNoneMatch": "*"} if absent else {"IfMatch": str(condition)})
        except ClientError as error:
            status, text = _status(error), _text(key, error)
            if status == 409:
                raise Again(text, _retry_after(error)) from error
            if status in (304, 412) or (status == 404 and not absent and _code(error) != "NoSuchBucket"):
                raise PreconditionFailed(text) from error
            if status == 501:
                raise UnfitStoreError(f"{text}: the store does not offer conditional puts") from error
            refused = status < 500 or _throttled(error)
            raise BlobUnavailable(text, maybe=not refused) from error
        except BotoCoreError as error:
            raise BlobUnavailable(f"{key}: {error}", maybe=True) from error

    async def _page(self, prefix: str, after: str) -> Any:
        return await self._client.list_objects_v2(
            Bucket=self._bucket, Prefix=self._prefix + prefix, StartAfter=after, MaxKeys=self._page_keys
        )

    async def _again(self, key: str, send: Callable[[], Awaitable[T]]) -> T:
        """An unconditional request, repeated while the store is only busy or out of reach."""

        async def once() -> T:
            try:
                return await send()
            except ClientError as error:
                if _status(error) >= 500 or _throttled(error) or _status(error) in (408, 409):
                    raise Again(_text(key, error), _retry_after(error)) from error
                raise BlobUnavailable(_text(key, error)) from error
            except (BotoCoreError, aiohttp.ClientError, OSError) as error:  # aiohttp's own from a body cut short
                raise Again(f"{key}: {error}") from error

        return await self._retries.run(key, once)


class _OnceSession(AIOHTTPSession):
    """botocore's way to aiohttp, with aiohttp's own repetition of puts and gets switched off."""

    async def _get_session(self, proxy_url: str | None) -> Any:
        session = await super()._get_session(proxy_url)  # type: ignore[misc]  # private, and untyped
        session._retry_connection = False
        return session


@cache
def _session() -> aioboto3.Session:
    """One for all buckets of the process: reading S3's description of itself takes a tenth of a second."""
    return aioboto3.Session()


def _status(error: ClientError) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _throttled(error: ClientError) -> bool:
    return _status(error) == 429 or _code(error) in ("SlowDown", "Throttling", "RequestLimitExceeded")


def _retry_after(error: ClientError) -> float:
    """Seconds the store asks us to wait, 0 when it says nothing usable."""
    headers = error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    text = str(headers.get("retry-after", ""))
    return float(text) if text.isascii() and text.isdigit() else 0.0


def _text(key: str, error: ClientError) -> str:
    return f"{key}: the store answered {_status(error)} {_code(error)}"
