"""The opening of a connection: who speaks, in which version, and that both know the cluster's secret.

    dialer  → Hello    versions, cluster, who I am, lane, nonce
    listener→ Welcome  the version taken, who I am, nonce, proof      or Denied
    dialer  → Proof    proof                                          or Denied, and entries may follow at once

A proof is HMAC-SHA256 under the secret over a label of the speaker's role, the dialer's hello byte for byte and the
welcome's fields: it covers both nonces, and nobody between can take out a version or pass a proof back. It proves who
opened the connection; that nobody else writes into it later is what TLS is for. These messages never change their
meaning: later versions may only add fields at their ends.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import msgspec

from domicile.node.wire.framing import BadPeer, Body

NONCE_BYTES = 32
SECRET_BYTES_MIN = 16

Lane = Literal["append", "call", "bulk"]
"""A connection's use: small and ordered, calls and requests, chunks and logs. Three, so that none waits for another."""


class Hello(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """The dialer's first word. `peer` is the address at which it listens itself; empty: it does not."""

    versions: tuple[int, ...]
    cluster: str
    node_id: str
    copy_id: str
    peer: str
    lane: Lane
    nonce: bytes


class Welcome(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """The listener's answer."""

    version: int
    cluster: str
    node_id: str
    copy_id: str
    nonce: bytes
    proof: bytes = b""


class Proof(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """The dialer's second word."""

    proof: bytes


class Denied(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """Why the other will not talk, for its log."""

    why: str


@dataclass(frozen=True, slots=True)
class Identity:
    """What a node says of itself, and the secret of its cluster: at least 16 random bytes."""

    cluster: str
    node_id: str
    copy_id: str
    peer: str
    secret: bytes = field(repr=False)


class Speaker(NamedTuple):
    """Who is at the other end, as proved. `peer`, where it can be reached, is empty for a listener."""

    node_id: str
    copy_id: str
    peer: str
    version: int
    lane: Lane


Nonce = Callable[[int], bytes]
_encode = msgspec.msgpack.Encoder().encode


class Dialing:
    """The dialer's side of one opening."""

    def __init__(self, me: Identity, lane: Lane, versions: Iterable[int], nonce: Nonce) -> None:
        self._me, self._lane, self._versions = me, lane, tuple(sorted(versions))
        hello = Hello(self._versions, me.cluster, me.node_id, me.copy_id, me.peer, lane, nonce(NONCE_BYTES))
        self.hello = _encode(hello)

    def proof(self, body: Body) -> tuple[Speaker, bytes]:
        """The listener and the body to send it, from its answer. Raises BadPeer."""
        welcome = _read(body, Welcome | Denied)
        if isinstance(welcome, Denied):
            raise BadPeer(f"it denied us: {welcome.why}")
        if welcome.cluster != self._me.cluster:
            raise BadPeer(f"it belongs to cluster {welcome.cluster!r}, we to {self._me.cluster!r}")
        if welcome.version not in self._versions:
            raise BadPeer(f"it took version {welcome.version}, we have {self._versions}")
        if not hmac.compare_digest(welcome.proof, _proof(self._me.secret, b"listener", self.hello, welcome)):
            raise BadPeer("it does not know our cluster's secret")
        speaker = Speaker(welcome.node_id, welcome.copy_id, "", welcome.version, self._lane)
        return speaker, _encode(Proof(_proof(self._me.secret, b"dialer", self.hello, welcome)))


class Listening:
    """The listener's side of one opening."""

    def __init__(self, me: Identity, versions: Iterable[int], nonce: Nonce) -> None:
        self._me, self._versions, self._nonce = me, frozenset(versions), nonce
        self._expected = b""
        self._speaker: Speaker | None = None

    def welcome(self, body: Body) -> bytes:
        """The body of the answer to a hello. Raises BadPeer."""
        hello, me = _read(body, Hello), self._me
        if hello.cluster != me.cluster:
            raise BadPeer(f"it belongs to cluster {hello.cluster!r}, we to {me.cluster!r}")
        common = self._versions.intersection(hello.versions)
        if not common:
            raise BadPeer(f"no version in common: it has {hello.versions}, we have {tuple(sorted(self._versions))}")
        if len(hello.nonce) != NONCE_BYTES:
            raise BadPeer(f"its nonce has {len(hello.nonce)} bytes, not {NONCE_BYTES}")
        bare = Welcome(max(common), me.cluster, me.node_id, me.copy_id, self._nonce(NONCE_BYTES))
        said = bytes(body)
        self._expected = _proof(me.secret, b"dialer", said, bare)
        self._speaker = Speaker(hello.node_id, hello.copy_id, hello.peer, bare.version, hello.lane)
        return _encode(msgspec.structs.replace(bare, proof=_proof(me.secret, b"listener", said, bare)))

    def admit(self, body: Body) -> Speaker:
        """Who dialled, from its proof. Raises BadPeer."""
        proof = _read(body, Proof | Denied)
        if isinstance(proof, Denied):
            raise BadPeer(f"it denied us: {proof.why}")
        assert self._speaker is not None
        if not hmac.compare_digest(proof.proof, self._expected):
            raise BadPeer("it does not know our cluster's secret")
        return self._speaker


def denial(why: str) -> bytes:
    """The body of a Denied."""
    return _encode(Denied(why[:500]))


def denied(body: Body) -> str | None:
    """Why it denied us, if that is what the body says. No batch of messages reads as one."""
    try:
        return msgspec.msgpack.decode(body, type=Denied).why
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _proof(secret: bytes, role: bytes, hello: bytes, welcome: Welcome) -> bytes:
    fields = (welcome.version, welcome.cluster, welcome.node_id, welcome.copy_id, welcome.nonce)
    said = role + b"\0" + hashlib.sha256(hello).digest() + hashlib.sha256(_encode(fields)).digest()
    return hmac.new(secret, said, hashlib.sha256).digest()


def _read(body: Body, kind: Any) -> Any:
    try:
        return msgspec.msgpack.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadPeer(f"its hello cannot be read: {error}") from None
