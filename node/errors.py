"""Errors between the parts of a node. None of them reaches a caller: `call.py` and the residency translate.

NodeError
├── Fenced            a newer epoch owns the object: end the residency, unflushed
├── Ended             the residency is over; the call may be routed anew (`ran` tells whether it may have run)
├── PeerGone          no reply from another node; `sent` tells whether it can have heard
├── PeerBusy          too much waits for that node already: nothing was sent
├── Corrupt           bytes that fail their checksum; names the key or file, is never served around
└── BlobError
    ├── BlobMissing         the key is not there
    ├── PreconditionFailed  the tag did not match: nothing was stored
    └── BlobUnavailable     no answer, a refusal, no space; `maybe` tells whether the put may have happened
"""

from __future__ import annotations


class NodeError(Exception):
    """Root of the node's internal errors."""


class Fenced(NodeError):
    """A newer epoch owns the object."""


class Ended(NodeError):
    """The residency ended before, or while, the call had its turn."""


class PeerGone(NodeError):
    """Another node did not reply: unreachable, cut off, or out of time. `sent`: it may have received the message."""

    def __init__(self, detail: str, *, sent: bool) -> None:
        super().__init__(detail)
        self.sent = sent


class PeerBusy(NodeError):
    """Too much waits to be sent to that node already: this was not sent."""


class Corrupt(NodeError):
    """Stored bytes do not have the checksum they were stored with."""


class BlobError(NodeError):
    """Root of what a blob store can fail with."""


class BlobMissing(BlobError):
    """The key is not there."""


class PreconditionFailed(BlobError):
    """The object stored under the key is not the one the put was conditioned on; nothing was stored."""


class BlobUnavailable(BlobError):
    """The store gave no usable answer. `maybe`: the put may have happened all the same."""

    def __init__(self, detail: str, *, maybe: bool = False) -> None:
        super().__init__(detail)
        self.maybe = maybe
