"""HTTP in, HTTP out, no decisions (API, "HTTP").

A call's route is recognised in the raw path and answered here, by the shortest way there is; everything else goes to
a Starlette app. Nothing of a node is known but its `Front`. Who goes away cancels nothing: no task here ends with its
client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from starlette.types import ASGIApp

from domicile.node.http.body import DisconnectedError, Message, Receive, Send, read_body
from domicile.node.http.headers import Header, answer_head, read_options
from domicile.node.http.path import call_target, is_call
from domicile.node.http.routes import Surface, routes_app
from domicile.node.operations import Operations
from domicile.node.problems import Log, Problems, Reply
from domicile.node.values import Call, Front


class App:
    """The ASGI application of a node. `metrics` gives the text of `/metrics`.

    A server that has a call's whole body at hand may skip ASGI: `if app.takes(…): reply = await app.call(…)`.
    """

    def __init__(
        self,
        front: Front,
        log: Log,
        metrics: Callable[[], bytes],
        *,
        body_bytes_max: int,
        deadline_secs: float,
        operations: Operations | None = None,
    ) -> None:
        """`operations`: None where there is no Temporal."""
        self.body_bytes_max = body_bytes_max
        self.problems = Problems(log, lambda: front.node_id)
        self._front = front
        self._deadline_secs = deadline_secs
        self._rest: ASGIApp = routes_app(
            Surface(front, self.problems, metrics, body_bytes_max, deadline_secs, operations)
        )

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise NotImplementedError(f"no {scope['type']} here")  # how ASGI servers learn that there is no lifespan
        if self.takes(scope["method"], scope["raw_path"]):
            await self._call_over_asgi(scope, receive, send)
        else:
            # Starlette matches the encoded path, so that an encoded slash stays inside its name.
            scope = {**scope, "path": scope["raw_path"].decode("latin-1"), "root_path": ""}
            await self._rest(scope, receive, send)

    def takes(self, method: str, raw_path: bytes) -> bool:
        """Whether `call` is what answers this request."""
        return method == "POST" and is_call(raw_path)

    async def call(self, raw_path: bytes, headers: Iterable[Header], body: bytes) -> Reply:
        """Answers a call: `POST /v1/{project}/objects/{class}/{name}/{method}`. Never raises, but when cancelled."""
        front = self._front
        try:
            key, method = call_target(raw_path)
            asked = read_options(headers, self._deadline_secs)
            deadline = front.now() + asked.timeout_secs
            call = Call(key, method, body, deadline, asked.idempotency_key, asked.if_match, (), asked.trace)
            answer = await front.call(call)
            return Reply(200, answer_head(answer.node or front.node_id, answer.epoch, answer.served_by), answer.body)
        except Exception as error:  # noqa: BLE001 - the boundary: what is not in the tree is logged and named an error
            return self.problems.render(error)

    async def _call_over_asgi(self, scope: Message, receive: Receive, send: Send) -> None:
        try:
            body = await read_body(receive, self.body_bytes_max)
        except DisconnectedError:
            return
        except Exception as error:  # noqa: BLE001 - as above
            status, headers, body = self.problems.render(error)
            headers = (*headers, (b"connection", b"close"))  # the rest of the body is not worth reading
        else:
            status, headers, body = await self.call(scope["raw_path"], scope["headers"], body)
        length = (b"content-length", b"%d" % len(body))
        await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
        await send({"type": "http.response.body", "body": body})
