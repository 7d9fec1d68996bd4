"""etcd's messages: rows, conditions and mutations into them and back, and what its errors mean (PROTOCOLS section 2).

Pure. The generated messages are aetcd's; its client is not used, since it knows neither TLS nor a second endpoint.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from enum import Enum
from typing import Any

import grpc  # type: ignore[import-untyped]
from aetcd.rpc import rpc_pb2 as pb  # type: ignore[import-untyped]

from domicile.placement.store import At, Condition, Event, Grant, GrantGone, Mutation, Put, Record

EVERY_KEY = b"\0"
DELETED = 1  # the type of an event


class Fate(Enum):
    """What is known of a request that failed."""

    NOT_HERE = "this member did not do it and may not be able to; another may"
    LOG_IN = "the token is not accepted; with a new one it may go through"
    NEVER = "refused, and would be refused again"
    NO_GRANT = "its grant is gone"
    TOO_LARGE = "larger than the store takes"
    COMPACTED = "the revision asked for is not there"
    MAYBE = "nobody knows"


# Refused before a proposal was made, or when it was applied: in either case nothing was written. What is not named here
# may have been (a timeout, a lost connection, a stopping member).
_FATES: dict[str, Fate] = {
    "failed to connect to all addresses": Fate.NOT_HERE,
    "etcdserver: no leader": Fate.NOT_HERE,
    "etcdserver: not capable": Fate.NOT_HERE,
    "etcdserver: rpc not supported for learner": Fate.NOT_HERE,
    "etcdserver: too many requests": Fate.NOT_HERE,
    "etcdserver: unhealthy cluster": Fate.NOT_HERE,
    "raft proposal dropped": Fate.NOT_HERE,
    "etcdserver: invalid auth token": Fate.LOG_IN,
    "etcdserver: revision of auth store is old": Fate.LOG_IN,
    "etcdserver: user name is empty": Fate.LOG_IN,
    "etcdserver: authentication failed": Fate.NEVER,
    "etcdserver: mvcc: database space exceeded": Fate.NEVER,
    "etcdserver: permission denied": Fate.NEVER,
    "etcdserver: requested lease not found": Fate.NO_GRANT,
    "etcdserver: request is too large": Fate.TOO_LARGE,
    "etcdserver: too many operations in txn request": Fate.TOO_LARGE,
    "grpc: received message larger than max": Fate.TOO_LARGE,
    "etcdserver: mvcc: required revision has been compacted": Fate.COMPACTED,
    "etcdserver: mvcc: required revision is a future revision": Fate.COMPACTED,
}
AUTH_IS_OFF = "etcdserver: authentication is not enabled"


def fate(error: grpc.aio.AioRpcError) -> Fate:
    """What an error says of the request that met it."""
    details = error.details() or ""
    return next((known for text, known in _FATES.items() if details.startswith(text)), Fate.MAYBE)


def told(error: grpc.aio.AioRpcError) -> str:
    """The error in words."""
    return f"etcd: {error.details() or error.code().name}"


def record(kv: Any) -> Record:
    """A key as etcd tells it."""
    return Record(kv.key.decode(), kv.value, kv.mod_revision, kv.create_revision)


def event(found: Any) -> Event:
    """A change as a watch tells it."""
    kv = found.kv
    return Event(kv.key.decode(), kv.mod_revision, None if found.type == DELETED else record(kv))


def compare(condition: Condition) -> Any:
    """A key that is absent compares as created at 0."""
    key = condition.key.encode()
    if isinstance(condition, At) and condition.version != 0:
        return pb.Compare(key=key, target=pb.Compare.MOD, result=pb.Compare.EQUAL, mod_revision=condition.version)
    # `Since` version 0 never holds, where etcd would see an absent key.
    created = 0 if isinstance(condition, At) else condition.created or -1
    return pb.Compare(key=key, target=pb.Compare.CREATE, result=pb.Compare.EQUAL, create_revision=created)


def operation(mutation: Mutation, lease: int) -> Any:
    """A mutation as part of a transaction; lease 0 is none."""
    key = mutation.key.encode()
    if isinstance(mutation, Put):
        return pb.RequestOp(request_put=pb.PutRequest(key=key, value=mutation.value, lease=lease))
    return pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=key))


def ranges(keys: Sequence[str], revision: int = 0) -> list[Any]:
    """One range for each key; revision 0 is the present."""
    return [pb.RequestOp(request_range=pb.RangeRequest(key=key.encode(), revision=revision)) for key in keys]


def found(response: Any) -> list[Record]:
    """The records of a transaction's ranges."""
    return [record(kv) for op in response.responses for kv in op.response_range.kvs]


def span(prefix: str) -> tuple[bytes, bytes]:
    """First key and end of all keys that start with `prefix`."""
    first = prefix.encode()
    if not first:
        return EVERY_KEY, EVERY_KEY
    # UTF-8 never ends in 0xff, so the last byte has a next.
    return first, first[:-1] + bytes([first[-1] + 1])


def lease_of(grant: Grant) -> int:
    """Raises GrantGone for what is no grant of etcd's."""
    if not (grant.isascii() and grant.isdigit()):
        raise GrantGone(f"{grant!r} is no grant of this store")
    return int(grant)


def pack_token(revision: int, last_key: str) -> str:
    """Where a scan goes on: 8 bytes of revision, then the last key given, in URL-safe base64."""
    return base64.urlsafe_b64encode(revision.to_bytes(8, "big") + last_key.encode()).decode()


def unpack_token(token: str, prefix: str) -> tuple[int, str]:
    """Raises ValueError for a text that is no token of a scan of `prefix`."""
    try:
        packed = base64.b64decode(token.encode(), altchars=b"-_", validate=True)
        revision, key = int.from_bytes(packed[:8], "big"), packed[8:].decode()
    except (binascii.Error, UnicodeError) as error:
        raise ValueError("this is not a scan's token") from error
    if not 0 < revision < 1 << 63 or not key or not key.startswith(prefix):
        raise ValueError("this is not a token of this scan")
    return revision, key
