"""What Scrub asks of nodes by name, in msgpack (PROTOCOLS section 10)."""

from __future__ import annotations

import msgspec

from domicile.placement.records import Generation, Incarnation


class ProveCopy(msgspec.Struct, array_like=True):
    """`copy-prove`: the copy at `length` of this generation, if it is kept here. `image`: with the database's hash."""

    object_id: str
    incarnation: Incarnation
    generation: Generation
    length: int
    image: bool


class CopyProof(msgspec.Struct, array_like=True):
    """`held` False: no copy of that generation, or a shorter one; that is no fault. `why`: what is wrong with it.

    `checksum`: of the log as it lies on the disk. `image`: blake3 of the database that base and log make, if asked for.
    """

    held: bool
    checksum: bytes = b""
    image: bytes = b""
    why: str = ""
