"""Asking a node over its HTTP surface (API, "HTTP"): one request, repeated while the node says it may be.

http.client sends a path byte for byte, which names of any kind need, and costs nothing to import.
"""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from domicile.cli.failures import CliError, Exit, exit_for

CONNECT_SECS = 5.0
ANSWER_MARGIN_SECS = 10.0


def path(*parts: str) -> str:
    """The path below /v1 of these names, each one percent-encoded segment."""
    return "/v1" + "".join("/" + _segment(part) for part in parts)


def _segment(name: str) -> str:
    """Proxies take a segment of dots for a way up the tree; encoded it is a name like any other."""
    return name.replace(".", "%2E") if not name.strip(".") else quote(name, safe="")


@dataclass(frozen=True)
class Waits:
    """How long to go on: `secs` for the whole command; `monotonic` and `sleep` are the machine's."""

    secs: float
    monotonic: Callable[[], float]
    sleep: Callable[[float], None]


class Node:
    """One node at `url`, for example http://127.0.0.1:8080. Every failure is a CliError that says what to do."""

    def __init__(self, url: str, waits: Waits, token: str | None = None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise CliError(
                f"{url!r} is not a node's address", Exit.USAGE, "give --url or DOMICILE_URL as http://HOST:PORT"
            )
        self._url, self._waits = url, waits
        self._secure = parts.scheme == "https"
        self._host, self._port = parts.hostname, parts.port
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    def get(self, at: str, query: Mapping[str, str | None] | None = None) -> Any:
        """The JSON answer of a GET."""
        given = {name: value for name, value in (query or {}).items() if value is not None}
        return self.send("GET", at + ("?" + urlencode(given) if given else ""))

    def download(self, at: str) -> bytes:
        """The bytes of a GET, whatever they are."""
        connection = self._connect()
        try:
            connection.request("GET", at, headers=self._headers)
            response = connection.getresponse()
            data = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(error, "GET") from None
        finally:
            connection.close()
        if response.status >= 300:
            problem = json.loads(data) if data[:1] == b"{" else {"title": f"HTTP {response.status}"}
            raise refused(problem, response.status)
        return data

    def send(self, verb: str, at: str, body: str | None = None, headers: Mapping[str, str] | None = None) -> Any:
        """The JSON answer; None for an empty one. Repeats what the node calls retryable until the time is up.

        A request whose outcome is unknown is repeated only if it carries an Idempotency-Key.
        """
        headers = headers or {}
        end = self._waits.monotonic() + self._waits.secs
        while True:
            left = max(end - self._waits.monotonic(), 0.0)
            status, retry_after, answer = self._once(verb, at, body, headers, left)
            if status < 300:
                return answer
            problem = answer if isinstance(answer, dict) else {"title": f"HTTP {status}", "retryable": status == 503}
            again = problem.get("retryable") and ("Idempotency-Key" in headers or problem.get("outcome") != "unknown")
            if not again or retry_after >= left:
                raise refused(problem, status)
            self._waits.sleep(retry_after)

    def _once(
        self, verb: str, at: str, body: str | None, headers: Mapping[str, str], left: float
    ) -> tuple[int, float, Any]:
        """(status, seconds to wait before another try, the parsed answer)."""
        connection = self._connect()
        sent = {"Domicile-Timeout-Ms": str(max(int(left * 1000), 1)), **self._headers, **headers}
        if body is not None:
            sent["Content-Type"] = "application/json"
        try:
            connection.request(verb, at, body=body.encode() if body else None, headers=sent)
            assert connection.sock is not None
            connection.sock.settimeout(left + ANSWER_MARGIN_SECS)
            response = connection.getresponse()
            data = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(error, verb) from None
        finally:
            connection.close()
        try:
            answer = json.loads(data) if data else None
        except ValueError:
            raise CliError(
                f"{self._url} does not answer as a Domicile node does (HTTP {response.status})",
                Exit.UNREACHABLE,
                "is this the right address? set --url or DOMICILE_URL",
            ) from None
        return response.status, max(float(response.headers.get("Retry-After") or 1.0), 0.05), answer

    def _connect(self) -> http.client.HTTPConnection:
        if not self._secure:
            return http.client.HTTPConnection(self._host, self._port, timeout=CONNECT_SECS)
        return http.client.HTTPSConnection(
            self._host, self._port, timeout=CONNECT_SECS, context=ssl.create_default_context()
        )

    def _unreachable(self, error: Exception, verb: str) -> CliError:
        reached = not isinstance(error, ConnectionRefusedError) and verb != "GET"
        what = f"no answer from {self._url}: {error or type(error).__name__}"
        if reached:
            return CliError(what, Exit.UNKNOWN, "it may have run; run it again with the same --key to be sure")
        return CliError(what, Exit.UNREACHABLE, "is a node running there? `domicile dev APP` starts one")


def refused(problem: dict[str, Any], status: int) -> CliError:
    """A problem document as an error of this command."""
    code = problem.get("code", status)
    what = f"{problem.get('detail') or problem.get('title') or 'the node refused'} ({code})"
    return CliError(what, exit_for(problem), ADVICE.get(str(code), ""), problem)


ADVICE = {
    "no_such_project": "create it: domicile project create PROJECT",
    "no_such_class": "is it in the app this node runs? `domicile check APP` lists the classes of an app",
    "bad_arguments": "pass arguments as one JSON array (positional) or object (by name)",
    "outcome_unknown": "the write may last; run it again with the same --key",
    "overloaded": "try again; if it stays, see domicile_mailbox_depth and docs/operations.md",
    "database_full": "delete rows, or raise OBJECT_DB_MAX_MB",
    "unauthorized": "set DOMICILE_TOKEN",
}
