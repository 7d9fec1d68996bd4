"""A way to etcd on which watches can fall silent while everything else goes on: gRPC, carried without reading it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc  # type: ignore[import-untyped]

WATCH = "/etcdserverpb.Watch/Watch"


class DeafEtcd(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Stands before one etcd, at `endpoint`. While `deaf` nothing that a watch says is handed on: it is lost."""

    def __init__(self) -> None:
        self.deaf = False
        self.lost = 0
        self.endpoint = ""
        self._channel: Any = None

    def service(self, details: Any) -> Any:
        """Every method is carried as a stream of messages both ways, which one message is too."""

        async def carry(asked: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
            metadata, secs = _own(context.invocation_metadata()), context.time_remaining()
            call = self._channel.stream_stream(details.method)(asked, metadata=metadata, timeout=secs)
            try:
                async for said in call:
                    if self.deaf and details.method == WATCH:
                        self.lost += 1
                    else:
                        yield said
            except grpc.aio.AioRpcError as error:
                await context.abort(error.code(), error.details())
            finally:
                call.cancel()

        return grpc.stream_stream_rpc_method_handler(carry)


def _own(metadata: Any) -> list[tuple[str, Any]]:
    """What the caller added itself."""
    return [(name, value) for name, value in metadata if name == "token"]


@contextlib.asynccontextmanager
async def deafened(target: str, port: Callable[[], int]) -> AsyncIterator[DeafEtcd]:
    """One before `target`, host:port."""
    link = DeafEtcd()
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)])
    server.add_generic_rpc_handlers((link,))
    link.endpoint = f"127.0.0.1:{server.add_insecure_port(f'127.0.0.1:{port()}')}"
    async with grpc.aio.insecure_channel(target) as link._channel:
        await server.start()
        try:
            yield link
        finally:
            await server.stop(0)
