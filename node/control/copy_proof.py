"""What a node can prove of a copy it keeps: for Scrub, which compares it with the bucket (PROTOCOLS section 10).

Nothing is taken from what the replica remembers: base and log are read back from the disk and hashed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
from blake3 import blake3

from domicile.errors import NotServing
from domicile.node.branches import as_file, shape_of
from domicile.node.control.scrub_messages import CopyProof, ProveCopy
from domicile.node.host import Host
from domicile.node.log import BaseShape
from domicile.node.replica.copy_view import CopyView
from domicile.node.replica.replicas import Replicas
from domicile.node.sqlite.birth import IMAGE
from domicile.node.sqlite.checksum import checksum


class CopyProofs:
    """`replicas`: this node's copies, if it keeps any."""

    def __init__(self, host: Host, replicas: Replicas | None) -> None:
        self._host = host
        self._replicas = replicas

    def requests(self) -> dict[str, Callable[[bytes], Awaitable[bytes]]]:
        """By name, for the peer handler."""
        return {"copy-prove": self.prove}

    async def prove(self, body: bytes) -> bytes:
        """Raises NotServing while the copy is being changed."""
        asked = msgspec.msgpack.decode(body, type=ProveCopy)
        return msgspec.msgpack.encode(await self._proof(asked))

    async def _proof(self, asked: ProveCopy) -> CopyProof:
        state = self._replicas.state_of(asked.object_id) if self._replicas is not None else None
        held, position = (state.held, state.position) if state is not None else (None, None)
        if self._replicas is None or held is None or position is None:
            return CopyProof(held=False)
        if (position.incarnation, position.generation) != (asked.incarnation, asked.generation):
            return CopyProof(held=False)
        if position.length < asked.length:
            return CopyProof(held=False)
        view = self._replicas.copy(asked.object_id)
        if view is None:
            raise NotServing("the copy is being changed")
        try:
            shape = BaseShape(held.base.hashes, held.base.size)
            return await self._host.workers.run(lambda: self._read(asked, view, shape))
        except OSError as error:
            return CopyProof(held=True, why=f"the copy cannot be read: {error.strerror}")
        finally:
            view.close()

    def _read(self, asked: ProveCopy, view: CopyView, shape: BaseShape) -> CopyProof:
        base = view.base if isinstance(view.base, bytes) else self._host.disk.read(view.base)
        base, log = base[: shape.size or len(IMAGE)], view.log(asked.length)
        found = shape_of(base)
        if found.hashes != shape.hashes:
            bad = [at for at, pair in enumerate(zip(found.hashes, shape.hashes, strict=False)) if pair[0] != pair[1]]
            return CopyProof(held=True, why=f"chunks {bad[:8]} of the copy's base have other content")
        digest = checksum(shape.seed(asked.object_id, asked.incarnation), log)
        image = blake3(as_file(base, log)).digest() if asked.image else b""
        return CopyProof(held=True, checksum=digest, image=image)
