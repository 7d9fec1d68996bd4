"""Chunks by hash on the node's own disk, so that a lay fetches only what the node never saw.

A file counts only while its content has the hash that is its name: torn by a crash or rotten, it is dropped and was
never there. So nothing here is synced. Bounded in bytes (`OBJECT_CACHE_MB`); what was used longest ago goes first.
"""

from __future__ import annotations

from collections import OrderedDict

from blake3 import blake3

from domicile.node.disk import Disk

_NAME_LENGTH = 64


class ChunkCache:
    """One directory of the node. `hits`, `misses`, `rotten` and `refused` (by a full disk) count since the start."""

    def __init__(self, disk: Disk, path: str, bytes_max: int) -> None:
        self._disk = disk
        self._path = path
        self._bytes_max = bytes_max
        self._sizes: OrderedDict[str, int] = OrderedDict()
        self.bytes = 0
        self.hits = self.misses = self.rotten = self.refused = 0
        disk.make_dir(path)
        self._adopt()

    def get(self, digest: bytes) -> bytes | None:
        """The chunk with this blake3 hash, verified, or None."""
        name = digest.hex()
        if name not in self._sizes:
            self.misses += 1
            return None
        try:
            data = self._disk.read(f"{self._path}/{name}")
        except OSError:
            data = b""
        if blake3(data).digest() != digest:
            self.rotten += 1
            self.misses += 1
            self._drop(name)
            return None
        self._sizes.move_to_end(name)
        self.hits += 1
        return data

    def put(self, digest: bytes, data: bytes) -> None:
        """Keep a chunk the caller has verified. A disk that refuses it costs only a later fetch."""
        name = digest.hex()
        if name in self._sizes or len(data) > self._bytes_max:
            return
        self._make_room(len(data))
        try:
            self._disk.replace(f"{self._path}/{name}", data, sync=False)
        except OSError:
            self.refused += 1
            return
        self._sizes[name] = len(data)
        self.bytes += len(data)

    def _adopt(self) -> None:
        for name in self._disk.list_dir(self._path):
            size = self._disk.size(f"{self._path}/{name}")
            if len(name) != _NAME_LENGTH or size is None:
                self._disk.remove(f"{self._path}/{name}")
                continue
            self._sizes[name] = size
            self.bytes += size
        self._make_room(0)

    def _make_room(self, coming: int) -> None:
        while self._sizes and self.bytes + coming > self._bytes_max:
            self._drop(next(iter(self._sizes)))

    def _drop(self, name: str) -> None:
        self._disk.remove(f"{self._path}/{name}")
        self.bytes -= self._sizes.pop(name)
