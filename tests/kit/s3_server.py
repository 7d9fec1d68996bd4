"""An S3 service in this process that keeps its word on conditional writes: one request at a time.

moto compares the tag and stores the bytes in two steps, and serves each request in a thread of its own: on a busy
machine two of the puts on one tag were both told that they had won.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterable
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server


class S3Server:
    """On a free loopback port from the start, until `stop`. What it holds belongs to the process."""

    def __init__(self) -> None:
        served, one_at_a_time = DomainDispatcherApplication(create_backend_app), threading.Lock()

        def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
            sent = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            environ["wsgi.input"] = io.BytesIO(sent)  # whose sender stalls holds up nobody
            with one_at_a_time:
                return [b"".join(served(environ, start_response))]

        self._server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=_Quiet)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        host, port = self._server.server_address[:2]
        return str(host), int(port)

    @property
    def url(self) -> str:
        """What a client takes as its endpoint."""
        return "http://{}:{}".format(*self.address)

    def stop(self) -> None:
        """Take no more connections."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Quiet(WSGIRequestHandler):
    def log(self, type: str, message: str, *args: Any) -> None: ...
