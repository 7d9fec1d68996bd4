"""Request bodies over ASGI: bounded in size and in time, however they come (field case 100)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from domicile.errors import BodyTooLarge
from domicile.node.problems import RequestTimeout

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
BODY_SECS = 30.0


class DisconnectedError(Exception):
    """The client went away before its request was whole: nobody is there to answer."""


async def read_body(receive: Receive, bytes_max: int, secs: float = BODY_SECS) -> bytes:
    """The whole body. Raises BodyTooLarge at the first byte beyond, RequestTimeout, DisconnectedError."""
    try:
        async with asyncio.timeout(secs):
            return await _gather(receive, bytes_max)
    except TimeoutError:
        raise RequestTimeout(f"the body was not whole after {secs:g} s") from None


async def _gather(receive: Receive, bytes_max: int) -> bytes:
    gathered = bytearray()  # and no list of pieces: ten million chunks of one byte must not cost half a gigabyte
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise DisconnectedError
        piece: bytes = message.get("body", b"")
        if len(gathered) + len(piece) > bytes_max:
            raise too_large(bytes_max)
        if not message.get("more_body", False):
            return bytes(gathered) + piece
        gathered += piece


def too_large(bytes_max: int) -> BodyTooLarge:
    """The refusal of a body beyond `bytes_max`."""
    return BodyTooLarge(f"a request body is at most {bytes_max} bytes (BODY_MAX_MB)", bytes_max=bytes_max)
