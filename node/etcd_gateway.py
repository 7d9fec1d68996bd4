"""What a node's supervisor says to etcd, by etcd's JSON gateway: a grant for a child, and the end of a dead one
(PROTOCOLS section 3).

Standard library only, and loaded only where PLACEMENT is etcd: nothing of the node is in the supervisor's process.
Where etcd wants client certificates, its gateway refuses those with a common name: the client's certificate has to go
without, or a dead child's row stands until its deadline has passed.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

GRANT_VARIABLE = "DOMICILE_GRANT"
NOTE_FILE = "node.json"
BOOT_ID = "/proc/sys/kernel/random/boot_id"
ATTEMPT_SECS = 1.0
TRY_SECS = 5.0  # in all; then the child starts without a grant, or the dead one's row waits for whoever needs it gone
PAUSE_SECS = 0.1

Log = Callable[[str, Mapping[str, object]], None]


class GatewayError(Exception):
    """No member of etcd did it."""


class _Refused(GatewayError):
    """etcd answered, and asking again would not help. `status` is HTTP's."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


@dataclass(frozen=True)
class Access:
    """Where etcd is and how to be let in; files by path, empty is none. Any of them but the password's turns TLS on."""

    endpoints: Sequence[str]
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    user: str = ""
    password_file: str = ""

    def trust(self) -> ssl.SSLContext | None:
        """Raises OSError, ssl.SSLError for files that cannot be used."""
        if not (self.ca_file or self.cert_file):
            return None
        context = ssl.create_default_context(cafile=self.ca_file or None)
        if self.cert_file:
            context.load_cert_chain(self.cert_file, self.key_file)
        return context


@dataclass(frozen=True)
class Timer:
    """Time, passed in: seconds that only grow, and a wait."""

    monotonic: Callable[[], float]
    sleep: Callable[[float], None]


class Gateway:
    """etcd for who has no gRPC. Every method tries all members for a few seconds and raises GatewayError after that.

    All of them may be sent twice without harm.
    """

    def __init__(self, access: Access, timer: Timer) -> None:
        self._access = access
        self._timer = timer
        self._trust = access.trust()
        self._token = ""
        self._first = 0  # the endpoint that answered last

    def grant(self, ttl_secs: int) -> str:
        """A new grant, as the placement store on etcd names it."""
        return str(self._ask("/v3/lease/grant", {"TTL": str(ttl_secs)})["ID"])

    def revoke(self, grant: str) -> None:
        """Its rows vanish; no matter if it is gone already."""
        try:
            self._ask("/v3/lease/revoke", {"ID": grant})
        except _Refused as refused:
            if refused.status != http.HTTPStatus.NOT_FOUND:
                raise

    def depart(self, row: str, departure: str, record: bytes) -> bool:
        """In one write: remove the key `row` and put `record` at the key `departure`. False: there was no such row."""
        there = {"key": _b64(row), "target": "CREATE", "result": "GREATER", "create_revision": "0"}
        removed = {"request_delete_range": {"key": _b64(row)}}
        written = {"request_put": {"key": _b64(departure), "value": base64.b64encode(record).decode()}}
        return bool(self._ask("/v3/kv/txn", {"compare": [there], "success": [removed, written]}).get("succeeded"))

    def _ask(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        endpoints = self._access.endpoints
        until, last, tries = self._timer.monotonic() + TRY_SECS, "etcd did not answer", 0
        while self._timer.monotonic() < until:
            endpoint = endpoints[self._first]
            try:
                return self._ask_one(endpoint, path, body)
            except (OSError, http.client.HTTPException, ValueError) as error:
                last = f"{endpoint}: {error}"
            except _Refused as refused:
                if refused.status == http.HTTPStatus.UNAUTHORIZED and self._token:
                    self._token = ""  # it ran out, or this member has never seen it
                elif refused.status < http.HTTPStatus.INTERNAL_SERVER_ERROR:
                    raise
                last = f"{endpoint}: {refused}"
            self._first, tries = (self._first + 1) % len(endpoints), tries + 1
            if tries % len(endpoints) == 0:
                self._timer.sleep(PAUSE_SECS)
        raise GatewayError(last)

    def _ask_one(self, endpoint: str, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        if self._access.user and not self._token:
            with open(self._access.password_file, encoding="utf-8") as file:
                password = file.read().rstrip("\r\n")
            login = {"name": self._access.user, "password": password}
            self._token = self._post(endpoint, "/v3/auth/authenticate", login, {})["token"]
        return self._post(endpoint, path, body, {"Authorization": self._token} if self._token else {})

    def _post(self, endpoint: str, path: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> dict[str, Any]:
        connection = (
            http.client.HTTPSConnection(endpoint, timeout=ATTEMPT_SECS, context=self._trust)
            if self._trust
            else http.client.HTTPConnection(endpoint, timeout=ATTEMPT_SECS)
        )
        try:
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json", **headers})
            answer = connection.getresponse()
            text = answer.read()
        finally:
            connection.close()
        if answer.status != http.HTTPStatus.OK:
            raise _Refused(answer.status, text.decode("utf-8", "replace").strip() or answer.reason)
        return dict(json.loads(text))


class Registrar:
    """A supervisor's part in its children's membership.

    `root` is the region's prefix, `/<cluster>/<region>/`. What etcd does not do within its time is left to others: the
    child makes a grant of its own; an eviction, or the grant's end, removes the row.
    """

    def __init__(self, gateway: Gateway, root: str, ttl_secs: int, data: str, log: Log) -> None:
        self._gateway = gateway
        self._root = root
        self._ttl_secs = ttl_secs
        self._note = os.path.join(data, NOTE_FILE)
        self._log = log
        self._grant = ""

    def before_child(self, now_ms: int) -> dict[str, str]:
        """What to add to the next child's environment.

        A note found now is of a child whose supervisor died too. The lock this process holds says that it is dead,
        if it lived on this machine since its last start.
        """
        noted = self._noted()
        if noted is not None and noted.get("boot") == (boot_id() or None):
            self._try("supervisor.deregister", lambda: self._deregister(noted, "died unseen", now_ms))
        self._forget()
        self._grant = ""
        self._try("supervisor.grant", self._make_grant)
        return {GRANT_VARIABLE: self._grant} if self._grant else {}

    def after_child(self, status: int, now_ms: int) -> None:
        """The child was reaped: nothing it sends is its own any more, and its row and grant go."""
        noted = self._noted()

        def clear() -> None:
            if noted is not None:
                self._deregister(noted, f"ended with {status}", now_ms)
            if self._grant:
                self._gateway.revoke(self._grant)

        self._try("supervisor.deregister", clear)
        self._forget()

    def _make_grant(self) -> None:
        self._grant = self._gateway.grant(self._ttl_secs)

    def _deregister(self, noted: Mapping[str, str], why: str, now_ms: int) -> None:
        # A node id is never used again, so no condition but that the row is there: it may have left in order.
        node_id = noted["node_id"]
        record = json.dumps({"at_ms": now_ms, "why": why, "copy_id": noted.get("copy_id", "")})
        row, departure = f"{self._root}nodes/{node_id}", f"{self._root}departures/{node_id}"
        if self._gateway.depart(row, departure, record.encode()):
            self._log("supervisor.deregistered", {"node": node_id, "why": why})

    def _noted(self) -> dict[str, str] | None:
        try:
            with open(self._note, encoding="utf-8") as file:
                noted = json.load(file)
        except (OSError, ValueError):
            return None
        return noted if isinstance(noted, dict) and isinstance(noted.get("node_id"), str) else None

    def _forget(self) -> None:
        if os.path.exists(self._note):
            os.unlink(self._note)

    def _try(self, what: str, do: Callable[[], None]) -> None:
        try:
            do()
        except GatewayError as error:
            self._log(f"{what}-failed", {"error": str(error)})


def note_node(data: str, node_id: str, copy_id: str) -> None:
    """By a child, before it registers under `node_id`: whom the supervisor is to deregister when it dies.

    Raises OSError.
    """
    path = os.path.join(data, NOTE_FILE)
    with open(f"{path}.new", "w", encoding="utf-8") as file:
        json.dump({"node_id": node_id, "copy_id": copy_id, "boot": boot_id()}, file)
    os.replace(f"{path}.new", path)


def boot_id() -> str:
    """Which start of this machine it is; empty where nobody knows, and then no two are the same."""
    try:
        with open(BOOT_ID, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def _b64(key: str) -> str:
    return base64.b64encode(key.encode()).decode()
