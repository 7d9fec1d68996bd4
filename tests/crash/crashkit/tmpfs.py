"""A small file system of its own, which can be filled to the last byte and emptied again. Needs root."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

PIECES = (1 << 20, 1 << 16, 1 << 12, 1)
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount the small file system that is filled")


class Tmpfs:
    """Mounted at `where`."""

    def __init__(self, where: Path) -> None:
        self.where = where
        self._filler = where / "filler"

    def fill(self) -> None:
        """Until not a byte is left."""
        with self._filler.open("ab", buffering=0) as filler:
            for piece in PIECES:
                try:
                    while filler.write(bytes(piece)) == piece:
                        pass
                except OSError:
                    continue

    def free(self) -> None:
        """Give all of that back."""
        self._filler.unlink()


@contextmanager
def mounted(where: Path, megabytes: int) -> Iterator[Tmpfs]:
    """For as long as the block lasts; who still has files open in it keeps them until then."""
    where.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(where)], check=True)
    try:
        yield Tmpfs(where)
    finally:
        subprocess.run(["umount", "-l", str(where)], check=True)
