"""The blob store looked at from outside, with nothing of any node: every object restored from its manifest alone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import apsw
from simworld.restore import integrity, restore

from domicile.node.blobs.base import Blobs
from domicile.node.blobs.file import FileBlobs
from domicile.node.chunks import MANIFESTS
from domicile.node.clock import SystemClock
from domicile.node.manifest import Manifest, decode

OpenBlobs = Callable[[], Awaitable[Blobs]]


@dataclass(frozen=True)
class Cold:
    """One object as the bucket alone has it."""

    manifest: Manifest
    items: tuple[str, ...]
    twins: tuple[str, ...]
    fired: tuple[str, ...]
    last: str | None
    integrity: str


def restored(open_blobs: OpenBlobs) -> dict[str, Cold]:
    """Every object that is not deleted, by name. The store must be at rest. Raises Corrupt for what is not whole."""

    async def everything() -> dict[str, bytes]:
        blobs = await open_blobs()
        try:
            return {listed.key: (await blobs.get(listed.key)).data async for listed in blobs.list("")}
        finally:
            await blobs.close()

    return from_store(asyncio.run(everything()))


def from_store(store: dict[str, bytes]) -> dict[str, Cold]:
    """The same of a store's whole content."""
    manifests = [decode(data, key) for key, data in store.items() if key.startswith(MANIFESTS)]
    return {m.name: _cold(m, restore(m, store)) for m in manifests if not m.deleted}


def in_directory(root: Path) -> OpenBlobs:
    """Opens a directory store."""

    async def opened() -> Blobs:
        return FileBlobs(str(root), SystemClock())

    return opened


def look(image: bytes) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...], str | None]:
    """Items, twins, alarms that came and the last item's name, of a database's bytes."""
    plain = bytearray(image)
    plain[18:20] = b"\x01\x01"  # a database in memory has no WAL
    db = apsw.Connection(":memory:")
    try:
        db.deserialize("main", bytes(plain))
        if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'items'").fetchall():
            return (), (), (), None
        items, twins, fired = (
            tuple(item for (item,) in db.execute(f"SELECT item FROM {table} ORDER BY n"))
            for table in ("items", "twins", "fired")
        )
        last = db.execute("SELECT value FROM _domicile_kv WHERE key = 'last'").fetchall()
        return items, twins, fired, last[0][0].decode().strip('"') if last else None
    finally:
        db.close()


def _cold(manifest: Manifest, image: bytes) -> Cold:
    items, twins, fired, last = look(image)
    return Cold(manifest, items, twins, fired, last, integrity(image))
